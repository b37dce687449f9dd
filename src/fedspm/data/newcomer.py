"""The rows of one client that comes to a run: in any form of one's own data, as the other clients have theirs."""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from fedspm.base.errors import FedSPMError
from fedspm.data.arrays import as_classes, as_input, as_rows
from fedspm.data.encode import as_vectors
from fedspm.data.part import Part, split_part
from fedspm.data.readers.detect import read_path
from fedspm.data.readers.draft import Draft, Labelled, ReadOptions
from fedspm.data.tables.schema import TableSchema
from fedspm.data.tables.table import Table


@dataclass(frozen=True)
class RowSchema:
    """What the rows of all clients have in common."""

    shape: tuple[int, ...]
    classes: np.ndarray
    table: TableSchema | None = None  # of vectors whose features have names


def read_newcomer(
    path: Path, name: str, like: RowSchema, how: ReadOptions, test_fraction: float, seed: int
) -> tuple[Part, Part]:
    """Training and test rows; rows are held out where the data brings no test rows of its own."""
    height, *width = like.shape[1:] or (None,)
    draft = read_path(path, replace(how, client=name, size=height if width == [height] else None))
    if draft.problems:
        raise FedSPMError(draft.problems[0])
    whose = _whose(draft, name)
    train = _part(draft.train[whose], like, f"client {name!r}")
    if whose in draft.test:
        return train, _part(draft.test[whose], like, f"client {name!r}, test rows")
    return split_part(train, test_fraction, (seed, name))


def read_labelled(path: Path, like: RowSchema, how: ReadOptions, otherwise: str) -> dict[str, Part]:
    """All rows of new data by client, whether they are marked for training or for testing; `otherwise` is the name of a
    client where the data does not say whose rows they are."""
    height, *width = like.shape[1:] or (None,)
    draft = read_path(path, replace(how, client=otherwise, size=height if width == [height] else None))
    if draft.problems:
        raise FedSPMError(draft.problems[0])
    found: dict[str, Part] = {}
    for rows in (draft.train, draft.test):
        for name, labelled in rows.items():
            part = _part(labelled, like, f"client {name!r}")
            if name in found:
                part = Part(torch.cat([found[name].x, part.x]), torch.cat([found[name].y, part.y]))
            found[name] = part
    return found


def _whose(draft: Draft, name: str) -> str:
    """The one client of the data, or the one with this name."""
    found = list(draft.train)
    if len(found) != 1 and name not in found:
        raise FedSPMError(f"{draft.where} holds the clients {', '.join(found)}, and none is called {name!r}")
    return name if name in found else found[0]


def _part(rows: Labelled, like: RowSchema, where: str) -> Part:
    """Rows of the shape that the others have, with labels among theirs."""
    x, y = as_rows(rows, where)
    if like.classes.dtype.kind == "U" and y.dtype.kind in "iu":
        y = y.astype(str)
    if isinstance(x, Table) and like.table is None:
        x = torch.from_numpy(x.numbers(where))
    return Part(as_input(as_vectors(x, like.table, where), like.shape, where), as_classes(y, like.classes, where))
