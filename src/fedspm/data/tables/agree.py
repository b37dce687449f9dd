"""What clients tell of their columns before training, and the schema that all of them use.

Of every column a client tells its kind, whether it identifies rows, and, if it has `min_count` rows, what at least so
many of them have in common: the levels of a category that so many rows hold, and whether so many lack a value. Levels
of fewer rows are never told.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any

import numpy as np
from pydantic import Field

from fedspm.base.errors import FedSPMError
from fedspm.base.schema import Strict
from fedspm.data.tables.cells import level_of, same_level
from fedspm.data.tables.schema import SchemaColumn, TableSchema
from fedspm.data.tables.table import Column, Kind, Table, common_kind, levels_of

MOST_LEVELS = 100  # of a category that a client tells
IDENTIFIER = re.compile(
    r"(^|[^a-z])(ids?|pid|(u?subj|subject|patient|person|case|study|record|sample|visit)(id|no)?|nr|(seq)?no|num|number|"
    r"mrn|ssn|uuid|guid|key|index|identifier|code)$",
    re.I,
)
UNNAMED = re.compile(r"^(|unnamed.*|index|row|rownames|row_?names?|rowid)$", re.I)
ENOUGH = 20  # values from which it is no accident that they do not repeat
DISTINCT = 0.9  # share of distinct values from which words, or numbers with such a name, identify rows


class ColumnSummary(Strict):
    """What a client tells of one column."""

    name: str
    kind: Kind
    levels: tuple[str, ...] = Field((), description="held by at least min_count rows each")
    rare: bool = Field(False, description="at least min_count rows hold other levels")
    missing: bool = Field(False, description="at least min_count rows lack the value")
    constant: str | None = Field(None, description="the value that all rows have, if they are at least min_count")
    identifier: bool | None = Field(
        None, description="its values hardly repeat, and it is called like an identifier; None if so few cannot tell"
    )
    same_as: str | None = Field(None, description="an earlier column with the same value in every row")
    few: bool = Field(False, description="there are fewer than min_count rows, so that nothing else is told")


def summarise(table: Table, min_count: int) -> tuple[ColumnSummary, ...]:
    """What a client tells of its training rows."""
    enough = len(table) >= min_count
    first: dict[tuple[Kind, tuple[str, ...], bytes], str] = {}
    found = []
    for column, values in table:
        said: dict[str, Any] = {"few": not enough, "identifier": identifies(column, values[~np.isnan(values)])}
        if enough:
            said |= _shown(column, values, min_count)
        elif not said["identifier"]:
            said["identifier"] = None
        if enough and column.kind != "empty":
            same = (column.kind, column.levels, sha256(np.ascontiguousarray(values).tobytes()).digest())
            if (twin := first.setdefault(same, column.name)) != column.name:
                said["same_as"] = twin
        found.append(ColumnSummary(name=column.name, kind=column.kind, **said))
    return tuple(found)


def _shown(column: Column, values: np.ndarray, min_count: int) -> dict[str, Any]:
    known = values[~np.isnan(values)]
    said: dict[str, Any] = {"missing": len(values) - len(known) >= min_count}
    if not len(known):
        return said
    if len(known) == len(values) and (known == known[0]).all():
        value = known[0].item()
        said["constant"] = column.levels[int(value)] if column.levels else level_of(value, column.kind)
    if column.kind == "category":
        levels, codes = levels_of(column, known)
        counts = np.bincount(codes, minlength=len(levels))
        order = np.argsort(-counts, kind="stable")[:MOST_LEVELS]
        told = [k for k in order.tolist() if counts[k] >= min_count]
        said["levels"] = tuple(levels[k] for k in sorted(told))
        said["rare"] = int(counts.sum() - counts[told].sum()) >= min_count
    return said


def identifies(column: Column, known: np.ndarray) -> bool | None:
    """Words that hardly repeat; numbers that hardly repeat and are whole, in a column that is called like one. The
    index that programs write before the first column has no name, or one that says so. None if too few values cannot
    tell."""
    if column.kind in ("boolean", "date"):
        return False
    enough = ENOUGH
    if column.kind == "number":
        index = bool(UNNAMED.match(column.name))
        if (known != np.round(known)).any() or not (index or IDENTIFIER.search(column.name)):
            return False
        enough = 2 if index else ENOUGH
    if len(np.unique(known)) < (DISTINCT if enough == ENOUGH else 1) * len(known):
        return False
    return True if len(known) >= enough else None


# -- agreement -------------------------------------------------------------------------------------------------------


def agreed_schema(told: Mapping[str, Sequence[ColumnSummary]]) -> TableSchema:
    """The columns that all clients have, in the order of the first."""
    first, *others = told
    names = [summary.name for summary in told[first]]
    for client in others:
        require_same_columns(names, [summary.name for summary in told[client]], first, client)
    by_name = {client: {summary.name: summary for summary in told[client]} for client in told}
    columns: list[SchemaColumn] = []
    dropped: dict[str, str] = {}
    for name in names:
        summaries = {client: found[name] for client, found in by_name.items()}
        kind = _agreed_kind(name, {client: summary.kind for client, summary in summaries.items()})
        if why := _useless(summaries.values(), kind, columns):
            dropped[name] = why
        else:
            columns.append(_agreed(name, kind, summaries.values()))
    if not columns:
        why = "; ".join(f"{name!r} {reason}" for name, reason in list(dropped.items())[:5])
        raise FedSPMError(f"no column is left to learn from: {why}")
    return TableSchema(columns=tuple(columns), dropped=dropped)


def require_same_columns(names: Sequence[str], own: Sequence[str], first: str, client: str) -> None:
    if set(own) == set(names):
        return
    less, more = ([each for each in one if each not in other] for one, other in ((names, own), (own, names)))
    parts = [f"lack {', '.join(less[:5])}"] * bool(less) + [f"have also {', '.join(more[:5])}"] * bool(more)
    raise FedSPMError(
        f"client {client!r} has other columns than client {first!r}: its rows {' and '.join(parts)}; all need the same "
        "columns, in any order"
    )


def harmonised(tables: Mapping[str, Table], categories: Iterable[str] = ()) -> dict[str, Table]:
    """Tables on one machine, in which a column of numbers here and of words there is a category everywhere; so are the
    columns that somebody chose."""
    kinds: dict[str, set[Kind]] = {}
    for table in tables.values():
        for column in table.columns:
            kinds.setdefault(column.name, set()).add(column.kind)
    chosen = {*categories, *(name for name, found in kinds.items() if common_kind(found) == "category")}
    mixed = {name for name in chosen if kinds.get(name, set()) - {"category", "empty"}}
    return {client: table.with_categories(mixed) if mixed else table for client, table in tables.items()}


def _agreed_kind(name: str, kinds: Mapping[str, Kind]) -> Kind:
    kind = common_kind(set(kinds.values()))
    if kind is None or (kind == "category" and {*kinds.values()} - {"category", "empty"}):
        one = next(client for client, found in kinds.items() if found in ("date", "category"))
        other = next(client for client, found in kinds.items() if found not in (kinds[one], "empty"))
        held = {"date": "dates", "category": "words", "number": "numbers", "boolean": "true and false"}
        raise FedSPMError(
            f"column {name!r} holds {held[kinds[one]]} at {one!r} and {held[kinds[other]]} at {other!r}; use one kind "
            "at all of them, or leave the column out"
        )
    return kind


def _useless(summaries: Iterable[ColumnSummary], kind: Kind, kept: Sequence[SchemaColumn]) -> str | None:
    """Why a column is left out; None if it is not."""
    found = [summary for summary in summaries if summary.kind != "empty"]
    told = [summary for summary in found if not summary.few]
    if kind == "empty":
        return "has no value in any row"
    constants = {summary.constant for summary in told}
    if len(constants) == 1 and None not in constants:
        return f"is {constants.pop()} in every row"
    if {summary.identifier for summary in found} - {None} == {True}:
        return "identifies rows: its values hardly repeat"
    twins = {summary.same_as for summary in told}
    if len(twins) == 1 and (twin := twins.pop()) in {column.name for column in kept}:
        return f"is the same as {twin!r} in every row"
    if kind == "category" and not any(summary.levels for summary in found):
        return "has no level that enough rows of a client hold (min_count)"
    return None


def _agreed(name: str, kind: Kind, summaries: Iterable[ColumnSummary]) -> SchemaColumn:
    assert kind != "empty"
    found = list(summaries)
    missing = any(summary.missing for summary in found)
    if kind != "category":
        return SchemaColumn(name=name, kind=kind, missing=missing)
    levels = {same_level(level) for summary in found for level in summary.levels}
    other = any(summary.rare for summary in found)
    return SchemaColumn(name=name, kind=kind, levels=tuple(sorted(levels, key=_place)), other=other, missing=missing)


def _place(level: str) -> tuple[float, str]:
    """Numbers in their order, then words in theirs."""
    try:
        return float(level), level
    except ValueError:
        return float("inf"), level
