"""Your own data by its path: folders of images, tables, NumPy archives (docs/own-data.md)."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.arrays import as_input, require_finite
from fedspm.data.images import UNIT, Ends
from fedspm.data.readers.draft import Draft, ReadOptions
from fedspm.data.readers.folder import read_folder
from fedspm.data.readers.numpy_archives import input_of, read_archive, read_archives, read_npz
from fedspm.data.readers.table import ENDINGS, columns_of, read_table, read_tables, table_ending
from fedspm.data.tables.schema import TableSchema
from fedspm.data.tables.table import Table


def read_path(path: Path, how: ReadOptions) -> Draft:
    """Find out which form it has, and read it."""
    ending = path.suffix.lower()
    try:
        if path.is_dir():
            return _read_folder(path, how)
        if not path.exists():
            raise FedSPMError(f"there is no folder or file {path}")
        if table_ending(path):
            return read_table(path, how)
        if ending == ".npz":
            return read_archive(path, how)
    except OSError as error:
        raise FedSPMError(f"{path} cannot be read: {error.strerror or error}") from error
    raise FedSPMError(f"{path} has a form that is not known; give a folder, or a file {', '.join(ENDINGS)} or .npz")


def _read_folder(path: Path, how: ReadOptions) -> Draft:
    files = sorted(each for each in path.iterdir() if each.is_file() and each.name[0] != ".")
    tables = [file for file in files if table_ending(file)]
    if len(tables) == 1:
        draft = read_table(tables[0], how)
        draft.remarks.insert(0, f"the table is {tables[0].name}")
        return draft
    if tables:
        return read_tables(tables, how)
    if archives := [file for file in files if file.suffix.lower() == ".npz"]:
        return read_archives(archives)
    return read_folder(path, how)


def read_vectors(path: Path, shape: Sequence[int], schema: TableSchema | None, ends: Ends = UNIT) -> Tensor:
    """Queries: the rows of a table, by the names of its columns, or the array x of an archive.

    `ends` are the smallest and the largest value of the rows that the model was trained on.
    """
    if path.suffix.lower() != ".npz":
        table = read_queries_table(path, schema)
        if schema is not None:
            return schema.encode(table, str(path))
        x = as_input(table.numbers(str(path)), shape, str(path))
        require_finite(x, str(path))
        return x
    arrays = read_npz(path)
    if "x" not in arrays:
        raise FedSPMError(f"{path} holds {', '.join(arrays) or 'nothing'}; expected an array x")
    if schema is not None and not schema.is_plain:
        x = schema.encode_array(arrays["x"], str(path))
    else:
        x = input_of(arrays["x"], str(path), shape, ends)
    if not len(x):
        raise FedSPMError(f"{path} has no rows")
    return x


def read_queries_table(path: Path, schema: TableSchema | None) -> Table:
    """The columns of a table that a model uses, or all of them if it knows no names."""
    columns = columns_of(path)
    if schema is not None:
        wanted = {name for name in columns if name in schema.names} | _lists(schema.names, columns)
        columns = {name: columns[name] for name in columns if name in wanted}
        categories = [column.name for column in schema.columns if column.kind == "category"]
        if not columns:
            raise FedSPMError(
                f"{path} has none of the columns on which the model was trained: {', '.join(schema.names)}"
            )
    table = Table.of(columns, str(path), categories if schema else ())
    if not len(table):
        raise FedSPMError(f"{path} has no rows")
    return table


def _lists(names: Sequence[str], columns: Mapping[str, object]) -> set[str]:
    """The columns of lists behind features: `x[0]`, `x[1]` come from a column x."""
    return {name for name in (re.sub(r"\[\d+\]$", "", each) for each in names) if name in columns}
