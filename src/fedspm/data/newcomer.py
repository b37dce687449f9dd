"""The rows of one client that comes to a run: in any form of one's own data, as the other clients have theirs."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fedspm.base.errors import FedSPMError
from fedspm.data.arrays import places
from fedspm.data.federation import Part, encoded, split
from fedspm.data.readers.detect import read_own
from fedspm.data.readers.draft import Draft, Reading, Rows


@dataclass(frozen=True)
class Likeness:
    """What the rows of all clients have in common."""

    shape: tuple[int, ...]
    classes: np.ndarray
    columns: tuple[str, ...] | None = None


def read_newcomer(
    path: Path, name: str, like: Likeness, how: Reading, test_fraction: float, seed: int
) -> tuple[Part, Part]:
    """Training and test rows; rows are held out where the data brings no test rows of its own."""
    height, *width = like.shape[1:] or (None,)
    draft = read_own(path, replace(how, client=name, size=height if width == [height] else None))
    if draft.problems:
        raise FedSPMError(draft.problems[0])
    whose = _whose(draft, name)
    train = _part(draft, draft.train[whose], like, f"client {name!r}")
    if whose in draft.test:
        return train, _part(draft, draft.test[whose], like, f"client {name!r}, test rows")
    return split(train, test_fraction, (seed, name))


def _whose(draft: Draft, name: str) -> str:
    """The one client of the data, or the one with this name."""
    found = list(draft.train)
    if len(found) != 1 and name not in found:
        raise FedSPMError(f"{draft.where} holds the clients {', '.join(found)}, and none is called {name!r}")
    return name if name in found else found[0]


def _part(draft: Draft, rows: Rows, like: Likeness, where: str) -> Part:
    x, y = rows
    if like.columns and draft.columns:
        x = x[:, places(like.columns, draft.columns, where)]
    return encoded((x, y), like.classes, like.shape, where)
