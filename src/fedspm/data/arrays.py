"""Rows as somebody gives them (arrays, tensors, nested lists) made what training takes, or refused with a sentence."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.tables.schema import TableSchema
from fedspm.data.tables.table import Table

PIECE = 1 << 20  # values looked at together
STEPS = 100  # of 32-bit numbers that a standard deviation should have: two digits
LIMIT = 2**63  # labels that are whole numbers are below it


def as_input(x: Any, shape: Sequence[int] | None = None, where: str = "x") -> Tensor:
    """x as float32 rows, images laid out channels last, which is what CPU convolutions like best."""
    try:
        tensor = x if isinstance(x, Tensor) else torch.from_numpy(_for_torch(np.asarray(x)))
    except (TypeError, ValueError) as error:
        raise FedSPMError(f"{where}: x cannot be read as an array of numbers ({error})") from error
    if tensor.dtype is torch.bool or tensor.is_complex():
        raise FedSPMError(f"{where}: x holds {tensor.dtype}; it must hold real numbers")
    if tensor.ndim not in (2, 4):
        raise FedSPMError(
            f"{where}: x has shape {tuple(tensor.shape)}; it must be (n, features) for vectors or "
            "(n, channels, height, width) for images"
        )
    if 0 in tensor.shape[1:]:
        raise FedSPMError(f"{where}: x has shape {tuple(tensor.shape)}: there is not a single value in a row")
    if shape is not None and tuple(tensor.shape[1:]) != tuple(shape):
        raise FedSPMError(
            f"{where}: rows have shape {tuple(tensor.shape[1:])}, the model was trained on {tuple(shape)}"
        )
    tensor = tensor.detach().to("cpu", torch.float32)
    return tensor.contiguous(memory_format=torch.channels_last) if tensor.ndim == 4 else tensor.contiguous()


def is_frame(x: Any) -> bool:
    """Is it a table in memory whose columns have names, a data frame of pandas or polars? One whose columns are only
    numbered is an array, if it holds numbers."""
    names = getattr(x, "columns", None)
    if names is None or isinstance(x, Table):
        return False
    if all(isinstance(name, int | np.integer) for name in names):
        return np.asarray(x).dtype.kind not in "iuf"
    return True


def _for_torch(array: np.ndarray) -> np.ndarray:
    """A copy where torch would refuse or warn: another machine's byte order, an axis backwards, memory to read only."""
    if array.dtype.isnative and min(array.strides, default=0) >= 0 and array.flags.writeable:
        return array
    return array.astype(array.dtype.newbyteorder("="), order="C")


def as_labels(y: Any, where: str = "y") -> np.ndarray:
    """Labels as an array of whole numbers or of strings, and nothing in between."""
    try:
        labels = y.detach().cpu().numpy() if isinstance(y, Tensor) else np.asarray(y)
    except ValueError as error:
        raise FedSPMError(f"{where}: y cannot be read as a list of labels ({error})") from error
    given = labels.tolist() if labels.dtype.kind == "O" else y if isinstance(y, list | tuple) else []
    if given and len({isinstance(label, str | bytes) for label in given}) > 1:
        raise FedSPMError(
            f"{where}: some labels are strings and some are not; use one kind, and leave out rows without one"
        )
    if labels.dtype.kind == "O":
        labels = np.asarray(given)
    if labels.dtype.kind == "S":
        try:
            labels = np.char.decode(labels, "utf-8")
        except UnicodeDecodeError as error:
            raise FedSPMError(f"{where}: a label is bytes that are no text ({error}); give strings") from error
    if labels.dtype.kind == "f" and (np.abs(labels) < LIMIT).all() and (labels == labels.astype(np.int64)).all():
        labels = labels.astype(np.int64)
    if labels.dtype.kind not in "iubU":
        raise FedSPMError(f"{where}: labels must be integers or strings, these are {labels.dtype}")
    if labels.dtype.kind == "u" and labels.size and labels.max() >= LIMIT:
        raise FedSPMError(f"{where}: label {labels.max()} is too large for 64 bits with a sign; make it a string")
    return labels.astype(np.int64) if labels.dtype.kind in "iu" else labels  # two kinds would meet as floats


def require_finite(x: Tensor, where: str, missing: bool = False) -> None:
    """Rows are counted from one, as everywhere else where people read of them; `missing` values may be NaN."""
    rows = max(1, PIECE // max(1, x[:1].numel()))
    for start in range(0, len(x), rows):  # in pieces: a mask over everything would double the memory
        piece = x[start : start + rows]
        if torch.isfinite(piece.sum()):  # then all are: NaN and infinity stay in a sum
            continue
        bad = (torch.isinf(piece) if missing else ~torch.isfinite(piece)).flatten(1).any(1)
        if bad.any():
            row = start + int(bad.nonzero()[0]) + 1
            raise FedSPMError(
                f"{where}: row {row} has a value that is not a finite 32-bit number (NaN, infinity, too large)"
            )


def too_coarse(parts: Sequence[Tensor], names: Sequence[str]) -> list[str]:
    """Sentences about features so far from zero that 32-bit numbers hardly tell rows of all parts apart."""
    known = [torch.where(x.isnan(), x.nanmean(0), x) if x.isnan().any() else x for x in parts]
    moments = [torch.var_mean(x.double(), 0, correction=0) for x in known]
    share = torch.tensor([len(x) for x in parts]).double()[:, None] / sum(map(len, parts))
    variances, means = map(torch.stack, zip(*moments, strict=True))
    mean = (share * means).sum(0)
    spread = (share * (variances + (means - mean) ** 2)).sum(0).sqrt().numpy()
    step = np.spacing(torch.stack([x.abs().amax(0) for x in known]).amax(0).numpy()).astype(float)
    return [
        f"{names[k]!r} lies around {mean[k]:.6g} and varies by {spread[k]:.2g}, which 32-bit numbers keep in steps of "
        f"{step[k]:.2g}: subtract a number from it that is the same for every client"
        for k in np.flatnonzero((spread > 0) & (spread < STEPS * step)).tolist()
    ]


Rows = Tensor | Table  # of a client: vectors or images, or a table that is still to be encoded


def as_rows(value: Any, where: str) -> tuple[Rows, np.ndarray]:
    """A pair (x, y) with one label per row; looked through before any are held out, while rows have their numbers."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        raise FedSPMError(f"{where}: give a pair (x, y)")
    x: Rows = value[0] if isinstance(value[0], Table) else as_table_or_input(value[0], where)
    y = as_labels(value[1], where)
    if y.ndim != 1 or len(y) != len(x):
        raise FedSPMError(f"{where}: y has shape {y.shape}, x has {len(x)} rows; y needs one label per row")
    if isinstance(x, Tensor):
        require_finite(x, where)
    return x, y


def as_table_or_input(x: Any, where: str) -> Rows:
    """A data frame as a table, everything else as float32 rows."""
    return Table.of_frame(x, where) if is_frame(x) else as_input(x, where=where)


def encoded_rows(x: Any, schema: TableSchema | None, shape: Sequence[int], where: str = "x") -> Tensor:
    """Queries in memory as the vectors or images that a model was trained on: the columns of a data frame are matched
    by name, those of an array by position, which is refused where some columns are no numbers."""
    if schema is not None and not isinstance(x, Table) and not is_frame(x):
        schema.require_arrays(where)
    rows = x if isinstance(x, Table) else as_table_or_input(x, where)
    if isinstance(rows, Table):
        if schema is not None:
            return schema.encode(rows, where)
        rows = torch.from_numpy(rows.numbers(where))
    if schema is not None and not schema.is_plain:
        return schema.encode_array(rows.numpy(), where)
    rows = as_input(rows, shape, where)
    require_finite(rows, where)
    return rows


def as_classes(y: np.ndarray, classes: np.ndarray, where: str) -> Tensor:
    """Labels as class numbers."""
    if (classes.dtype.kind == "U") != (y.dtype.kind == "U"):
        raise FedSPMError(
            f"{where}: labels are {y.dtype}, the training labels are {classes.dtype}; use one kind for all"
        )
    order = np.argsort(classes)  # those of a data set with a name come in its own order
    position = order[np.searchsorted(classes[order], y).clip(max=len(classes) - 1)]
    unseen = classes[position] != y
    if unseen.any():
        raise FedSPMError(
            f"{where}: label {y[unseen][0].item()!r} does not occur in any client's training rows "
            f"(classes: {', '.join(map(str, classes[:12]))}{', …' if len(classes) > 12 else ''})"
        )
    return torch.from_numpy(position.astype(np.int64))
