"""When training asks a client for a step, and how often: what a site holds its server to."""

from dataclasses import dataclass
from typing import Literal

ATTEMPTS = 20  # at a round that too few sites answer

When = Literal["start", "round", "evaluation", "end"]


@dataclass(frozen=True)
class Asked:
    """A step that training asks for: before round 0, in every round, when the model is evaluated, or after the last
    round; each time with at most `times` different contents."""

    when: When
    times: int = 1
