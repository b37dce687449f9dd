"""What a federation must have to be trained on; whatever is wrong is said with the client that it is about."""

import warnings
from collections.abc import Sequence

import numpy as np

from fedspm.base.errors import FedSPMError
from fedspm.data.arrays import require_finite, too_coarse
from fedspm.data.part import Part
from fedspm.data.readers.draft import leaving_out
from fedspm.data.tables.schema import TableSchema


def require_trainable(
    names: Sequence[str],
    classes: np.ndarray,
    train: Sequence[Part],
    test: Sequence[Part] | None,
    schema: TableSchema | None,
) -> None:
    """Enough clients, rows and classes, rows of one shape, and finite values, or missing ones where there may be."""
    columns = schema.features if schema else None
    if len(names) < 2:
        raise FedSPMError(
            f"a federation needs at least two clients, this one has {len(names)}: "
            "with fewer there is nobody to route to or learn with"
        )
    if few := {name: len(part) for name, part in zip(names, train, strict=True) if len(part) < 2}:
        count = ", ".join(f"client {name!r} has {('no rows', 'only one row')[n]}" for name, n in few.items())
        raise FedSPMError(
            f"{count} to train on; every client needs at least two besides its test rows: add rows, leave the "
            f"client out ({leaving_out(list(few))}), or hold out less (data.test_fraction)"
        )
    shape = train[0].x.shape[1:]
    if columns and len(columns) != shape[0]:
        raise FedSPMError(f"{len(columns)} columns have names, but rows have shape {tuple(shape)}")
    for name, part in zip(names, train, strict=True):
        if part.x.shape[1:] != shape:
            raise FedSPMError(
                f"client {name!r} has rows of shape {tuple(part.x.shape[1:])}, client {names[0]!r} of shape "
                f"{tuple(shape)}; all clients need the same shape"
            )
        if part.y.unique().numel() == 1:
            label = classes[int(part.y[0])]
            warnings.warn(
                f"client {name!r} has one class only ({label}): a head of its own learns nothing else",
                stacklevel=4,
            )
    for where, parts in (("training", train), ("test", test or ())):
        for name, part in zip(names, parts, strict=False):
            require_finite(part.x, f"client {name!r}, {where} rows", missing=schema is not None)
    if len(shape) == 1:
        features = columns or [f"feature {k}" for k in range(shape[0])]
        for sentence in too_coarse([part.x for part in train], features):
            warnings.warn(sentence, stacklevel=4)
    if len(classes) < 2:
        raise FedSPMError(f"all clients together have one class only ({classes[0]}); there is nothing to predict")
