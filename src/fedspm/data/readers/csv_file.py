"""CSV as hospitals have it: any separator, decimal commas, quotes, a byte-order mark, missing values, compressed."""

import csv
import gzip
import io
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.tables.cells import MISSING

if TYPE_CHECKING:
    import polars

SEPARATORS = ",;\t|"
GUESSED = 10_000  # rows from which the type of a column is guessed; where it turns out wrong, cells are read as text
NULLS = [form for word in MISSING for form in dict.fromkeys((word, word.upper(), word.capitalize()))] + ["NaN", "NaT"]


def read_csv(path: Path, text: Collection[str]) -> "tuple[list[str], polars.DataFrame]":
    """Names of the columns, which may be empty or twice, and the columns, those as text whose lower-case names are in
    `text`."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise DamagedFile(f"{path} cannot be read, it is damaged or cut off: {error}") from error
    content = _utf8(path, content)
    names, separator, start = _header(path, content)
    return names, _table(path, memoryview(content)[start:], names, separator, text)


def _utf8(path: Path, content: bytes) -> bytes:
    if content[:2] in (b"\xff\xfe", b"\xfe\xff"):  # as spreadsheets save "Unicode text"
        content = content.decode("utf-16").encode()
    content = content.removeprefix(b"\xef\xbb\xbf")
    try:
        content.decode()
    except UnicodeDecodeError as error:
        raise DamagedFile(f"{path} is not UTF-8 text ({error}); save it as UTF-8") from error
    return content


def _header(path: Path, content: bytes) -> tuple[list[str], str, int]:
    """Names of the columns, what separates them, and where the rows start."""
    start = len(content) - len(content.lstrip(b"\r\n"))
    end = content.find(b"\n", start) + 1 or len(content)
    line = content[start:end].decode()
    if not line.strip():
        raise FedSPMError(f"{path} is empty; expected a line with the names of the columns")
    bare = "".join(line.split('"')[::2])  # what is outside quotes
    separator = max(SEPARATORS, key=bare.count)
    try:
        names = [name.strip() for name in next(csv.reader([line], delimiter=separator, strict=True))]
    except csv.Error as error:
        raise DamagedFile(f"{path} is not a CSV file: {error}") from error
    return names, separator, end


def _table(path: Path, rows: memoryview, names: list[str], separator: str, text: Collection[str]) -> "polars.DataFrame":
    import polars

    keys = [f"{k}" for k in range(len(names))]  # names may be empty or twice, which the caller says
    as_text = {key: polars.String for key, name in zip(keys, names, strict=True) if name.lower() in text}
    options: dict[str, Any] = {
        "has_header": False,
        "new_columns": keys,
        "separator": separator,
        "null_values": NULLS,
        "schema_overrides": as_text,
        "infer_schema_length": GUESSED,
        "decimal_comma": separator != ",",
        "try_parse_dates": True,
    }
    if not len(rows):
        return polars.DataFrame({key: [] for key in keys})
    try:
        table = polars.read_csv(io.BytesIO(rows), **options)
    except polars.exceptions.PolarsError:
        options |= {"infer_schema": False, "try_parse_dates": False, "decimal_comma": False, "schema_overrides": None}
        try:
            table = polars.read_csv(io.BytesIO(rows), **options)
        except polars.exceptions.PolarsError as error:
            _require_width(path, rows, len(names), separator)
            raise DamagedFile(f"{path} is not a CSV file: {str(error).splitlines()[0]}") from error
    if table.width != len(names) or table.to_series(-1).null_count():  # of a short row the last cells are missing
        _require_width(path, rows, len(names), separator)
    return table.filter(~polars.all_horizontal(polars.all().is_null()))  # empty lines


def _require_width(path: Path, rows: memoryview, width: int, separator: str) -> None:
    """Refuse a file of which a row has more or fewer cells than there are names."""
    try:
        lines = csv.reader(io.TextIOWrapper(io.BytesIO(rows), "utf-8", newline=""), delimiter=separator, strict=True)
        for j, row in enumerate((row for row in lines if row), 1):
            if len(row) != width:
                raise DamagedFile(f"{path}: row {j} has {len(row)} cells, the header names {width} columns")
    except csv.Error as error:
        raise DamagedFile(f"{path} is not a CSV file: {error}") from error
