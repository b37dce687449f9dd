"""What was decoded once, kept as plain .npy files and mapped into memory the next time.

An entry is a folder named after the data set and a fingerprint of its source. It appears whole or not at all; one that
is damaged counts as absent, and one that cannot be written is done without. Rows go to the disk while they are decoded,
so that a data set is never in memory as a whole before somebody asks for its rows.
"""

import hashlib
import json
import mmap
import os
import tempfile
import zlib
from collections.abc import Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from fedspm.base.errors import FedSPMError
from fedspm.base.files import folder_atomically

Piece = dict[
    str, np.ndarray
]  # some rows of every array; those of `key`, if there is one, say in which order to keep them
CHUNK = 1 << 20
ROWS = 512


@dataclass(frozen=True)
class Decoded:
    """The arrays of a data set, one row per image, and what is to be said of them whenever they are loaded."""

    arrays: dict[str, np.ndarray]
    notes: list[str] = field(default_factory=list)


def user_cache() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedspm"


def entry_of(name: str, *facts: object) -> Path:
    """Where the decoded form of a source lies, if it does."""
    return user_cache() / "decoded" / f"{name}-{hashlib.sha256(repr(facts).encode()).hexdigest()[:16]}"


def rows_of(array: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """A copy of some rows. Pages of a mapped file are given back at once: until then they count as our memory."""
    taken = np.asarray(array[rows])
    if isinstance(array, np.memmap) and array.mode == "r" and hasattr(mmap, "MADV_DONTNEED"):
        pages: mmap.mmap = array._mmap  # type: ignore[attr-defined]
        pages.madvise(mmap.MADV_DONTNEED)
    return taken


def recall(entry: Path) -> Decoded | None:
    """What an earlier load kept; None if there is nothing, or not all of it."""
    try:
        known = json.loads((entry / "entry.json").read_text("utf-8"))
        arrays: dict[str, np.ndarray] = {}
        for name, checksum in known["checksums"].items():
            path = entry / f"{name}.npy"
            if _checksum(path) != checksum:
                return None
            arrays[name] = np.lib.format.open_memmap(path, mode="r")
        return Decoded(arrays, list(known["notes"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def keep(entry: Path, pieces: Iterable[Piece], notes: list[str]) -> Decoded | None:
    """Write what is decoded, then map it; None if the disk does not take it. Errors of decoding go through."""
    with ExitStack() as files:
        spools: dict[str, IO[bytes]] = {}
        kinds: dict[str, np.ndarray] = {}
        try:
            entry.parent.mkdir(parents=True, exist_ok=True)
            for piece in pieces:
                for name, rows in piece.items():
                    if name not in spools:
                        spools[name] = files.enter_context(tempfile.TemporaryFile(dir=entry.parent))
                        kinds[name] = rows[:0].copy()
                    spools[name].write(np.ascontiguousarray(rows).data)
            for spool in spools.values():
                spool.flush()
        except OSError:
            return None
        if not spools:
            return Decoded({}, notes)
        arrays = {name: _mapped(spool, kinds[name]) for name, spool in spools.items()}
        order = _order(arrays.pop("key", None), arrays["labels"])
        try:
            with folder_atomically(entry) as folder:
                for name, array in arrays.items():
                    _write(folder / f"{name}.npy", array, order)
                checksums = {name: _checksum(folder / f"{name}.npy") for name in arrays}
                (folder / "entry.json").write_text(json.dumps({"checksums": checksums, "notes": notes}), "utf-8")
        except FedSPMError:
            return None
    return recall(entry)


def collect(pieces: Iterable[Piece], notes: list[str]) -> Decoded:
    """The same in memory, for where nothing can be written. It takes twice the memory for a moment."""
    parts: dict[str, list[np.ndarray]] = {}
    for piece in pieces:
        for name, rows in piece.items():
            parts.setdefault(name, []).append(rows)
    if not parts:
        return Decoded({}, notes)
    arrays = {name: np.concatenate(parts.pop(name)) for name in list(parts)}
    order = _order(arrays.pop("key", None), arrays["labels"])
    return Decoded({name: array[order] for name, array in arrays.items()}, notes)


def _order(key: np.ndarray | None, labels: np.ndarray) -> np.ndarray:
    """By key, then by label; as they came where there is no key."""
    return np.arange(len(labels)) if key is None else np.lexsort((labels, key))


def _mapped(spool: IO[bytes], kind: np.ndarray) -> np.ndarray:
    row = kind.dtype.itemsize * int(np.prod(kind.shape[1:]))
    return np.memmap(spool, kind.dtype, "r", shape=(spool.tell() // row, *kind.shape[1:]))


def _write(path: Path, array: np.ndarray, order: np.ndarray) -> None:
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, np.lib.format.header_data_from_array_1_0(array))
        for start in range(0, len(array), ROWS):
            file.write(rows_of(array, order[start : start + ROWS]).data)


def _checksum(path: Path) -> int:
    checksum = 0
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            checksum = zlib.crc32(piece, checksum)
    return checksum
