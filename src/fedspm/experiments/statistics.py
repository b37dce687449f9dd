"""What methods reached over seeds, and statistics of it: means, ranks, and differences paired by seed."""

import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from scipy.stats import t as student

ACCURACIES = {"system": "system_accuracy", "average": "average_accuracy", "routing": "routing_accuracy"}
CONFIDENCE = 0.95
Seeds = Mapping[int, float]  # a figure for every seed
Name = TypeVar("Name", str, int)


@dataclass(frozen=True)
class Method:
    """One row of the table: what a method reached with every seed, and what it cost."""

    name: str
    title: str
    curves: Mapping[int, Sequence[Mapping[str, Any]]]  # the metrics of every evaluated round, by seed
    accuracy: Mapping[str, Seeds]
    parameters: int
    private: int
    bytes_down: int | None
    bytes_up: int | None
    seconds_per_round: float


def spread(values: Seeds) -> tuple[float, float | None]:
    """Mean and standard deviation (n − 1) over seeds; None of one seed."""
    figures = list(values.values())
    return statistics.mean(figures), statistics.stdev(figures) if len(figures) > 1 else None


def ranks(methods: Sequence[Method], metric: str) -> dict[str, int]:
    """1 for the highest mean, equal means sharing a rank; a mean over fewer or other seeds is not ranked."""
    means = {method.name: spread(method.accuracy[metric])[0] for method in _complete(methods, metric)}
    return {name: 1 + sum(other > mean for other in means.values()) for name, mean in means.items()}


def _complete(methods: Sequence[Method], metric: str) -> list[Method]:
    complete = with_most_seeds(
        {method.name: method.accuracy[metric] for method in methods if metric in method.accuracy}
    )
    return [method for method in methods if method.name in complete]


def with_most_seeds(values: Mapping[Name, Seeds]) -> list[Name]:
    """Whose means can be compared: a seed is other data, so only those over the same seeds, as many as there are."""
    seeds = Counter(frozenset(by_seed) for by_seed in values.values())
    most = max(seeds, key=lambda these: (len(these), seeds[these]), default=frozenset())
    return [name for name, by_seed in values.items() if by_seed.keys() == most]


def paired_difference(these: Seeds, those: Seeds) -> tuple[float, float | None] | None:
    """Mean of the differences with the same seed, and the half width of its 95 % interval (Student's t)."""
    differences = [these[seed] - those[seed] for seed in these if seed in those]
    if not differences:
        return None
    mean = statistics.mean(differences)
    if len(differences) == 1:
        return mean, None
    quantile = float(student.ppf((1 + CONFIDENCE) / 2, len(differences) - 1))
    return mean, quantile * statistics.stdev(differences) / len(differences) ** 0.5


def best(methods: Sequence[Method], metric: str) -> Method:
    return max(_complete(methods, metric), key=lambda method: spread(method.accuracy[metric])[0])
