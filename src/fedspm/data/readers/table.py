"""Tables: CSV with commas, semicolons or tabs, and parquet."""

import csv
import re
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.readers.columns import USUAL, Column, Frame, read_frames
from fedspm.data.readers.draft import Draft, ReadOptions, ignoring
from fedspm.data.readers.parquet import Table
from fedspm.data.readers.splits import are_splits, refuse_splits

ENDINGS = (".csv", ".tsv", ".parquet")


def read_table(path: Path, how: ReadOptions) -> Draft:
    """One table with a label column, and a client column unless it is known whose rows these are."""
    columns = columns_of(path)
    if how.client is None or how.client_column in columns or _client_columns(columns, how):
        draft = Draft(str(path), "a table with a client column")
        return read_frames(draft, [Frame(str(path), columns, folder=path.parent)], how)
    frame = Frame(str(path), columns, client=how.client, folder=path.parent)
    return read_frames(Draft(str(path), "a table of one client"), [frame], replace(how, client_column=None))


def read_tables(paths: Sequence[Path], how: ReadOptions) -> Draft:
    """A table a client; or, with a client column, train and test, or parts of one table."""
    draft = Draft(str(paths[0].parent), "a table a client")
    apart = are_splits(path.stem for path in paths)
    if not apart:
        refuse_splits([path.stem for path in paths], f"the tables in {paths[0].parent}")
    tables = {}
    for path in paths:
        try:
            tables[path] = columns_of(path)
        except FedSPMError as error:
            draft.problems.append(str(error))
    says = {path: {"client": path.stem} for path in tables}
    if apart:
        draft.form = "tables train and test with a client column"
        says = {path: {"split": path.stem.lower()} for path in tables}
    elif how.client_column or (tables and all(_client_columns(columns, how) for columns in tables.values())):
        draft.form = "parts of a table with a client column"
        says = {path: {} for path in tables}
    elif says_client := [path for path, columns in tables.items() if _client_columns(columns, how)]:
        silent = next(path for path in tables if path not in says_client)
        name = _client_columns(tables[says_client[0]], how)[0]
        draft.problems.append(
            f"{says_client[0]} has a client column, {name!r}, and {silent} has none; give every table one, or leave it "
            f"out: {ignoring(name)}"
        )
    frames = [Frame(str(path), columns, folder=path.parent, **says[path]) for path, columns in tables.items()]
    return read_frames(draft, frames, how) if frames else draft


def _client_columns(columns: Iterable[str], how: ReadOptions) -> list[str]:
    """Columns that tell, by their names, whose each row is."""
    return [name for name in columns if name.lower() in USUAL["client"] and name not in how.ignore]


def columns_of(path: Path) -> dict[str, Column]:
    """The columns of a table by name."""
    try:
        return _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    except FileNotFoundError as error:
        raise FedSPMError(f"there is no file {path}") from error
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error


def _csv(path: Path) -> dict[str, Column]:
    with path.open(encoding="utf-8-sig", newline="") as file:
        first = file.readline()
        file.seek(0)
        delimiter = max(",;\t", key=first.count)
        try:
            found = [row for row in csv.reader(file, delimiter=delimiter, strict=True) if row]
        except csv.Error as error:
            raise DamagedFile(f"{path} is not a CSV file: {error}") from error
    if not found:
        raise FedSPMError(f"{path} is empty; expected a line with the names of the columns")
    header, *rows = found
    if delimiter == ";":  # where people write 1,5 for one and a half
        rows = [[re.sub(r"^\s*(-?\d*),(\d+)\s*$", r"\1.\2", cell) for cell in row] for row in rows]
    names = [name.strip() for name in header]
    _refuse_doubles(path, names)
    for j, row in enumerate(rows, 1):
        if len(row) != len(names):
            raise DamagedFile(f"{path}: row {j} has {len(row)} cells, the header names {len(names)} columns")
    return dict(zip(names, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(names, ())


def _parquet(path: Path) -> dict[str, Column]:
    with path.open("rb") as file:
        table = Table(file, str(path))
        _refuse_doubles(path, table.columns)
        columns: dict[str, list[Any]] = {name: [] for name in table.columns}
        for piece in table.pieces(table.columns):
            for name, values in piece.items():
                columns[name] += values
    return dict(columns)


def _refuse_doubles(path: Path, names: Sequence[str]) -> None:
    if twice := [name for name in names if names.count(name) > 1]:
        raise FedSPMError(f"{path}: {names.count(twice[0])} columns are called {twice[0]!r}; names must differ")
