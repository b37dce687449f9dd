"""CSV as hospitals have it: any separator, decimal commas, quotes, a byte-order mark, missing values, compressed."""

import csv
import gzip
import io
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.tables.cells import MISSING

if TYPE_CHECKING:
    import polars

SEPARATORS = ",;\t|"
GUESSED = 10_000  # rows from which the type of a column is guessed; where it turns out wrong, cells are read as text
NULLS = [form for word in MISSING for form in dict.fromkeys((word, word.upper(), word.capitalize()))] + ["NaN", "NaT"]


def read_csv(
    path: Path, text: Collection[str], skip: Callable[[int, str], None] | None = None
) -> "tuple[list[str], polars.DataFrame]":
    """Names of the columns, which may be empty or twice, and the columns, those as text whose lower-case names are in
    `text`. Rows with too many or too few cells are refused, or `skip` is told the number and the trouble of each and it
    is left out."""
    content = path.read_bytes()
    if content[:2] == b"\x1f\x8b":
        try:
            content = gzip.decompress(content)
        except (OSError, EOFError) as error:
            raise DamagedFile(f"{path} cannot be read, it is damaged or cut off: {error}") from error
    content = _utf8(path, content)
    names, separator, start = _header(path, content)
    rows = Rows(path, memoryview(content)[start:], len(names), separator, skip)
    return names, _table(rows, names, text)


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
    while content.count(b'"', start, end) % 2 and end < len(content):  # a quoted name goes over several lines
        end = content.find(b"\n", end) + 1 or len(content)
    line = content[start:end].decode()
    if not line.strip():
        raise FedSPMError(f"{path} is empty; expected a line with the names of the columns")
    bare = "".join(line.split('"')[::2])  # what is outside quotes
    separator = max(SEPARATORS, key=bare.count)
    try:
        cells = next(csv.reader(io.StringIO(line, newline=""), delimiter=separator, strict=True))
    except csv.Error as error:
        raise DamagedFile(f"{path} is not a CSV file: {error}") from error
    return [name.strip() for name in cells], separator, end


@dataclass(frozen=True)
class Rows:
    """What follows the header of a file."""

    path: Path
    content: memoryview
    width: int  # cells of a row
    separator: str
    skip: Callable[[int, str], None] | None  # is told of rows that are left out

    def of_one_width(self) -> tuple[bytes, bool]:
        """The rows that have as many cells as there are names, and whether these are all. Another one is refused,
        unless it may be skipped."""
        kept, all_kept = io.StringIO(newline=""), True
        writer = csv.writer(kept, delimiter=self.separator, lineterminator="\n")
        text = io.TextIOWrapper(io.BytesIO(self.content), "utf-8", newline="")
        try:
            lines = csv.reader(text, delimiter=self.separator, strict=True)
            for j, row in enumerate((row for row in lines if row), 1):
                if len(row) == self.width:
                    writer.writerow(row)
                    continue
                wrong = f"{self.path}: row {j} has {len(row)} cells, the header names {self.width} columns"
                if self.skip is None:
                    raise DamagedFile(wrong)
                self.skip(j, wrong)
                all_kept = False
        except csv.Error as error:
            raise DamagedFile(f"{self.path} is not a CSV file: {error}") from error
        return kept.getvalue().encode(), all_kept


def _table(rows: Rows, names: list[str], text: Collection[str]) -> "polars.DataFrame":
    import polars

    keys = [f"{k}" for k in range(len(names))]  # names may be empty or twice, which the caller says
    as_text = {key: polars.String for key, name in zip(keys, names, strict=True) if name.lower() in text}
    nothing = polars.DataFrame({key: [] for key in keys})
    if not len(rows.content):
        return nothing
    options: dict[str, Any] = {
        "has_header": False,
        "new_columns": keys,
        "separator": rows.separator,
        "null_values": NULLS,
        "schema_overrides": as_text,
        "infer_schema_length": GUESSED,
        "decimal_comma": rows.separator != ",",
    }
    words = options | {"infer_schema": False, "decimal_comma": False}
    table = _read(rows.content, options)
    if table is None:
        table = _read(rows.content, words | {"schema_overrides": None})
    if table is None or table.width != rows.width or table.to_series(-1).null_count():  # a short row has no last cell
        checked, all_kept = rows.of_one_width()
        if table is None or table.width != rows.width or not all_kept:
            table = _read(checked, words | {"schema_overrides": None}) if checked else nothing
    if table is None:
        raise DamagedFile(f"{rows.path} is not a CSV file")
    return table.filter(~polars.all_horizontal(polars.all().is_null()))  # empty lines


def _read(content: bytes | memoryview, options: Mapping[str, Any]) -> "polars.DataFrame | None":
    import polars

    try:
        return polars.read_csv(io.BytesIO(content), **options)
    except polars.exceptions.PolarsError:
        return None
