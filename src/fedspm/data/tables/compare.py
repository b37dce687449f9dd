"""Where the tables of clients differ in a way that hints at a mistake: spellings, units, numbers that mean "unknown".

It looks at all rows of all clients, so it is for data on one machine: `fedspm data check`.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fedspm.data.tables.agree import identifies
from fedspm.data.tables.cells import numbers_of
from fedspm.data.tables.table import Column, Table, levels_of

STAND_INS = (0, -1, -9, -99, -999, 9, 99, 999, 9999)  # numbers that people write for "unknown"
DISTINCT = 10  # values from which numbers are measurements
MANY_NUMBERS = 20  # distinct ones, which are more than the levels of a category are
GAP = 10  # times the usual distance between values: a number so far from all others is none of them
OFTEN = 0.01  # share of rows, and
TIMES = 3  # rows that hold such a number
FACTOR = 5  # between medians, from which units are doubted
MOSTLY, HARDLY = 0.5, 0.1  # shares of missing values, between two clients
SHOWN, LONGEST = 6, 16  # levels in a cell, and characters of one


@dataclass(frozen=True)
class Difference:
    """One row of the table that is shown."""

    column: str
    what: str
    clients: dict[str, str]  # what each has


def mostly_numbers(tables: Mapping[str, Table], chosen: Collection[str] = ()) -> Iterator[str]:
    """Categories that nobody chose and of which most cells are numbers, many different ones."""
    counts: dict[str, Counter[str]] = {}
    for table in tables.values():
        for column, values in table:
            if column.kind == "category" and column.name not in chosen:
                levels, codes = levels_of(column, values)
                held, times = np.unique(codes[codes >= 0], return_counts=True)  # of a million identifiers a few
                found = {levels[k]: count for k, count in zip(held.tolist(), times.tolist(), strict=True)}
                counts.setdefault(column.name, Counter()).update(found)
    for name, often in counts.items():
        words = [level for level, number in zip(often, numbers_of([*often]), strict=True) if np.isnan(number)]
        rows = sum(often[level] for level in words)
        if words and len(often) - len(words) >= MANY_NUMBERS and 2 * rows < often.total():
            yield (
                f"column {name!r} is a category because {rows:,} of its {often.total():,} values are no numbers, "
                f"{words[0]!r} for instance: if it measures something, write numbers or nothing there"
            )


Values = dict[str, np.ndarray]  # a column at every client, without what is missing


def differences(tables: Mapping[str, Table]) -> list[Difference]:
    """Everything that is found, in the order of the columns; tables that lack a column are passed over."""
    found: list[Difference] = []
    for name in next(iter(tables.values())).names if tables else ():
        here = {client: table for client, table in tables.items() if name in table.names}
        columns = {client: table.columns[table.names.index(name)] for client, table in here.items()}
        cells = {client: table.values[:, table.names.index(name)] for client, table in here.items()}
        known = {client: values[~np.isnan(values)] for client, values in cells.items()}
        found += _missing(name, cells)
        if {identifies(columns[client], values) for client, values in known.items()} - {None} == {True}:
            continue
        if any(column.kind == "category" for column in columns.values()):
            found += _levels(name, columns, cells)
        elif all(column.kind in ("number", "empty") for column in columns.values()):
            found += _stand_ins(name, known)
            found += _units(name, known)
    return found


def _by_client(values: Values, say: Callable[[np.ndarray], str]) -> dict[str, str]:
    return {client: say(each) if len(each) else "–" for client, each in values.items()}


def _missing(name: str, cells: Values) -> Iterator[Difference]:
    share = {client: float(np.isnan(values).mean()) for client, values in cells.items() if len(values)}
    if share and max(share.values()) >= MOSTLY and min(share.values()) <= HARDLY:
        yield Difference(name, "missing", {client: f"{each:.0%}" for client, each in share.items()})


def _levels(name: str, columns: Mapping[str, Column], cells: Values) -> Iterator[Difference]:
    """Levels that are the same but for capitals and blanks, and clients that have no level of the others."""
    held: dict[str, set[str]] = {}
    for client, column in columns.items():
        names, codes = levels_of(column, cells[client])
        held[client] = {names[k] for k in np.unique(codes[codes >= 0]).tolist()}
    spellings: dict[str, set[str]] = {}
    for levels in held.values():
        for level in levels:
            spellings.setdefault("".join(level.casefold().split()), set()).add(level)
    for same in sorted(spellings):
        if len(spellings[same]) > 1:
            mine = {client: _few(levels & spellings[same]) for client, levels in held.items()}
            yield Difference(name, "spelt in several ways", mine)
    held = {client: levels for client, levels in held.items() if levels}
    alone = []
    for client, levels in held.items():
        others = {level.casefold() for other, each in held.items() if other != client for level in each}
        if others and not {level.casefold() for level in levels} & others:
            alone.append(client)
    if alone:
        what = "no level in common" if len(alone) == len(held) else f"no level of {', '.join(alone)} elsewhere"
        yield Difference(name, what, {each: _few(held.get(each, set())) for each in columns})


def _few(levels: set[str]) -> str:
    shown = [level if len(level) <= LONGEST else level[: LONGEST - 1] + "…" for level in sorted(levels)]
    return ", ".join(shown[:SHOWN]) + (", …" if len(shown) > SHOWN else "") if shown else "–"


def _stand_ins(name: str, known: Values) -> Iterator[Difference]:
    """A number that is often there and far from all others."""
    pooled = np.concatenate([*known.values()]) if known else np.empty(0)
    for number in STAND_INS:
        times = int((pooled == number).sum())
        if times < max(TIMES, OFTEN * len(pooled)):
            continue
        others = np.unique(pooled[pooled != number])
        if len(others) < DISTINCT:
            continue
        if np.abs(others - number).min() > GAP * np.median(np.diff(others)):
            share = {client: values == number for client, values in known.items()}
            yield Difference(
                name, f"is {number}, far from all others", _by_client(share, lambda is_: f"{is_.mean():.0%}")
            )


def _units(name: str, known: Values) -> Iterator[Difference]:
    """Medians that differ by a factor, of values that do not overlap."""
    spread = {
        client: np.quantile(values, [0.05, 0.5, 0.95])
        for client, values in known.items()
        if len(values) >= DISTINCT and (values > 0).mean() > 1 - HARDLY
    }
    for client, (low, median, high) in spread.items():
        others = [each for other, each in spread.items() if other != client]
        if not others or median <= 0:
            continue
        usual = float(np.median([each[1] for each in others]))
        apart = high < min(each[0] for each in others) or low > max(each[2] for each in others)
        if usual > 0 and apart and max(median / usual, usual / median) >= FACTOR:
            yield Difference(
                name, "medians differ: another unit?", _by_client(known, lambda values: f"{np.median(values):.3g}")
            )
            return
