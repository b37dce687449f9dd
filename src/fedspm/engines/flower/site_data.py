"""A site's rows: a safetensors file that it made, or a function of its own. They never leave the site."""

import json
import re
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.base.errors import DamagedFile, FedSPMError, Refused
from fedspm.base.plugins import working_directory_last
from fedspm.base.tensors import read_tensors, write_tensors
from fedspm.data.arrays import as_input, as_rows
from fedspm.data.federation import Federation
from fedspm.data.images import are_pixels, bytes_as_values
from fedspm.data.part import Part
from fedspm.data.tables.agree import ColumnSummary, summarise
from fedspm.data.tables.schema import TableSchema
from fedspm.data.tables.table import Column, Table, joined


@dataclass(frozen=True)
class SiteRows:
    """Training and test rows of one site, labels as numbers of its own classes. Where its columns have names, x holds a
    table as it is (`data.tables.table.Table`), and vectors are made of it when the sites have agreed on a schema."""

    train: Part
    test: Part
    classes: np.ndarray
    columns: tuple[Column, ...] | None = None

    @classmethod
    def of(cls, x: Any, y: Any, test_x: Any = None, test_y: Any = None) -> "SiteRows":
        """Images that are given as bytes become values from 0 to 1. Columns are called as those of a data frame; test
        rows are matched by these names."""
        rows, labels = as_rows((x, y), "rows")
        held, test_labels = as_rows((rows[:0] if test_x is None else test_x, _or_none(test_y, labels)), "test rows")
        classes, number = np.unique(np.concatenate([labels, test_labels]), return_inverse=True)
        numbers = torch.from_numpy(number.astype(np.int64))
        if isinstance(rows, Table):
            if not isinstance(held, Table):
                raise FedSPMError("test rows have no names of columns, and the rows have; give both as data frames")
            everything = joined(rows, held, "test rows")
            matrix = torch.from_numpy(np.ascontiguousarray(everything.values))
            train, test, columns = matrix[: len(rows)], matrix[len(rows) :], everything.columns
        else:
            rows = bytes_as_values(rows, x)
            columns = None
            train, test = rows, bytes_as_values(as_input(held, rows.shape[1:], "test rows"), test_x)
        return cls(Part(train, numbers[: len(train)]), Part(test, numbers[len(train) :]), classes, columns)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])

    @property
    def pixels(self) -> bool:
        x = self.train.x
        return self.columns is None and bool(x.numel()) and are_pixels((float(x.min()), float(x.max())))

    def summaries(self, min_count: int) -> tuple[ColumnSummary, ...] | None:
        """What the site tells of its columns, if they have names."""
        return None if self.columns is None else summarise(Table(self.columns, self.train.x.numpy()), min_count)

    def encoded(self, classes: np.ndarray, schema: TableSchema | None) -> tuple[Part, Part]:
        """Both parts with the numbers that all sites of a run use for the classes, and the vectors that they agreed
        on."""
        order = {label: i for i, label in enumerate(classes.tolist())}
        if unknown := [label for label in self.classes.tolist() if label not in order]:
            raise FedSPMError(f"the server does not know this site's class {unknown[0]!r}")
        if (self.columns is None) != (schema is None):
            known = f"the columns {', '.join(schema.names[:12])}" if schema else "columns without names"
            raise Refused(f"the run has {known}, and this site {'none' if schema else 'columns with names'}")
        if self.columns is not None and schema is not None:
            _require_own_kinds(self.columns, schema)
        number = torch.tensor([order[label] for label in self.classes.tolist()], dtype=torch.long)
        return self._part(self.train, number, schema), self._part(self.test, number, schema)

    def _part(self, part: Part, number: Tensor, schema: TableSchema | None) -> Part:
        x = part.x
        if schema is not None and self.columns is not None:
            x = schema.encode(Table(self.columns, x.numpy()), "rows")
        return Part(x, number[part.y])


def _require_own_kinds(columns: tuple[Column, ...], schema: TableSchema) -> None:
    """Refuse a schema that turns this site's numbers into levels, which no agreement does: with a 0 or 1 for every
    value, products of features would say which values go together in single rows."""
    own = {column.name: column.kind for column in columns}
    for column in schema.columns:
        kind = own.get(column.name, "empty")
        if column.kind == "category" and kind not in ("category", "empty"):
            raise Refused(f"the run takes the column {column.name!r} for words, and this site has a {kind} there")


def _or_none(labels: Any, like: np.ndarray) -> Any:
    return like[:0] if labels is None else labels


def is_function(source: str) -> bool:
    """`package.module:function`; a path may have a colon in it too."""
    return re.fullmatch(r"[\w.]+:\w+", source) is not None


def load_rows(source: str) -> SiteRows:
    """`rows.safetensors`, or `package.module:function` that returns (x, y) or (x, y, test x, test y)."""
    if is_function(source):
        return _called(source)
    try:
        tensors, about = read_tensors(Path(source))
        x, y, test_x, test_y = (tensors[name] for name in ("x", "y", "test_x", "test_y"))
        classes, said = np.asarray(json.loads(about["classes"])), json.loads(about.get("columns", "null"))
        columns = None if said is None else tuple(Column(name, kind, tuple(levels)) for name, kind, levels in said)
    except (KeyError, ValueError, TypeError) as error:
        raise DamagedFile(f"{source} is not a file of rows that `save_rows` wrote: {error}") from error
    if columns is None:
        return SiteRows(Part(as_input(x), y), Part(as_input(test_x), test_y), classes)
    if x.ndim != 2 or x.shape[1] != len(columns):
        raise DamagedFile(f"{source} names {len(columns)} columns, its rows have the shape {tuple(x.shape[1:])}")
    return SiteRows(Part(x.double(), y), Part(test_x.double(), test_y), classes, columns)


def save_rows(path: str | Path, x: Any, y: Any, test_x: Any = None, test_y: Any = None) -> None:
    """Write a site's rows where its site.toml says: `save_rows("rows.safetensors", x, y, test_x, test_y)`. Nobody else
    may read the file; the columns of a data frame keep their names."""
    write_rows(Path(path), SiteRows.of(x, y, test_x, test_y))


def write_rows(path: Path, rows: SiteRows) -> None:
    tensors: dict[str, Tensor] = {"x": rows.train.x, "y": rows.train.y, "test_x": rows.test.x, "test_y": rows.test.y}
    columns = rows.columns and [[column.name, column.kind, column.levels] for column in rows.columns]
    about = {"classes": json.dumps(rows.classes.tolist()), "columns": json.dumps(columns)}
    write_tensors(path, tensors, about)


def rows_of(federation: Federation, i: int) -> SiteRows:
    """What client i of a federation on this machine would have at its site."""
    train = federation.train[i]
    test = federation.test[i] if federation.test else Part(train.x[:0], train.y[:0])
    if federation.schema is None:
        return SiteRows(train, test, federation.classes)
    tables = [federation.schema.decode(part.x) for part in (train, test)]
    raw = [Part(torch.from_numpy(table.values), part.y) for table, part in zip(tables, (train, test), strict=True)]
    return SiteRows(raw[0], raw[1], federation.classes, tables[0].columns)


def _called(source: str) -> SiteRows:
    module, _, function = source.partition(":")
    try:
        with working_directory_last():
            return SiteRows.of(*getattr(import_module(module), function)())
    except FedSPMError:
        raise
    except Exception as error:  # whatever a function of the site's own does wrong
        raise DamagedFile(f"rows = {source!r} cannot be loaded: {error!r}") from error
