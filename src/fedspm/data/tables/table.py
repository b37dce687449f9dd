"""A table in memory: columns with names, each of one kind, and one matrix that holds them all."""

import datetime
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np

from fedspm.base.errors import FedSPMError
from fedspm.data.tables.cells import BadCells, Cells, level_of, read_cells

Kind = Literal["number", "boolean", "category", "date", "empty"]  # empty: not a single value is known


@dataclass(frozen=True)
class Column:
    """Name and kind of a column. The values of a category are numbers of its levels."""

    name: str
    kind: Kind
    levels: tuple[str, ...] = ()


@dataclass(frozen=True, repr=False)
class Table:
    """`values` is (rows, columns): numbers, 0 and 1, days since 1970, numbers of levels; NaN where one is missing."""

    columns: tuple[Column, ...]
    values: np.ndarray

    def __len__(self) -> int:
        return len(self.values)

    def __repr__(self) -> str:
        """Never the rows themselves: a notebook prints it."""
        return f"Table({len(self):,} rows of {len(self.columns)} columns)"

    def __getitem__(self, rows: Any) -> "Table":
        return replace(self, values=self.values[rows])

    def __iter__(self) -> Iterator[tuple[Column, np.ndarray]]:
        yield from zip(self.columns, self.values.T, strict=True)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def is_numeric(self) -> bool:
        return all(column.kind in ("number", "boolean", "empty") for column in self.columns)

    def numbers(self, where: str) -> np.ndarray:
        """The rows as 32-bit numbers, for a model that knows no names; words and dates are refused."""
        if words := [column.name for column in self.columns if column.kind not in ("number", "boolean", "empty")]:
            raise FedSPMError(f"{where}: column {words[0]!r} holds no numbers, and the model knows no names of columns")
        return np.ascontiguousarray(self.values, np.float32)

    def records(self) -> list[dict[str, Any]]:
        """Rows as a person or JSON would write them, None where a value is missing."""
        cells = [_written(column, values) for column, values in self]
        return [dict(zip(self.names, row, strict=True)) for row in zip(*cells, strict=True)]

    def with_categories(self, names: Collection[str]) -> "Table":
        """The same rows, in which values of these columns are names of levels."""
        columns, values = list(self.columns), self.values.copy()
        for k, column in enumerate(self.columns):
            if column.name in names and column.kind not in ("category", "empty"):
                levels, codes = levels_of(column, self.values[:, k])
                columns[k] = Column(column.name, "category", levels)
                values[:, k] = np.where(codes < 0, np.nan, codes)
        return Table(tuple(columns), values)

    @classmethod
    def of(cls, columns: Mapping[str, Any], where: str, categories: Iterable[str] = ()) -> "Table":
        """From named columns of any kind; what cannot be read is a `FedSPMError`."""

        def refuse(name: str, why: FedSPMError) -> None:
            raise FedSPMError(f"{where}: column {name!r} {why}")

        return read_columns(columns, where, categories, refuse)

    @classmethod
    def of_frame(cls, frame: Any, where: str) -> "Table":
        """A data frame of pandas or polars."""
        names = [str(name) for name in frame.columns]
        if twice := [name for name in names if names.count(name) > 1]:
            raise FedSPMError(f"{where}: two columns are called {twice[0]!r}; names must differ")
        return cls.of({str(name): frame[name] for name in frame.columns}, where)

    @classmethod
    def of_numbers(cls, names: Sequence[str], values: np.ndarray) -> "Table":
        """A matrix whose columns have these names."""
        return cls(tuple(Column(name, "number") for name in names), np.asarray(values, np.float64))


def read_columns(
    columns: Mapping[str, Any], where: str, categories: Iterable[str], problem: Callable[[str, FedSPMError], None]
) -> Table:
    """A table of named columns. One that holds lists becomes a column for each element: x[0], x[1], … `problem` is told
    the name of a column that cannot be read, and why; cells that cannot be read count as missing."""
    chosen = set(categories)
    found: list[Column] = []
    values: list[np.ndarray] = []
    for name, given in columns.items():
        try:
            cells = read_cells(given, name in chosen)
        except BadCells as error:
            problem(name, error)
            cells = error.cells
        except FedSPMError as error:
            problem(name, error)
            continue
        if isinstance(cells, Cells):
            found.append(Column(name, cells.kind, cells.levels))
            values.append(cells.values)
        else:
            found += [Column(f"{name}[{k}]", "number") for k in range(cells.shape[1])]
            values += list(cells.T)
    if len(lengths := {len(each) for each in values}) > 1:
        raise FedSPMError(f"{where}: columns have different lengths: {sorted(lengths)}")
    rows = max((len(given) for given in columns.values()), default=0)
    matrix = np.empty((rows, len(values)), np.float64, order="F")
    for k in range(len(values)):
        matrix[:, k], values[k] = values[k], values[k][:0]  # what is copied is freed at once
    return Table(tuple(found), matrix)


def joined(one: Table, other: Table, where: str) -> Table:
    """The rows of both; columns are matched by name, and kinds that differ become one that holds both."""
    if set(one.names) != set(other.names):
        raise FedSPMError(f"{where}: one part has the columns {', '.join(one.names)}, another {', '.join(other.names)}")
    if one.names != other.names:
        order = [other.names.index(name) for name in one.names]
        other = Table(tuple(other.columns[k] for k in order), other.values[:, order])
    columns, values = [], np.concatenate([one.values, other.values])
    for k, (left, right) in enumerate(zip(one.columns, other.columns, strict=True)):
        kind = common_kind({left.kind, right.kind})
        if kind is None:
            kinds = f"a {left.kind} in one part and a {right.kind} in another"
            raise FedSPMError(f"{where}: column {left.name!r} is {kinds}")
        if kind != "category":
            columns.append(Column(left.name, kind))
            continue
        texts = [*as_texts(left, one.values[:, k]), *as_texts(right, other.values[:, k])]
        levels = tuple(sorted({text for text in texts if text is not None}))
        number = {level: float(code) for code, level in enumerate(levels)} | {None: np.nan}
        values[:, k] = [number[text] for text in texts]
        columns.append(Column(left.name, kind, levels))
    return Table(tuple(columns), values)


def common_kind(kinds: set[Kind]) -> Kind | None:
    """The kind that can hold values of all these; None if none can."""
    some = kinds - {"empty"}
    if len(some) < 2:
        return next(iter(some), "empty")
    if "date" in some:
        return None
    return "category" if "category" in some else "number"


def levels_of(column: Column, values: np.ndarray) -> tuple[tuple[str, ...], np.ndarray]:
    """A column as a category: its levels, and the number of the level in each row, -1 where it is missing."""
    known = ~np.isnan(values)
    codes = np.full(len(values), -1)
    if column.kind == "category":
        codes[known] = values[known]
        return column.levels, codes
    distinct, codes[known] = np.unique(values[known], return_inverse=True)
    return tuple(level_of(value, column.kind) for value in distinct.tolist()), codes


def _written(column: Column, values: np.ndarray) -> list[Any]:
    if column.kind in ("number", "empty"):
        return [None if np.isnan(value) else value for value in values.tolist()]
    if column.kind == "boolean":
        return [None if np.isnan(value) else bool(value) for value in values.tolist()]
    if column.kind == "date":
        start = datetime.datetime(1970, 1, 1)
        moments = [None if np.isnan(day) else start + datetime.timedelta(days=day) for day in values.tolist()]
        return [moment and moment.isoformat(" ", "seconds") for moment in moments]
    return as_texts(column, values)


def as_texts(column: Column, values: np.ndarray) -> list[str | None]:
    """What a person would write into the cells of a column; None where a value is missing."""
    levels, codes = levels_of(column, values)
    return [None if code < 0 else levels[code] for code in codes.tolist()]
