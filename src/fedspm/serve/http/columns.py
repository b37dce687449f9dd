"""Rows whose columns a caller names: put in the order that the model was trained on, or refused by name."""

import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.arrays import places
from fedspm.serve.bundle import HEADER
from fedspm.serve.http.problem import HTTPProblem

KEY = "columns"  # of the metadata of tensors: a JSON list of names, as the Python client sends it
NAMELESS = "the columns of this model have no names; send a row as a list of its numbers"
MIXED = "all rows of x must be either lists of numbers or objects with a number for every column"


def header_limit(columns: Sequence[str] | None) -> int:
    """Bytes that a safetensors header may have: those of a nameless one, and room for the names with every quote
    escaped twice."""
    return HEADER + 4 * len(joined_names(columns))


def joined_names(columns: Sequence[str] | None) -> str:
    """All names, quoted as in JSON, in one string: what a body that names every column must hold at least."""
    return "".join(map(json.dumps, columns or ()))


def tensor_in_order(x: Tensor, metadata: dict[str, str], columns: Sequence[str] | None) -> Tensor:
    """The tensor with its columns in the model's order, if the caller named them and the model knows names."""
    if columns is None or KEY not in metadata:
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
    order = _order(columns, found, "x")
    return x if order == list(range(len(order))) else x[..., order]


def rows_from_objects(x: dict[str, Any] | list[Any], columns: Sequence[str] | None) -> np.ndarray:
    """A row that was sent as a JSON object, or a list of such rows, in the model's order."""
    if columns is None:
        raise HTTPProblem(422, NAMELESS)
    single = isinstance(x, dict)
    rows = [x] if single else x
    if not all(isinstance(row, dict) for row in rows):
        raise HTTPProblem(422, MIXED)
    found = np.empty((len(rows), len(columns)))
    for j, row in enumerate(rows):
        where = "x" if single else f"x, row {j + 1}"
        _order(columns, list(row), where)
        found[j] = [_number(row[name], name, where) for name in columns]
    return found[0] if single else found


def _order(columns: Sequence[str], found: Sequence[str], where: str) -> list[int]:
    """Where the model's columns are among those found, if there are no others."""
    try:
        order = places(columns, found, where)
    except FedSPMError as error:
        raise HTTPProblem(422, str(error)) from error
    if len(found) > len(columns):
        known = set(columns)
        other = next((name for name in found if name not in known), None)
        wrong = "a column is named twice" if other is None else f"the model was not trained on a column {other!r}"
        raise HTTPProblem(422, f"{where}: {wrong}; leave it out")
    return order


def _number(value: Any, name: str, where: str) -> float:
    if type(value) not in (int, float):  # a bool is an int to Python
        raise HTTPProblem(422, f"{where}: {name!r} is not a number")
    try:
        return float(value)
    except OverflowError:
        return math.inf  # refused with the other values that are not finite
