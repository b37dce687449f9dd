"""One process at a time in a run folder; and which folders a new run may take."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote

from filelock import FileLock, Timeout

from fedspm.base.errors import FedSPMError
from fedspm.base.files import explained, is_partial
from fedspm.runs.config import Config

LOCK = ".lock"


@contextmanager
def locked(folder: Path, patient: Callable[[], bool] = lambda: False) -> Iterator[None]:
    """Nobody else trains in this folder meanwhile; the system frees the lock when a process dies.

    While `patient` returns true, it waits for whoever holds the lock.
    """
    lock = FileLock(folder / LOCK)
    with explained(folder / LOCK):
        while not lock.is_locked:
            try:
                lock.acquire(timeout=0.5 if patient() else 0)
            except Timeout as error:
                if not patient():
                    raise FedSPMError(
                        f"another process is training in {folder}; wait for it, or stop it first"
                    ) from error
    try:
        yield
    finally:
        lock.release()


def refuse_existing(path: Path, config: Config | None = None) -> None:
    """Refuse a folder with anything in it.

    A run with this very `config` that was killed before it began has left only its config.toml, which will be the same
    again: such a folder is taken.
    """
    if not path.exists():
        return
    found = (
        [each for each in path.iterdir() if each.name != LOCK and not is_partial(each.name)]
        if path.is_dir()
        else [path]
    )
    begun = config and found == [path / "config.toml"] and found[0].read_bytes() == config.to_toml().encode()
    if found and not begun:
        hint = f", or go on with it: `fedspm resume {quote(str(path))}`" if (path / "manifest.json").exists() else ""
        raise FedSPMError(f"{path} already exists and is not touched; choose another folder{hint}")
