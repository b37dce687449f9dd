"""Rows whose columns a caller names: put in the order that the model was trained on, or refused by name."""

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.tables.cells import LARGEST
from fedspm.data.tables.schema import SchemaColumn, TableSchema
from fedspm.data.tables.table import Table
from fedspm.serve.bundle import HEADER
from fedspm.serve.http.problem import HTTPProblem

KEY = "columns"  # of the metadata of tensors: a JSON list of names, as the Python client sends it
NAMELESS = "the columns of this model have no names; send a row as a list of its numbers"
MIXED = "all rows of x must be either lists of numbers or objects with a value for every column"


def header_limit(columns: Sequence[str] | None) -> int:
    """Bytes that a safetensors header may have: those of a nameless one, and room for the names with every quote
    escaped twice."""
    return HEADER + 4 * len(joined_names(columns))


def joined_names(columns: Sequence[str] | None) -> str:
    """All names, quoted as in JSON, in one string: what a body that names every column must hold at least."""
    return "".join(map(json.dumps, columns or ()))


def tensor_in_order(x: Tensor, metadata: dict[str, str], table: TableSchema | None) -> Tensor:
    """The tensor with its columns in the model's order, if the caller named them and the model knows names."""
    if table is None or KEY not in metadata:
        return x
    try:
        found = json.loads(metadata[KEY])
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, list) or not all(isinstance(name, str) for name in found):
        raise HTTPProblem(422, f"the metadata `{KEY}` must be a JSON list of names")
    if x.ndim not in (1, 2) or x.shape[-1] != len(found):
        values = x.shape[-1] if x.ndim else 0
        raise HTTPProblem(422, f"the metadata `{KEY}` has {len(found)} names for rows of {values} values")
    order = _order(table, found, "x")
    return x if order == list(range(len(order))) else x[..., order]


def vectors_from_array(x: Any, table: TableSchema | None) -> Any:
    """Rows of numbers as vectors: as they are, if every row is its own."""
    if table is None or table.is_plain:
        return x
    rows = np.asarray(x)
    try:
        found = table.encode_array(rows[None] if rows.ndim == 1 else rows).numpy()
    except FedSPMError as error:
        raise HTTPProblem(422, str(error)) from error
    return found[0] if rows.ndim == 1 else found


def rows_from_objects(x: dict[str, Any] | list[Any], table: TableSchema | None) -> np.ndarray:
    """A row that was sent as a JSON object, or a list of such rows, as vectors of the model."""
    if table is None:
        raise HTTPProblem(422, NAMELESS)
    single = isinstance(x, dict)
    rows: list[Any] = [x] if single else list(x)
    if not all(isinstance(row, dict) for row in rows):
        raise HTTPProblem(422, MIXED)
    for j, row in enumerate(rows):
        where = "x" if single else f"x, row {j + 1}"
        _order(table, list(row), where)
        for column in table.columns:
            _require_cell(row[column.name], column, where)
    cells = {name: [row[name] for row in rows] for name in table.names}
    categories = [column.name for column in table.columns if column.kind == "category"]
    try:
        found = table.encode(Table.of(cells, "x", categories)).numpy()
    except FedSPMError as error:
        raise HTTPProblem(422, str(error)) from error
    return found[0] if single else found


def _order(table: TableSchema, found: Sequence[str], where: str) -> list[int]:
    """Where the model's columns are among those found; others are refused, unless training left them out too."""
    try:
        order = table.find(found, where)
    except FedSPMError as error:
        raise HTTPProblem(422, str(error)) from error
    if len(found) > len(order):
        known = {*table.names, *table.dropped}
        other = next((name for name in found if name not in known), None)
        if other is not None:
            raise HTTPProblem(422, f"{where}: the model was not trained on a column {other!r}; leave it out")
        if len(set(found)) < len(found):
            raise HTTPProblem(422, f"{where}: a column is named twice; leave it out")
    return order


def _require_cell(value: Any, column: SchemaColumn, where: str) -> None:
    """Refuse lists and objects, words where numbers are, and numbers that are none."""
    if value is None:
        return
    kinds = (int, float) if column.kind == "number" else (int, float, bool, str)
    if type(value) not in kinds:  # a bool is an int to Python
        expected = "a number" if column.kind == "number" else "a single value"
        raise HTTPProblem(422, f"{where}: {column.name!r} is not {expected}")
    if isinstance(value, int | float) and not abs(value) <= LARGEST:
        raise HTTPProblem(422, f"{where}: {column.name!r} is not a finite 32-bit number")
