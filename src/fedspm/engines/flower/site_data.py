"""A site's rows: a safetensors file that it made, or a function of its own. They never leave the site."""

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.base.errors import DamagedFile, FedSPMError, Refused
from fedspm.base.plugins import working_directory_last
from fedspm.base.tensors import read_tensors, write_tensors
from fedspm.data.arrays import as_input, as_rows, in_order, named_columns, places, require_finite
from fedspm.data.federation import Federation
from fedspm.data.images import are_pixels, bytes_as_values
from fedspm.data.part import Part


@dataclass(frozen=True)
class SiteRows:
    """Training and test rows of one site, labels as numbers of its own classes; its features may have names."""

    train: Part
    test: Part
    classes: np.ndarray
    columns: tuple[str, ...] | None = None

    @classmethod
    def of(cls, x: Any, y: Any, test_x: Any = None, test_y: Any = None) -> "SiteRows":
        """Images that are given as bytes become values from 0 to 1. Features are called as the columns of a data frame;
        test rows are put into the same order by them."""
        columns = named_columns(x)
        if columns and (twice := [name for name in columns if columns.count(name) > 1]):
            raise FedSPMError(f"rows: two columns are called {twice[0]!r}; names must differ")
        rows, labels = as_rows((x, y), "rows")
        rows = bytes_as_values(rows, x)
        test_x = in_order(test_x, columns, "test rows")
        held = rows[:0] if test_x is None else as_input(test_x, rows.shape[1:], "test rows")
        held = bytes_as_values(held, test_x)
        held, test_labels = as_rows((held, labels[:0] if test_y is None else test_y), "test rows")
        require_finite(rows, "rows")
        require_finite(held, "test rows")
        classes, number = np.unique(np.concatenate([labels, test_labels]), return_inverse=True)
        numbers = torch.from_numpy(number.astype(np.int64))
        return cls(Part(rows, numbers[: len(rows)]), Part(held, numbers[len(rows) :]), classes, columns)

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.train.x.shape[1:])

    @property
    def pixels(self) -> bool:
        x = self.train.x
        return bool(x.numel()) and are_pixels((float(x.min()), float(x.max())))

    def encoded(self, classes: np.ndarray) -> tuple[Part, Part]:
        """Both parts with the numbers that all sites of a run use for the classes."""
        order = {label: i for i, label in enumerate(classes.tolist())}
        if unknown := [label for label in self.classes.tolist() if label not in order]:
            raise FedSPMError(f"the server does not know this site's class {unknown[0]!r}")
        number = torch.tensor([order[label] for label in self.classes.tolist()], dtype=torch.long)
        return Part(self.train.x, number[self.train.y]), Part(self.test.x, number[self.test.y])

    def arranged(self, columns: Sequence[str] | None) -> "SiteRows":
        """The same rows, with the features in the order that all sites of a run use."""
        own = self.columns
        if own == (columns and tuple(columns)):
            return self
        if not own or not columns or set(own) != set(columns):
            raise Refused(f"the run has {listed(columns)}, and this site {listed(own)}")
        order = places(columns, own, "rows")
        train, test = (Part(part.x[:, order].contiguous(), part.y) for part in (self.train, self.test))
        return replace(self, train=train, test=test, columns=tuple(columns))


def listed(columns: Sequence[str] | None) -> str:
    """Names of columns for a sentence."""
    if not columns:
        return "columns without names"
    return f"the columns {', '.join(columns[:12])}{', …' if len(columns) > 12 else ''}"


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
        classes, names = np.asarray(json.loads(about["classes"])), json.loads(about.get("columns", "null"))
    except (KeyError, ValueError) as error:
        raise DamagedFile(f"{source} is not a file of rows that `save_rows` wrote: {error}") from error
    train, test = Part(as_input(x), y), Part(as_input(test_x), test_y)
    columns = tuple(map(str, names)) if names else None
    if columns and (len(columns),) != tuple(train.x.shape[1:]):
        raise DamagedFile(f"{source} names {len(columns)} columns, its rows have the shape {tuple(train.x.shape[1:])}")
    return SiteRows(train, test, classes, columns)


def save_rows(path: str | Path, x: Any, y: Any, test_x: Any = None, test_y: Any = None) -> None:
    """Write a site's rows where its site.toml says: `save_rows("rows.safetensors", x, y, test_x, test_y)`. Nobody else
    may read the file; the columns of a data frame keep their names."""
    write_rows(Path(path), SiteRows.of(x, y, test_x, test_y))


def write_rows(path: Path, rows: SiteRows) -> None:
    tensors: dict[str, Tensor] = {"x": rows.train.x, "y": rows.train.y, "test_x": rows.test.x, "test_y": rows.test.y}
    about = {"classes": json.dumps(rows.classes.tolist()), "columns": json.dumps(rows.columns)}
    write_tensors(path, tensors, about)


def rows_of(federation: Federation, i: int) -> SiteRows:
    """What client i of a federation on this machine would have at its site."""
    train = federation.train[i]
    test = federation.test[i] if federation.test else Part(train.x[:0], train.y[:0])
    return SiteRows(train, test, federation.classes, federation.columns)


def _called(source: str) -> SiteRows:
    module, _, function = source.partition(":")
    try:
        with working_directory_last():
            return SiteRows.of(*getattr(import_module(module), function)())
    except FedSPMError:
        raise
    except Exception as error:  # whatever a function of the site's own does wrong
        raise DamagedFile(f"rows = {source!r} cannot be loaded: {error!r}") from error
