"""Your own data by its path: folders of images, tables, NumPy archives (docs/own-data.md)."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.arrays import as_input, require_finite
from fedspm.data.images import UNIT, Ends
from fedspm.data.readers.columns import numbers
from fedspm.data.readers.draft import Draft, ReadOptions
from fedspm.data.readers.folder import read_folder
from fedspm.data.readers.numpy_archives import input_of, read_archive, read_archives, read_npz
from fedspm.data.readers.table import ENDINGS, columns_of, read_table, read_tables


def read_path(path: Path, how: ReadOptions) -> Draft:
    """Find out which form it has, and read it."""
    ending = path.suffix.lower()
    try:
        if path.is_dir():
            return _read_folder(path, how)
        if not path.exists():
            raise FedSPMError(f"there is no folder or file {path}")
        if ending in ENDINGS:
            return read_table(path, how)
        if ending == ".npz":
            return read_archive(path, how)
    except OSError as error:
        raise FedSPMError(f"{path} cannot be read: {error.strerror or error}") from error
    raise FedSPMError(f"{path} has a form that is not known; give a folder, or a file {', '.join(ENDINGS)} or .npz")


def _read_folder(path: Path, how: ReadOptions) -> Draft:
    files = sorted(each for each in path.iterdir() if each.is_file() and each.name[0] != ".")
    tables = [file for file in files if file.suffix.lower() in ENDINGS]
    if len(tables) == 1:
        draft = read_table(tables[0], how)
        draft.remarks.insert(0, f"the table is {tables[0].name}")
        return draft
    if tables:
        return read_tables(tables, how)
    if archives := [file for file in files if file.suffix.lower() == ".npz"]:
        return read_archives(archives)
    return read_folder(path, how)


def read_vectors(path: Path, shape: Sequence[int], names: Sequence[str] | None, ends: Ends = UNIT) -> Tensor:
    """Queries: the rows of a table, by the names of the features, or the array x of an archive.

    `ends` are the smallest and the largest value of the rows that the model was trained on.
    """
    if path.suffix.lower() != ".npz":
        x = as_input(_cells(path, names), shape, str(path))
        require_finite(x, str(path))
        return x
    arrays = read_npz(path)
    if "x" not in arrays:
        raise FedSPMError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected an array x")
    x = input_of(arrays["x"], str(path), shape, ends)
    if not len(x):
        raise FedSPMError(f"{path} has no rows")
    return x


def _cells(path: Path, names: Sequence[str] | None) -> np.ndarray:
    """The rows of a table, with the columns that the model was trained on."""
    columns = columns_of(path)
    wanted = list(columns) if names is None else _columns(names, columns)
    if lacking := [name for name in wanted if name not in columns]:
        raise FedSPMError(f"{path} has no column {lacking[0]!r}, on which the model was trained")
    if not all(len(columns[name]) for name in wanted):
        raise FedSPMError(f"{path} has no rows")
    found = {name: numbers(columns[name]) for name in wanted}
    if words := [name for name, values in found.items() if values is None]:
        raise FedSPMError(f"{path}: column {words[0]!r} holds words, not numbers")
    return np.concatenate([values.reshape(len(values), -1) for values in found.values() if values is not None], axis=1)


def _columns(names: Sequence[str], columns: Mapping[str, object]) -> list[str]:
    """The columns behind features: `x[0]`, `x[1]` come from a column x of lists."""
    return list(dict.fromkeys(name if name in columns else re.sub(r"\[\d+\]$", "", name) for name in names))
