"""Somebody's own data as it was found: rows by client, what was assumed, and everything that is wrong with them."""

import json
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.base.layers import parse_assignments
from fedspm.data.tables.table import Table, joined

Labelled = tuple[Tensor | np.ndarray | Table, np.ndarray]  # x and its labels
SIDES = (8, 512)  # of images, in pixels


@dataclass(frozen=True)
class ReadOptions:
    """How to read it; what is not said is found by name (docs/own-data.md)."""

    client_column: str | None = None
    label_column: str | None = None
    image_column: str | None = None
    split_column: str | None = None
    ignore: tuple[str, ...] = ()
    categories: tuple[str, ...] = ()
    skip: bool = False  # leave rows and images out that cannot be read
    size: int | None = None
    client: str | None = None  # whose rows these are, where the data does not say


def checked_size(size: Any) -> int | None:
    """What somebody asks for in Python has the bounds that data.size has in a configuration."""
    if size is not None and not (isinstance(size, int | np.integer) and SIDES[0] <= size <= SIDES[1]):
        raise FedSPMError(
            f"size is the side of an image in pixels, a whole number from {SIDES[0]} to {SIDES[1]}; it is {size!r}"
        )
    return None if size is None else int(size)


@dataclass
class Draft:
    """What a reader found in somebody's data: not a federation yet, because it may have problems."""

    where: str
    form: str
    train: dict[str, Labelled] = field(default_factory=dict)
    test: dict[str, Labelled] = field(default_factory=dict)
    categories: tuple[str, ...] = ()  # columns of tables whose numbers stand for levels
    remarks: list[str] = field(default_factory=list)  # what was assumed
    problems: list[str] = field(default_factory=list)  # what has to change before it can be trained on
    skip: bool = False  # rows and images that cannot be read are no problem, but left out
    skipped: dict[str, int] = field(default_factory=dict)  # what was left out, and how many rows it is

    def require_sound(self) -> None:
        """Raise the first of the problems, if there are any, and say how to see the others."""
        if self.problems:
            more = len(self.problems) - 1
            where = f"; `fedspm data check {quote(self.where)}` lists them" if Path(self.where).exists() else ""
            raise FedSPMError(self.problems[0] + (f" (and {more} more{where})" if more else ""))

    def fault(self, sentence: str, rows: int = 1) -> None:
        """Something is wrong with single rows or images, which can be done without."""
        if self.skip:
            self.skipped[sentence] = rows
        else:
            self.problems.append(f"{sentence}; to leave such rows out: --set data.skip=true")

    def leave_out(self, names: Sequence[str]) -> list[str]:
        """Forget these clients; returns those that are not here."""
        for name in names:
            self.test.pop(name, None)
        return [name for name in names if self.train.pop(name, None) is None]

    def add(
        self, x: Tensor | np.ndarray | Table, labels: np.ndarray, clients: Sequence[str], splits: Sequence[str]
    ) -> None:
        """Rows of many clients, in any order."""
        rows: dict[tuple[str, str], list[int]] = defaultdict(list)
        for j, key in enumerate(zip(splits, clients, strict=True)):
            rows[key].append(j)
        for (split, client), mine in rows.items():
            together = mine[-1] - mine[0] + 1 == len(mine)  # then a view will do
            rows_of = slice(mine[0], mine[-1] + 1) if together else mine
            part = self.test if split == "test" else self.train
            part[client] = self._joined(part.get(client), (x[rows_of], labels[rows_of]))

    def _joined(self, one: Labelled | None, other: Labelled) -> Labelled:
        if one is None:
            return other
        labels = np.concatenate([one[1], other[1]])
        if isinstance(one[0], Table) and isinstance(other[0], Table):
            return joined(one[0], other[0], self.where), labels
        return torch.cat([torch.as_tensor(x) for x in (one[0], other[0])]), labels

    def labels(
        self, values: Iterable[Any], where: str, numbers: Callable[[Sequence[int]], Sequence[int]] = list
    ) -> np.ndarray:
        """Labels as text; rows without one, or with a measurement in its place, are a problem. `numbers` are those
        that rows have for a reader."""
        texts = texts_of(values)
        if missing := [j + 1 for j, text in enumerate(texts) if text is None]:
            self.fault(f"{where}: {listed(numbers(missing))} no label; label it or leave it out", len(missing))
        if odd := next((text for text in set(texts) if text and re.fullmatch(r"-?\d*[.,]\d*[1-9]\d*", text)), None):
            self.problems.append(f"{where}: {odd} is not a label: labels are whole numbers or words")
        return np.array([text or "" for text in texts], dtype=str)

    def finish(self) -> "Draft":
        """Clients in a fixed order, labels of one kind, and a word about clients that only test."""
        for name in sorted(set(self.test) - set(self.train), key=natural):
            self.problems.append(f"{self.where}: client {name!r} has test rows and no training rows")
        order = sorted(self.train, key=natural)
        self.train = {name: self.train[name] for name in order}
        self.test = {name: self.test[name] for name in order if name in self.test}
        parts = [*self.train.values(), *self.test.values()]
        if parts:
            kinds = as_kind(np.concatenate([np.asarray(y).astype(str) for _, y in parts]).tolist())
            pieces = iter(np.split(kinds, np.cumsum([len(y) for _, y in parts])[:-1]))
            self.train = {name: (x, next(pieces)) for name, (x, _) in self.train.items()}
            self.test = {name: (x, next(pieces)) for name, (x, _) in self.test.items()}
        return self


def ignoring(column: str) -> str:
    """How to leave a column out, as it can be typed."""
    return _assigned("data.ignore", [column])


def as_category(column: str) -> str:
    """What to do if it was meant to hold words."""
    return f"if its values are names: {_assigned('data.categories', [column])}"


def leaving_out(clients: Sequence[str]) -> str:
    """How to leave clients out, as it can be typed."""
    return _assigned("data.without", clients)


def _assigned(key: str, names: Sequence[str]) -> str:
    text = ",".join(names)
    if any("," in name for name in names) or parse_assignments([f"name={text}"]) != {"name": text}:
        text = json.dumps(names, ensure_ascii=False)
    return f"--set {quote(f'{key}={text}')}"


def natural(name: str) -> tuple[list[tuple[int, int, str]], str]:
    """A key that puts client-2 before client-10."""
    pieces = [piece for piece in re.split(r"(\d+)", name.casefold()) if piece]
    return [(0, int(piece), "") if piece.isdecimal() else (1, 0, piece) for piece in pieces], name


def as_kind(labels: Sequence[str]) -> np.ndarray:
    """Whole numbers if every label is one (007 is not: it would lose its zeros), strings otherwise."""
    plain = {label: re.sub(r"\.0+$", "", label) for label in set(labels)}
    if plain and all(re.fullmatch(r"-?(0|[1-9]\d{0,17})", label) for label in plain.values()):
        number = {label: int(text) for label, text in plain.items()}
        return np.array([number[label] for label in labels], np.int64)
    return np.asarray(labels, dtype=str)


def listed(rows: Sequence[int]) -> str:
    """`row 7 has`, or `12 rows, row 7 first, have`."""
    return f"row {rows[0]} has" if len(rows) == 1 else f"{len(rows)} rows, row {rows[0]} first, have"


def bare(value: Any) -> Any:
    """What an array or a tensor without dimensions holds: data sets in torch's format have one for every number."""
    return value.item() if isinstance(value, np.ndarray | Tensor) and value.ndim == 0 else value


def text_of(value: Any) -> str | None:
    """A label or a name as text; None if there is none."""
    value = bare(value)
    if value is None or (isinstance(value, float | np.floating) and np.isnan(value)):
        return None
    text = value.decode(errors="replace") if isinstance(value, bytes) else str(value)
    return text.strip() or None


def texts_of(values: Iterable[Any]) -> list[str | None]:
    """`text_of` every value; of texts, each is looked at once."""
    known: dict[str, str | None] = {}
    found = []
    for value in values:
        if type(value) is not str:
            found.append(text_of(value))
            continue
        if value not in known:
            known[value] = text_of(value)
        found.append(known[value])
    return found
