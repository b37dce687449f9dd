"""What people call the parts of one data set: never the names of clients."""

from collections.abc import Iterable

from fedspm.base.errors import FedSPMError

SPLITS = {"train", "test"}
OTHERS = {"training", "testing", "val", "valid", "validation", "dev", "eval", "holdout"}


def are_splits(names: Iterable[str]) -> bool:
    """Are they train and test, or one of the two?"""
    return set() < {name.lower() for name in names} <= SPLITS


HOW = "name them train and test, and leave out or join the rest"


def refuse_splits(names: Iterable[str], what: str, how: str = HOW, expected: str = "clients") -> None:
    """A data set a client is expected; taken for clients, held-out rows would be trained on."""
    called = list(names)
    if called and {name.lower() for name in called} <= SPLITS | OTHERS:
        raise FedSPMError(f"{what} are called {', '.join(called)}: parts of one data set, not {expected}; {how}")
