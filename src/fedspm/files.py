"""Writing files so that a crash, a kill or a full disk never leaves half of one; and what to call them."""

import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

from fedspm.errors import DamagedFile, FedSPMError

UMASK = os.umask(0)  # there is no way to read it without setting it
os.umask(UMASK)


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """All of it or nothing: written beside the target, flushed to the disk, then renamed over it.

    Nobody else may read what is `private`, not for a moment; everything else, who the umask lets.
    """
    data = content.encode() if isinstance(content, str) else content
    with explained(path):
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # only its owner may read it
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            if not private:
                os.chmod(temporary, 0o666 & ~UMASK)
            os.replace(temporary, path)
        except BaseException:
            Path(temporary).unlink(missing_ok=True)
            raise


def write_secret(path: Path, content: bytes) -> None:
    """Nobody else may read it, not for a moment."""
    write_atomically(path, content, private=True)


@contextmanager
def folder_atomically(path: Path) -> Iterator[Path]:
    """A folder that appears under its name only when everything in it is on the disk."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
        try:
            yield temporary
            for each in (*temporary.rglob("*"), temporary):
                _flush(each)
            temporary.chmod(0o777 & ~UMASK)
            if path.exists():  # moved aside first: to delete many files takes long, and a kill may come
                before = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}."))
                os.replace(path, before)
                try:
                    os.replace(temporary, path)
                except BaseException:
                    os.replace(before, path)
                    raise
                shutil.rmtree(before)
            else:
                os.replace(temporary, path)
            _flush(path.parent)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise


def as_file_name(name: str) -> str:
    """As near to a name as every file system likes; two may become the same."""
    return re.sub(r"[^A-Za-z0-9._-]", "_", name)[:60].lstrip(".") or "_"


def file_names(names: Sequence[str]) -> list[str]:
    """The same, and no two alike."""
    plain = [as_file_name(name) for name in names]
    taken = Counter(name.lower() for name in plain)  # some file systems take North and north for one
    found = []
    for i, name in enumerate(plain):
        numbered = (f"{name}-{j}" for j in count(i))
        alone = taken[name.lower()] == 1
        found.append(name if alone else next(other for other in numbered if other.lower() not in taken))
        taken[found[-1].lower()] = 1
    return found


@contextmanager
def explained(path: Path) -> Iterator[None]:
    """What the system says about a write, as a sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            sentence = f"no space left on the disk while writing {path}; free some, then go on: nothing is lost"
            raise FedSPMError(sentence) from error
        raise FedSPMError(f"{path} cannot be written: {error.strerror or error}") from error


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DamagedFile(f"{path} is missing") from error
    except (OSError, ValueError) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error


def private_folder(path: Path) -> Path:
    """Makes a folder that nobody else may look into; one that is there already stays as it is."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir(mode=0o700, exist_ok=True)
    return path


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
