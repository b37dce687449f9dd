"""The methods, one file each, by name."""

from fedspm.algorithms.fedspm import FedSPM
from fedspm.core.algorithm import Algorithm
from fedspm.errors import FedSPMError

ALGORITHMS: dict[str, type[Algorithm]] = {"fedspm": FedSPM}


def algorithm_named(name: str) -> type[Algorithm]:
    if name not in ALGORITHMS:
        raise FedSPMError(f"there is no algorithm {name!r}; known are {', '.join(ALGORITHMS)}")
    return ALGORITHMS[name]
