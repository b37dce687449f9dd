"""What a tuning may vary: by key a list of values, or a range of numbers."""

import itertools
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from fedspm.algorithms import algorithm_named
from fedspm.base.errors import FedSPMError
from fedspm.base.layers import dotted, flat, parse_assignments
from fedspm.base.randomness import numpy_generator
from fedspm.experiments.comparison import row_settings
from fedspm.runs.config import resolve

Trial = Mapping[str, Any]  # a value for every key, by dotted key


@dataclass(frozen=True)
class Range:
    """All numbers from `low` to `high`, evenly by their logarithm."""

    low: float
    high: float

    def at(self, share: float) -> float:
        """The number that lies `share` of the way from low to high, to three digits: it is written down and typed."""
        return float(f"{math.exp(math.log(self.low) + share * math.log(self.high / self.low)):.3g}")


Space = Mapping[str, tuple[Any, ...] | Range]

USUAL: Space = {
    "predictor.learning_rate": (0.01, 0.03, 0.06, 0.1),
    "router.learning_rate": (0.005, 0.01, 0.02),
}


def parse_space(texts: Iterable[str]) -> Space:
    """`router.steps=15,30` as a list of values, `router.learning_rate=0.003..0.03` as a range."""
    space: dict[str, tuple[Any, ...] | Range] = {}
    for text in texts:
        key, equals, said = (part.strip() for part in text.partition("="))
        low, dots, high = said.partition("..")
        advice = f"--try {text!r}: write key=value,value,… or key=low..high, for instance --try router.steps=15,30"
        if not (key and equals and said) or key in space:
            raise FedSPMError(advice)
        if dots:
            try:
                space[key] = Range(float(low), float(high))
            except ValueError:
                raise FedSPMError(advice) from None
            continue
        space[key] = tuple(flat(parse_assignments([f"{key}={value}"]))[key] for value in said.split(","))
    return space


def require_space(space: Space, base: Mapping[str, Any]) -> None:
    """Refuse keys and values that no training takes, and lists and ranges with nothing to choose from."""
    if not space:
        raise FedSPMError("there is nothing to tune; name a setting and its values with --try")
    for key, values in space.items():
        if isinstance(values, Range):
            if not 0 < values.low < values.high < math.inf:
                raise FedSPMError(f"--try {key}={values.low:g}..{values.high:g}: a range goes up from above zero")
        elif len(set(values)) < len(values) or len(values) < 2:
            raise FedSPMError(f"--try {key}: give at least two values, and each only once")
        taken = {"seed", "algorithm", "variant", "rounds", "horizon", "data", "engine", "eval_every"}
        if key.split(".", maxsplit=1)[0] in taken:
            raise FedSPMError(f"--try {key}: this says what is trained and how it is judged; it cannot be tuned")
        for value in (values.low, values.high) if isinstance(values, Range) else values:
            resolve(base, dotted({key: value}))


def of_method(space: Space, row: str) -> Space:
    """What a method has of it: one without a router has no router to tune, and no method another one's options."""
    algorithm = algorithm_named(row_settings(row)["algorithm"])

    def concerns(key: str) -> bool:
        table, _, name = key.partition(".")
        if table == "router":
            return algorithm.routes
        if table == "em":
            return name in algorithm.em
        if table == "options":
            return name in algorithm.Options.model_fields
        return key != "components" or algorithm.has_components

    return {key: values for key, values in space.items() if concerns(key)}


def all_trials(space: Space) -> list[Trial]:
    """Every combination of the values."""
    lists = []
    for key, values in space.items():
        if isinstance(values, Range):
            raise FedSPMError(f"--search grid needs values of {key}; a range is for random and tpe")
        lists.append(values)
    return [dict(zip(space, combination, strict=True)) for combination in itertools.product(*lists)]


def random_trials(space: Space, trials: int, row: str) -> list[Trial]:
    """Drawn one by one, each only once; the same for the same space, however often it is asked."""
    random, found = numpy_generator("tune", row), list[Trial]()
    for _ in range(100 * trials):
        drawn = {
            key: values.at(random.random()) if isinstance(values, Range) else values[random.integers(len(values))]
            for key, values in space.items()
        }
        if drawn not in found:
            found.append(drawn)
        if len(found) == trials:
            break
    return found
