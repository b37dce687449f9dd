"""The ledger of a site: what has left it, in all runs, in a file that can only grow.

    STATE/ledger.jsonl   one line for every request that was answered, written before the reply leaves
    STATE/ledger.head    how many lines there are, and the hash of the last one

Every line holds the SHA-256 of the line before it, so a line that was changed, taken out or put in breaks the chain,
and the head, in a file of its own, tells if lines are missing at the end. A site with a ledger that does not hold
answers nobody: what it may still give away is not known. A crash between the two writes leaves one line, or a piece of
one, that the head does not know of; its reply never left, and it is taken in, or cut off.
"""

import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedspm.base.errors import DamagedFile
from fedspm.base.files import explained, private_folder, read_json, sha256, write_atomically
from fedspm.federated.accountant import gaussian_epsilon, separation

BEGINNING = "0" * 64  # what stands for the line before the first
SENT = "shared.safetensors"  # in the folder of every run in which the site was asked for anything


@dataclass(frozen=True)
class Entry:
    """One request that a site has answered, or whose reply it has kept back."""

    run: str
    turn: int  # 0: the start, t + 1: round t
    step: str
    when: str  # as the step is declared: start, round, evaluation, after training
    request: str  # fingerprint of everything that the reply follows from
    bytes: int  # of the tensors that left
    noised: int = 0  # vectors among them that carry noise
    noise: float = 0.0  # privacy.noise of the run
    kept_back: str = ""  # why nothing left
    time: str = field(default_factory=lambda: time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


class Ledger:
    """Reads, checks and continues the ledger in the folder of a site's state."""

    _entries: list[Entry]
    _known: "hashlib._Hash"  # of everything that was read or written
    _hash: str  # of the last line
    _offset: int  # where the next one begins

    def __init__(self, state: Path):
        self._lines, self._head = state / "ledger.jsonl", state / "ledger.head"
        self._forget()

    def entries(self) -> list[Entry]:
        """All of them, oldest first, checked; what other processes have added meanwhile is read."""
        with self._locked():
            self._read()
        return self._entries

    def append(self, entry: Entry) -> None:
        """On the disk when this returns."""
        with self._locked():
            self._read()
            line = self._line(entry, self._hash)
            with explained(self._lines), self._lines.open("ab") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
            self._take(entry, line)
            self._write_head()

    # -- the chain ---------------------------------------------------------------------------------------------------

    def _read(self) -> None:
        """Whatever follows what is known already; `DamagedFile` if it does not follow."""
        content, (count, last) = self._lines.read_bytes(), self._known_head()
        known = hashlib.sha256(content[: self._offset]).digest() == self._known.digest()
        if not known or count < len(self._entries):
            self._forget()  # read all of it again, and find what is wrong
        try:
            self._follow(content[self._offset :], count, last)
        except DamagedFile:
            self._forget()
            raise

    def _follow(self, content: bytes, count: int, last: str) -> None:
        for line in content.splitlines(keepends=True):
            if len(self._entries) >= count and not line.endswith(b"\n"):
                self._cut()  # a crash while it was written
                break
            self._take(self._checked(line), line)
            if len(self._entries) == count and self._hash != last:
                raise self._damaged(f"line {count} is not the one that ledger.head was written for")
        if len(self._entries) < count:
            raise self._damaged(f"it has {len(self._entries)} of the {count} lines that ledger.head knows of")
        if len(self._entries) > count + 1:
            raise self._damaged(f"it has {len(self._entries) - count} lines more than ledger.head knows of")
        if len(self._entries) == count + 1:
            self._write_head()

    def _checked(self, line: bytes) -> Entry:
        number = len(self._entries) + 1
        try:
            values: dict[str, Any] = json.loads(line)
            before = values.pop("before")
            entry = Entry(**values)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise self._damaged(f"line {number} cannot be read") from error
        if before != self._hash or line != self._line(entry, before):
            raise self._damaged(f"line {number} does not follow from the line before it")
        return entry

    def _take(self, entry: Entry, line: bytes) -> None:
        self._entries.append(entry)
        self._known.update(line)
        self._hash, self._offset = sha256(line), self._offset + len(line)

    def _forget(self) -> None:
        self._entries = []
        self._known = hashlib.sha256()
        self._hash, self._offset = BEGINNING, 0

    def _line(self, entry: Entry, before: str) -> bytes:
        return json.dumps(asdict(entry) | {"before": before}, ensure_ascii=False).encode() + b"\n"

    def _cut(self) -> None:
        with explained(self._lines), self._lines.open("r+b") as file:
            file.truncate(self._offset)

    def _known_head(self) -> tuple[int, str]:
        if not self._head.exists():
            return 0, BEGINNING
        found = read_json(self._head)
        if not (isinstance(found, dict) and isinstance(found.get("lines"), int) and isinstance(found.get("hash"), str)):
            raise DamagedFile(f"{self._head} is damaged; put it back from a copy")
        return found["lines"], found["hash"]

    def _write_head(self) -> None:
        write_atomically(self._head, json.dumps({"lines": len(self._entries), "hash": self._hash}), private=True)

    def _damaged(self, what: str) -> DamagedFile:
        return DamagedFile(
            f"the ledger {self._lines} was changed: {what}. This site answers nobody until the file is put back as it "
            "was: what has left it is not known"
        )

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """By one process at a time; in simulation several have the same site."""
        folder = private_folder(self._lines.parent)
        if not self._lines.exists() and any(folder.glob(f"*/{SENT}")):
            raise self._damaged("it is gone, and runs that this site has answered in are still there")
        with explained(folder):
            handle = os.open(folder / "ledger.lock", os.O_RDWR | os.O_CREAT, 0o600)
            if not self._lines.exists():
                os.close(os.open(self._lines, os.O_WRONLY | os.O_CREAT, 0o600))
        try:
            fcntl.flock(handle, fcntl.LOCK_EX)
            yield
        finally:
            os.close(handle)


# -- what follows from it --------------------------------------------------------------------------------------------


def rounds_answered(entries: list[Entry]) -> int:
    """Over all runs; a round that was repeated with other contents counts as often as the step that was asked most."""
    asked: dict[tuple[str, int], dict[str, int]] = {}
    for entry in entries:
        if entry.when == "round":
            steps = asked.setdefault((entry.run, entry.turn), {})
            steps[entry.step] = steps.get(entry.step, 0) + 1
    return sum(max(steps.values()) for steps in asked.values())


def starts_answered(entries: list[Entry]) -> set[str]:
    """The runs whose start has got something from this site that carries no noise."""
    return {entry.run for entry in entries if entry.when == "start" and entry.bytes and not entry.noise}


def separation_spent(entries: list[Entry]) -> float:
    """μ² of all noised vectors that have left, over all runs: `federated.accountant`."""
    return sum(separation(entry.noise, entry.noised) for entry in entries if entry.noised)


def epsilon_spent(entries: list[Entry], delta: float) -> float | None:
    """ε of everything that has left, over all runs; None if anything left that no noise covers."""
    if any(entry.bytes and not entry.noise for entry in entries):
        return None
    return gaussian_epsilon(separation_spent(entries) ** 0.5, delta)


@dataclass(frozen=True)
class Left:
    """What has left a site with one step of one run."""

    run: str
    step: str
    answers: int
    bytes: int
    noised: int
    kept_back: int
    first: str
    last: str


def what_left(entries: list[Entry]) -> list[Left]:
    """By run and step, in the order in which they first appear."""
    groups: dict[tuple[str, str], list[Entry]] = {}
    for entry in entries:
        groups.setdefault((entry.run, entry.step), []).append(entry)
    return [
        Left(
            run,
            step,
            len(found),
            sum(entry.bytes for entry in found),
            sum(entry.noised for entry in found),
            sum(bool(entry.kept_back) for entry in found),
            found[0].time,
            found[-1].time,
        )
        for (run, step), found in groups.items()
    ]
