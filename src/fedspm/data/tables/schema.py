"""What the tables of all clients have in common, and how a row of one becomes the vector that a model sees.

It is part of a model as its standardising statistics are: the manifest of a run, the cards of a bundle and the
description that sites get hold it, and every query is encoded by it. Of a number a vector holds the number, of a
category one 0 or 1 for every level; a missing value is NaN, which the model takes for the mean, and where values are
often missing a 0 or 1 says so. Levels that nobody has or that too few rows have are one more level, `other`; where
training rows had none of these, such a value counts as missing.
"""

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from pydantic import Field, ValidationError
from torch import Tensor

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.schema import Strict, problem
from fedspm.data.tables.cells import numbers_of, same_level
from fedspm.data.tables.table import Column, Table, as_texts, levels_of

FITTING = {  # kinds of a column in a table that may stand where a model expects another
    "number": {"number", "boolean", "empty"},
    "boolean": {"boolean", "number", "empty"},
    "date": {"date", "empty"},
    "category": {"category", "number", "boolean", "empty"},
}
EXPECTED = {"number": "a number", "boolean": "true or false", "date": "a date such as 2020-12-31"}
FEW = 12  # names in a sentence


class SchemaColumn(Strict):
    """A column that models use."""

    name: str
    kind: Literal["number", "boolean", "category", "date"] = "number"
    levels: tuple[str, ...] = Field((), description="a category's: each is held by enough rows of a client")
    other: bool = Field(False, description="a category's: enough rows hold none of the levels")
    missing: bool = Field(False, description="enough rows lack the value, so that it counts whether one is there")

    @property
    def rest(self) -> str:
        """What stands for all other levels: a word that is none of them."""
        word = "other"
        while word in self.levels:
            word += "_"
        return word

    @property
    def features(self) -> list[str]:
        """Names of the elements of a vector that come from this column."""
        found = [self.name]
        if self.kind == "category":
            found = [f"{self.name}={level}" for level in (*self.levels, *[self.rest] * self.other)]
        return found + [f"{self.name} is missing"] * self.missing


class TableSchema(Strict):
    """The columns that all clients have, in the order in which vectors hold them."""

    columns: tuple[SchemaColumn, ...]
    dropped: dict[str, str] = Field({}, description="columns that are left out, and why")

    @classmethod
    def of_numbers(cls, names: Iterable[str]) -> "TableSchema":
        """Of vectors whose elements have these names: every row is its own vector."""
        return cls(columns=tuple(SchemaColumn(name=name) for name in names))

    @classmethod
    def parse(cls, content: Any, where: str) -> "TableSchema | None":
        """What `model_dump` wrote; None of None."""
        try:
            return None if content is None else cls.model_validate(content)
        except ValidationError as error:
            raise DamagedFile(f"{where} is damaged at table.{problem(error, cls)}") from error

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the elements of a vector."""
        return tuple(name for column in self.columns for name in column.features)

    @cached_property
    def flags(self) -> tuple[bool, ...]:
        """Which elements of a vector are 0 or 1 by construction: levels, and whether a value is missing."""
        return tuple(
            k > 0 or column.kind in ("category", "boolean")
            for column in self.columns
            for k in range(len(column.features))
        )

    @property
    def is_plain(self) -> bool:
        """Is every row its own vector?"""
        return all(column.kind in ("number", "boolean") and not column.missing for column in self.columns)

    @property
    def takes_arrays(self) -> bool:
        """Are all columns numbers, so that rows may come as an array?"""
        return all(column.kind in ("number", "boolean") for column in self.columns)

    # -- rows to vectors -----------------------------------------------------------------------------------------------

    def encode(self, table: Table, where: str = "x") -> Float[Tensor, "n features"]:
        """The vectors of a table's rows. Columns are matched by name; what a model does not use is left out."""
        found = self.find(table.names, where)
        encoded = np.empty((len(table), len(self.features)), np.float32)
        start = 0
        for column, place in zip(self.columns, found, strict=True):
            given, values = table.columns[place], table.values[:, place]
            if given.kind == "category" and column.kind == "number":  # words among few numbers, such as <0.3
                given, values = _as_numbers(given, values)
            if given.kind not in FITTING[column.kind]:
                raise FedSPMError(f"{where}: column {column.name!r} {_unfit(given, values, column.kind)}")
            end = start + len(column.features)
            _encode(column, given, values, encoded[:, start:end])
            start = end
        if np.isinf(encoded).any():
            row, k = np.argwhere(np.isinf(encoded))[0].tolist()
            raise FedSPMError(f"{where}: row {row + 1} has a value of {self.features[k]!r} that 32 bits cannot hold")
        return torch.from_numpy(encoded)

    def encode_array(self, x: np.ndarray, where: str = "x") -> Float[Tensor, "n features"]:
        """The vectors of rows that come without names, in the order of this schema; NaN where a value is missing."""
        self.require_arrays(where)
        if x.ndim != 2 or x.shape[1] != len(self.columns):
            raise FedSPMError(
                f"{where}: rows have shape {tuple(x.shape[1:])}, the model was trained on ({len(self.columns)},): "
                f"{self._few(self.names)}"
            )
        return self.encode(Table.of_numbers(self.names, x), where)

    def require_arrays(self, where: str) -> None:
        """Refuse rows without names where some columns are no numbers."""
        if not self.takes_arrays:
            raise FedSPMError(
                f"{where}: the model was trained on a table with columns that are no numbers; give rows with names of "
                f"columns: {self._few(self.names)}"
            )

    def find(self, names: Sequence[str], where: str) -> list[int]:
        """Where the columns of this schema are among those of a table."""
        place = {name: k for k, name in reversed(list(enumerate(names)))}  # the first of a name that is twice
        if lacking := [name for name in self.names if name not in place]:
            raise FedSPMError(
                f"{where}: there is no column {lacking[0]!r}, on which the model was trained; there are "
                f"{self._few(names)}"
            )
        return [place[name] for name in self.names]

    def decode(self, x: Tensor) -> Table:
        """The table that vectors came from, with `rest` for all levels that vectors do not tell apart."""
        rows = x.detach().cpu().double().numpy()
        columns, values, start = [], np.empty((len(rows), len(self.columns))), 0
        for k, column in enumerate(self.columns):
            part = rows[:, start : start + len(column.features)]
            start += len(column.features)
            levels: tuple[str, ...] = ()
            if column.kind == "category":
                levels = (*column.levels, *[column.rest] * column.other)
                known = (part[:, : len(levels)] == 1).any(1)
                values[:, k] = np.where(known, part[:, : len(levels)].argmax(1) if levels else 0, np.nan)
            else:
                values[:, k] = part[:, 0]
            columns.append(Column(column.name, column.kind, levels))
        return Table(tuple(columns), values)

    def _few(self, names: Sequence[str]) -> str:
        return ", ".join(names[:FEW]) + (", …" if len(names) > FEW else "")


def _encode(column: SchemaColumn, given: Column, values: np.ndarray, out: np.ndarray) -> None:
    """The elements that one column has in the vectors of all rows."""
    missing = np.isnan(values)
    if column.kind != "category":
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is named
            out[:, 0] = values
    else:
        levels, codes = levels_of(given, values)
        place = {level: k for k, level in enumerate(column.levels)}
        width = len(column.levels) + column.other
        target = np.array([place.get(same_level(level), len(place)) for level in levels] + [-1])[codes]
        out[:, :width] = target[:, None] == np.arange(width)
        if not column.missing:
            out[missing, :width] = np.nan
        out[target == width, :width] = np.nan  # a level that no training row had
    if column.missing:
        out[:, -1] = missing


def _as_numbers(given: Column, values: np.ndarray) -> tuple[Column, np.ndarray]:
    """A column of words as the numbers that they are; as it is, if one is none."""
    levels, codes = levels_of(given, values)
    numbers = numbers_of(levels)
    if np.isnan(numbers).any():
        return given, values
    return Column(given.name, "number"), np.append(numbers, np.nan)[codes]


def _unfit(given: Column, values: np.ndarray, kind: str) -> str:
    if given.kind == "category":
        cells = [(row, level) for row, level in enumerate(as_texts(given, values), 1) if level is not None]
        row, level = next((cell for cell in cells if not _fits(cell[1], kind)), cells[0])
        return f"holds {level!r}, which is not {EXPECTED.get(kind, 'one of its levels')} (row {row})"
    return f"is a {given.kind}, the model was trained on a {kind}"


def _fits(level: str, kind: str) -> bool:
    try:
        return Table.of({"": [level]}, "").columns[0].kind in FITTING[kind]
    except FedSPMError:
        return False
