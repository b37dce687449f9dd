"""Tables: CSV, parquet and Excel, read by polars."""

from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.readers.columns import USUAL, Column, Frame, read_frames
from fedspm.data.readers.csv_file import read_csv
from fedspm.data.readers.draft import Draft, ReadOptions, ignoring
from fedspm.data.readers.splits import are_splits, refuse_splits

if TYPE_CHECKING:
    import polars

ENDINGS = (".csv", ".tsv", ".csv.gz", ".tsv.gz", ".parquet", ".xlsx")


def table_ending(path: Path) -> str | None:
    """The ending of a file's name that says which form of table it is; None if it is none."""
    return next((ending for ending in ENDINGS if path.name.lower().endswith(ending)), None)


def stem_of(path: Path) -> str:
    """The name of a table without its ending: `north` of north.csv.gz."""
    return path.name[: -len(table_ending(path) or "") or None]


def _texts(how: ReadOptions) -> set[str]:
    """Columns that are no features, in lower case: what they say is kept as it is written, 007 too."""
    given = (how.client_column, how.label_column, how.image_column, how.split_column)
    return {name for names in USUAL.values() for name in names} | {name.lower() for name in given if name}


def read_table(path: Path, how: ReadOptions) -> Draft:
    """One table with a label column, and a client column unless it is known whose rows these are."""
    ragged: dict[int, str] = {}
    columns = columns_of(path, _texts(how), ragged.__setitem__)
    if how.client is None or how.client_column in columns or _client_columns(columns, how):
        draft = Draft(str(path), "a table with a client column", skip=how.skip)
        frame = Frame(str(path), columns, folder=path.parent, ragged=ragged)
        return read_frames(draft, [frame], how)
    frame = Frame(str(path), columns, client=how.client, folder=path.parent, ragged=ragged)
    draft = Draft(str(path), "a table of one client", skip=how.skip)
    return read_frames(draft, [frame], replace(how, client_column=None))


def read_tables(paths: Sequence[Path], how: ReadOptions) -> Draft:
    """A table a client; or, with a client column, train and test, or parts of one table."""
    draft = Draft(str(paths[0].parent), "a table a client", skip=how.skip)
    apart = are_splits(map(stem_of, paths))
    if not apart:
        refuse_splits(map(stem_of, paths), f"the tables in {paths[0].parent}")
    tables, ragged = {}, defaultdict[Path, dict[int, str]](dict)
    for path in paths:
        try:
            tables[path] = columns_of(path, _texts(how), ragged[path].__setitem__)
        except FedSPMError as error:
            draft.problems.append(str(error))
    says = {path: {"client": stem_of(path)} for path in tables}
    if apart:
        draft.form = "tables train and test with a client column"
        says = {path: {"split": stem_of(path).lower()} for path in tables}
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
    frames = [
        Frame(str(path), columns, folder=path.parent, ragged=ragged[path], **says[path])
        for path, columns in tables.items()
    ]
    return read_frames(draft, frames, how) if frames else draft


def _client_columns(columns: Iterable[str], how: ReadOptions) -> list[str]:
    """Columns that tell, by their names, whose each row is."""
    return [name for name in columns if name.lower() in USUAL["client"] and name not in how.ignore]


Skip = Callable[[int, str], None]


def columns_of(path: Path, text: Collection[str] = (), skip: Skip | None = None) -> dict[str, Column]:
    """The columns of a table by name, those as text whose names, in lower case, are in `text`. `skip` is told the
    numbers of rows with too many or too few cells, and a sentence about each; they are then left out."""
    try:
        return _named(path, text, skip)
    except FileNotFoundError as error:
        raise FedSPMError(f"there is no file {path}") from error
    except OSError as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error


def _named(path: Path, text: Collection[str], skip: Skip | None) -> dict[str, Column]:
    import polars

    ending, names = table_ending(path), None
    try:
        if ending == ".parquet":
            table = polars.read_parquet(path, memory_map=False)
        elif ending == ".xlsx":
            table = _excel(path)
        else:
            names, table = read_csv(path, text, skip)
    except polars.exceptions.PolarsError as error:
        raise DamagedFile(
            f"{path} is not a whole {(ending or '')[1:]} file, it is damaged or cut off: {str(error).splitlines()[0]}"
        ) from error
    names = names or [name.strip() for name in table.columns]
    pairs = [(name, cells) for name, cells in zip(names, table.get_columns(), strict=True) if name or not _empty(cells)]
    names = [name for name, _ in pairs]
    if twice := [name for name in names if names.count(name) > 1]:
        raise FedSPMError(f"{path}: {names.count(twice[0])} columns are called {twice[0]!r}; names must differ")
    return dict(pairs)


def _empty(cells: "polars.Series") -> bool:
    """As spreadsheets write columns beyond the last."""
    return cells.null_count() == len(cells)


def _excel(path: Path) -> "polars.DataFrame":
    """The first sheet."""
    import polars

    try:
        return polars.read_excel(path)
    except ImportError as error:
        raise FedSPMError(f"{path}: reading Excel needs fastexcel; pip install 'fedspm[excel]'") from error
    except Exception as error:  # fastexcel has errors of its own
        raise DamagedFile(f"{path} is not a whole Excel file: {error}") from error
