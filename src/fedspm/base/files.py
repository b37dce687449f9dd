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

from fedspm.base.errors import DamagedFile, FedSPMError

PARTIAL = ".fedspm-partial"  # how the name ends of what is not yet whole
UMASK = os.umask(0)  # there is no way to read it without setting it
os.umask(UMASK)


def write_atomically(path: Path, content: str | bytes, *, private: bool = False) -> None:
    """All of it or nothing: written beside the target, flushed to the disk, then renamed over it.

    Nobody else may read what is `private`, not for a moment; everything else, who the umask lets.
    """
    data = content.encode() if isinstance(content, str) else content
    with explained(path):
        handle, temporary = tempfile.mkstemp(PARTIAL, _prefix(path), path.parent)  # which only its owner may read
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


@contextmanager
def folder_atomically(path: Path, *, private: bool = False) -> Iterator[Path]:
    """A folder that appears under its name only when everything in it is on the disk; until then, and afterwards if it
    is `private`, only its owner may look into it."""
    with explained(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = Path(tempfile.mkdtemp(PARTIAL, _prefix(path), path.parent))
        try:
            yield temporary
            for each in (*temporary.rglob("*"), temporary):
                if private:
                    each.chmod(0o700 if each.is_dir() else 0o600)
                _flush(each)
            if not private:
                temporary.chmod(0o777 & ~UMASK)
            if path.exists():  # moved aside first: to delete many files takes long, and a kill may come
                before = Path(tempfile.mkdtemp(PARTIAL, _prefix(path), path.parent))
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


def is_partial(name: str) -> bool:
    """Is this what the two functions above call something while they write it?"""
    return _writer(name) is not None


def remove_partial(folder: Path) -> None:
    """Remove what killed processes left half-written in a folder; what somebody is writing stays."""
    for path in folder.glob(f".*{PARTIAL}"):
        writer = _writer(path.name)
        if writer is not None and not _at_work(writer):
            shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()


def _prefix(path: Path) -> str:
    return f".{path.name}.{os.getpid()}-"


def _writer(name: str) -> int | None:
    """The process that was writing what is called so; None if it is none of ours."""
    found = re.fullmatch(rf"\..+\.(\d{{1,9}})-[a-z0-9_]{{8}}{re.escape(PARTIAL)}", name)
    return int(found[1]) if found else None


def _at_work(process: int) -> bool:
    """Does another process of this number live? This one is not writing while it tidies up; in a container a process
    often has the number of the one that was killed."""
    if process == os.getpid():
        return False
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # somebody else's
        return True
    return True


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
        return parse_json(path.read_bytes(), path)
    except FileNotFoundError as error:
        raise DamagedFile(f"{path} is missing") from error
    except OSError as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error


def parse_json(content: bytes, path: Path) -> Any:
    """What a file says, whose content was read already."""
    try:
        return json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
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


def require_files(*paths: Path | None) -> None:
    """Refuse the first that is not there; None stands for a file that is not needed."""
    for path in filter(None, paths):
        if not path.is_file():
            raise FedSPMError(f"there is no file {path}")
