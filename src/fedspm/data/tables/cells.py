"""The cells of one column, in whatever form they come, as numbers: which kind of column is it?"""

import datetime
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import polars

from fedspm.base.errors import FedSPMError

MISSING = (
    *("", "na", "n/a", "n.a.", "nan", "null", "none", "?", "-", "--", ".", "<na>", "nat", "missing"),  # . is SAS's
    *("#n/a", "#na", "#value!", "#div/0!", "#null!", "#num!", "#ref!", "#name?"),  # of spreadsheets
)
TRUTH = {"true": 1.0, "false": 0.0}
DATES = ("%Y-%m-%d", "%Y-%m-%d %H:%M:%S", "%Y-%m-%d %H:%M", "%Y/%m/%d", "%d.%m.%Y", "%d.%m.%Y %H:%M")
ZONED = "%Y-%m-%d %H:%M:%S%z"
TIMES = ("%H:%M:%S", "%H:%M")
SLASHES = r"^\d{1,2}[/-]\d{1,2}[/-]\d{2,4}\b"  # is 03/04/2020 in March or in April?
SHORT_YEARS = r"^\d{1,2}\.\d{1,2}\.\d{2}\b(?:\D|$)"  # was somebody born on 5.3.20 in 1920?
STRAY = 0.1  # share of words up to which a column is one of numbers with mistakes in it
LARGEST = float(np.finfo(np.float32).max)
DAY = 86_400_000_000  # microseconds
EPOCH = datetime.date(1970, 1, 1)
DECIMAL_COMMA = r"^(\s*-?\d*),(\d+\s*)$"
BOUND = r"^(?:[<>]=?|[≤≥])\s*(\d)"  # <0.3: as laboratories write what they cannot measure


@dataclass(frozen=True)
class Cells:
    """Values of a column: numbers, 0 and 1, days since 1970, or numbers of levels; NaN where one is missing."""

    kind: Literal["number", "boolean", "category", "date", "empty"]
    values: np.ndarray
    levels: tuple[str, ...] = ()


class BadCells(FedSPMError):
    """A few cells of a column cannot be read; `cells` has the others."""

    def __init__(self, what: str, why: str, rows: list[int], cells: Cells):
        self.what, self.why = what, why
        self.rows, self.cells = rows, cells  # rows are counted from one
        super().__init__(self.sentence(rows))

    def sentence(self, rows: Sequence[int]) -> str:
        """With these numbers for the rows: in a file others may come before them."""
        more = f" and {len(rows) - 1:,} more" if len(rows) > 1 else ""
        return f"{self.what} in row {rows[0]}{more}{self.why}"


def read_cells(values: Any, category: bool = False) -> Cells | np.ndarray:
    """A column as numbers, and its kind; a matrix where the cells are lists of numbers. `category` says that numbers
    are names of levels. The error of a column that cannot be read continues the sentence "column 'age' …"."""
    if isinstance(values, np.ndarray) and values.ndim > 1:
        return _matrix(values)
    series = _series(values)
    kind = series.dtype
    category = category or kind in (polars.Categorical, polars.Enum)
    if kind.is_nested():
        return _matrix(series.to_list())
    if kind == polars.Null or series.null_count() == len(series):
        return Cells("empty", np.full(len(series), np.nan))
    if kind == polars.Binary:
        series = polars.Series([None if cell is None else cell.decode(errors="replace") for cell in series])
    elif kind.is_temporal():
        return _days(series)
    elif kind == polars.Boolean or kind.is_numeric():
        cells = Cells("boolean" if kind == polars.Boolean else "number", _floats(series))
        return _category_of_numbers(cells) if category else cells
    if kind == polars.Object:
        raise FedSPMError(f"holds {type(series[0]).__name__}; give numbers, words, truth values or dates")
    return _of_texts(series.cast(polars.String), category)


def level_of(value: float, kind: str) -> str:
    """A value as the level of a category: 3, 2.5, true, 2020-02-29."""
    if kind == "boolean":
        return "true" if value else "false"
    if kind == "date":
        return str(EPOCH + datetime.timedelta(days=int(value // 1)))
    return str(int(value)) if value == int(value) else repr(float(value))


def same_level(text: str) -> str:
    """One way to write a level: 3.0 is 3."""
    return re.sub(r"^(-?\d+)\.0+$", r"\1", text.strip())


def _of_texts(series: polars.Series, category: bool) -> Cells:
    """Words, numbers, dates or truth values that were written as text. Of every text one is looked at, however often it
    occurs."""
    distinct = series.drop_nulls().unique()
    texts = distinct.str.strip_chars()
    texts = texts.set(texts.str.to_lowercase().is_in(MISSING), None)
    order = polars.Series(np.arange(len(distinct)), dtype=polars.Int64)
    place = series.replace_strict(distinct, order, default=len(distinct)).to_numpy()  # of every cell among the distinct

    def spread(values: np.ndarray) -> np.ndarray:
        """What was found for distinct texts, for every cell."""
        found: np.ndarray = np.append(values, np.nan)[place]
        return found

    if texts.null_count() == len(texts):
        return Cells("empty", np.full(len(series), np.nan))
    if not category:
        lower = texts.str.to_lowercase()
        if lower.drop_nulls().is_in(list(TRUTH)).all():
            return Cells("boolean", spread(_floats(lower.replace_strict(TRUTH, default=None))))
        often = np.bincount(place, minlength=len(distinct) + 1)[:-1]  # how many cells hold each text
        known = texts.is_not_null().to_numpy()
        for others, found in (
            ("numbers", Cells("number", _floats(_numbers(texts, often), check=False))),
            ("dates", _days(_dates(texts))),
            ("times", _days(_times(texts))),
        ):
            odd = known & np.isnan(found.values)
            if often[odd].sum() > STRAY * often[known].sum():
                continue
            cells = Cells(found.kind, spread(found.values))
            if odd.any():
                raise _stray(series, np.append(odd, False)[place], others, cells)
            return Cells(cells.kind, _within_32_bits(cells.values))
        _require_one_meaning(texts.drop_nulls())
    whole = [None if text is None else same_level(text) for text in texts.to_list()]
    levels = sorted({text for text in whole if text is not None})
    number = {level: float(k) for k, level in enumerate(levels)} | {None: np.nan}
    return Cells("category", spread(np.array([number[text] for text in whole])), tuple(levels))


def numbers_of(texts: Sequence[str]) -> np.ndarray:
    """What texts would be in a column of numbers; NaN where they are none."""
    return _floats(_plain_numbers(polars.Series(texts, dtype=polars.String).str.replace(BOUND, "${1}")), check=False)


def _numbers(texts: polars.Series, often: np.ndarray) -> polars.Series:
    """Numbers with a point or a comma; of `<0.3` the bound, where at least half of the cells are plain numbers: of age
    groups such as `<40` and `≥40` it is not."""
    numbers = _plain_numbers(texts)
    if 2 * often[numbers.is_not_null().to_numpy()].sum() < often[texts.is_not_null().to_numpy()].sum():
        return numbers
    return _plain_numbers(texts.str.replace(BOUND, "${1}"))


def _plain_numbers(texts: polars.Series) -> polars.Series:
    return texts.str.replace(DECIMAL_COMMA, "${1}.${2}").cast(polars.Float64, strict=False)


def _stray(series: polars.Series, odd: np.ndarray, others: str, cells: Cells) -> BadCells:
    rows = (np.flatnonzero(odd) + 1).tolist()
    return BadCells(f"holds {series[rows[0] - 1]!r}", f", where all others are {others}", rows, cells)


def _require_one_meaning(texts: polars.Series) -> None:
    for form, unknown in (
        (SLASHES, "whether the day or the month comes first"),
        (SHORT_YEARS, "in which century they are"),
    ):
        if texts.str.contains(form).all():
            raise FedSPMError(
                f"holds dates like {texts[0]!r}, of which nobody knows {unknown}; write them as 2020-12-31"
            )


def _dates(texts: polars.Series) -> polars.Series:
    """Days and times, of texts that are written in one of the forms that have one meaning."""
    plain = (
        texts.str.replace(r"^(\d{4}-\d\d-\d\d)T", "${1} ").str.replace(r"(:\d\d)\.\d+", "${1}").str.replace(r"Z$", "")
    )
    plain = plain.set(plain.str.contains(SHORT_YEARS), None)
    found = plain.str.to_datetime(ZONED, strict=False, time_unit="us").dt.replace_time_zone(None)
    for form in DATES:
        found = found.zip_with(found.is_not_null(), plain.str.to_datetime(form, strict=False, time_unit="us"))
    return found


def _times(texts: polars.Series) -> polars.Series:
    """Times of a day."""
    found = texts.str.to_time(TIMES[0], strict=False)
    return found.zip_with(found.is_not_null(), texts.str.to_time(TIMES[1], strict=False))


def _days(series: polars.Series) -> Cells:
    """Days since 1970: differences between them are what a model can use."""
    if series.dtype == polars.Time:
        return Cells("number", _floats(series.cast(polars.Int64)) / (1000 * DAY))
    if isinstance(series.dtype, polars.Duration):
        return Cells("number", _floats(series.dt.total_microseconds()) / DAY)
    if isinstance(series.dtype, polars.Datetime) and series.dtype.time_zone:
        series = series.dt.convert_time_zone("UTC").dt.replace_time_zone(None)
    return Cells("date", _floats(series.cast(polars.Datetime("us")).to_physical()) / DAY)


def _category_of_numbers(cells: Cells) -> Cells:
    known = ~np.isnan(cells.values)
    codes = np.full(len(cells.values), np.nan)
    distinct, codes[known] = np.unique(cells.values[known], return_inverse=True)
    return Cells("category", codes, tuple(level_of(value, cells.kind) for value in distinct.tolist()))


def _floats(series: polars.Series, check: bool = True) -> np.ndarray:
    """64-bit numbers, NaN where one is missing."""
    array = np.array(series.cast(polars.Float64).fill_null(float("nan")).to_numpy(), np.float64)
    return _within_32_bits(array) if check else array


def _within_32_bits(array: np.ndarray) -> np.ndarray:
    if len(rows := np.flatnonzero(np.abs(array) > LARGEST)):
        array[rows] = np.nan
        raise BadCells("has no finite 32-bit number", "", (rows + 1).tolist(), Cells("number", array))
    return array


def _matrix(values: Any) -> np.ndarray:
    """Cells that are lists of numbers, all of one length."""
    try:
        array = np.asarray(values, np.float64)
        return array.reshape(len(array), -1)
    except (TypeError, ValueError) as error:
        raise FedSPMError("holds lists that are not numbers, or not all of one length") from error


def _series(values: Any) -> polars.Series:
    """Anything with one value per row as a Series of polars; pandas' missing values become its own."""
    if isinstance(values, polars.Series):
        return values
    if hasattr(values, "isna") and hasattr(values, "to_numpy"):
        values = _of_pandas(values)
    try:
        if isinstance(values, np.ndarray) and values.dtype.kind in "iufbMm":
            return polars.Series(np.ascontiguousarray(values.astype(values.dtype.newbyteorder("="))))
        if isinstance(values, polars.Series):
            return values
        return polars.Series(list(map(_plain, values)), strict=False)
    except (TypeError, ValueError, polars.exceptions.PolarsError) as error:
        raise FedSPMError(f"cannot be read as a column ({error})") from error


def _of_pandas(values: Any) -> Any:
    """A Series of pandas as an array, a list, or a Series of polars."""
    kind, numeric = str(values.dtype), getattr(values.dtype, "kind", "O") in "iuf"
    if kind == "category":
        return polars.Series([*_known(values)], dtype=polars.String).cast(polars.Categorical)
    if kind.startswith("period"):
        values, kind = values.dt.to_timestamp(), "datetime64"
    if kind.startswith("datetime64"):
        utc = values.dt.tz_convert("UTC").dt.tz_localize(None) if values.dt.tz else values
        return utc.to_numpy().astype("datetime64[us]")
    if kind.startswith("timedelta64"):
        return values.to_numpy().astype("timedelta64[us]")
    if numeric:
        return values.to_numpy(dtype=np.float64, na_value=np.nan)
    return [None if gone else cell for cell, gone in zip(values, values.isna(), strict=True)]


def _known(values: Any) -> Iterable[str | None]:
    """Cells of a pandas Series as the levels of a category."""
    for cell, gone in zip(values, values.isna(), strict=True):
        plain = _plain(cell)
        if gone:
            yield None
        elif isinstance(plain, bool | int | float):
            yield level_of(plain, "boolean" if isinstance(plain, bool) else "number")
        else:
            yield same_level(str(plain))


def _plain(cell: Any) -> Any:
    """What a NumPy scalar or a tensor without dimensions holds."""
    if getattr(cell, "ndim", None) == 0 and hasattr(cell, "item"):
        return cell.item()
    return cell.tolist() if isinstance(cell, np.ndarray) else cell
