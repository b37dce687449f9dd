"""Rows of all clients made of one kind: labels become class numbers, and tables vectors.

What a table's columns mean is agreed on from the training rows alone, as sites that never meet would agree on it.
"""

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.arrays import Rows, as_classes, as_input, as_rows
from fedspm.data.part import Arrays, Part, split_part, split_rows
from fedspm.data.tables.agree import agreed_schema, harmonised, summarise
from fedspm.data.tables.compare import mostly_numbers
from fedspm.data.tables.schema import TableSchema
from fedspm.data.tables.table import Table

MIN_COUNT = 10  # of `Settings`


@dataclass(frozen=True)
class TableOptions:
    """How columns of tables are understood: numbers that name levels, how many rows must hold a level, and the schema
    of a model that there is already."""

    categories: Sequence[str] = ()
    min_count: int = MIN_COUNT
    schema: TableSchema | None = None


Labelled = tuple[Rows, np.ndarray]


def encode_clients(
    train: Mapping[str, Arrays],
    test: Mapping[str, Arrays] | None,
    test_fraction: float | None,
    seed: int,
    columns: Sequence[str] | None,
    how: TableOptions,
) -> tuple[np.ndarray, list[Part], tuple[Part, ...] | None, TableSchema | None]:
    """Classes, training rows, test rows (those that are given, or a fraction that is held out), and what the columns of
    vectors mean."""
    raw = {name: as_rows(value, f"client {name!r}") for name, value in train.items()}
    held = {name: as_rows(value, f"client {name!r}, test rows") for name, value in (test or {}).items()}
    for_training = dict(raw)
    if test is None and test_fraction is not None:
        kept = {name: split_rows(len(y), test_fraction, (seed, name, "test"))[0] for name, (_, y) in raw.items()}
        for_training = {name: (x[kept[name].numpy()], y) for name, (x, y) in raw.items() if isinstance(x, Table)}
    schema = how.schema or _schema(for_training, columns, how)
    classes = np.unique(np.concatenate([y for _, y in raw.values()])) if raw else np.empty(0)
    parts = [_part(rows, classes, schema, f"client {name!r}") for name, rows in raw.items()]
    if test is None and test_fraction is None:
        return classes, parts, None, schema
    if test is None:
        assert test_fraction is not None
        halves = [split_part(part, test_fraction, (seed, name)) for name, part in zip(raw, parts, strict=True)]
        return classes, [kept for kept, _ in halves], tuple(held for _, held in halves), schema
    tests = []
    for name, part in zip(raw, parts, strict=True):
        found = Part(part.x[:0], part.y[:0])
        if name in held:
            found = _part(held[name], classes, schema, where := f"client {name!r}, test rows")
            found = Part(as_input(found.x, part.x.shape[1:], where), found.y)
        tests.append(found)
    return classes, parts, tuple(tests), schema


def _schema(raw: Mapping[str, Labelled], columns: Sequence[str] | None, how: TableOptions) -> TableSchema | None:
    tables = {name: x for name, (x, _) in raw.items() if isinstance(x, Table)}
    if not tables:
        return TableSchema.of_numbers(columns) if columns else None
    if nameless := [name for name in raw if name not in tables]:
        raise FedSPMError(
            f"the columns of client {next(iter(tables))!r} have names and those of client {nameless[0]!r} have none; "
            "give all rows as data frames, or none"
        )
    tables = harmonised(tables, how.categories)
    schema = agreed_schema({name: summarise(x, how.min_count) for name, x in tables.items()})
    for sentence in (*said_of_dropped(schema), *mostly_numbers(tables, how.categories)):
        warnings.warn(sentence, stacklevel=5)
    return schema


def said_of_dropped(schema: TableSchema) -> Iterable[str]:
    return [f"column {name!r} is left out: it {why}" for name, why in schema.dropped.items()]


def _part(rows: Labelled, classes: np.ndarray, schema: TableSchema | None, where: str) -> Part:
    x, y = rows
    return Part(as_vectors(x, schema, where), as_classes(y, classes, where))


def as_vectors(x: Rows, schema: TableSchema | None, where: str) -> Tensor:
    """Tables encoded; vectors of a model that knows names are in their order already."""
    if not isinstance(x, Table):
        return x if schema is None or schema.is_plain else schema.encode_array(x.numpy(), where)
    if schema is None:
        raise FedSPMError(f"{where}: rows have names of columns, and those of the other clients have none")
    return schema.encode(x, where)


def reencoded(part: Part, old: TableSchema, new: TableSchema, where: str) -> Part:
    """Rows that were encoded by one schema, encoded by another, as far as the first still tells their levels apart."""
    known = {column.name: column for column in old.columns}
    for column in new.columns:
        if lost := set(column.levels) - set(known[column.name].levels if column.name in known else column.levels):
            raise FedSPMError(
                f"{where}: rows with {column.name} = {min(lost)!r} are no longer told apart from others; make it with "
                "Federation.from_arrays(…, schema=…) and the schema of the model"
            )
    return Part(new.encode(old.decode(part.x), where), part.y)
