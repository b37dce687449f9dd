"""Sites in a loop (`fedspm.testing.loop_grid`), and algorithms by class."""

from fedspm.federated.task import Task
from fedspm.testing.loop_grid import LoopGrid, loop_engine

__all__ = ["LoopGrid", "algorithm_of", "loop_engine"]


def algorithm_of(kind, settings, federation):
    return kind(settings, Task.of_federation(federation))
