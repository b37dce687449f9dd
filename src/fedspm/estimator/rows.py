"""X, y and sites, as scikit-learn hands them over, made a federation; and weights of rows."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from sklearn.base import BaseEstimator
from sklearn.utils.class_weight import compute_class_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_consistent_length, column_or_1d, validate_data

from fedspm.base.errors import FedSPMError
from fedspm.data.arrays import as_input
from fedspm.data.encode import TableOptions, encode_clients
from fedspm.data.federation import Federation
from fedspm.data.part import Part

ONE_SITE = "all"  # what it is called where no sites are given


def validated(estimator: BaseEstimator, *rows: Any, **options: Any) -> Any:
    """What scikit-learn's `validate_data` returns, or its sentence as an error of ours."""
    try:
        return validate_data(estimator, *rows, **options)
    except ValueError as error:
        raise FedSPMError(str(error)) from error


def federation_of(estimator: BaseEstimator, x: Any, y: Any, sites: Any) -> Federation:
    """One client per value of `sites`; one for all rows if there are none. Classes may be of any kind that
    scikit-learn takes."""
    if y is None:
        raise FedSPMError("requires y to be passed, but the target y is None: give labels, or a Federation")
    if is_table(x):
        check_consistent_length(x, y)
        validated(estimator, x, skip_check_array=True)
    else:
        x, y = validated(
            estimator, x, y, dtype="numeric", ensure_2d=False, allow_nd=True, ensure_min_features=1, multi_output=False
        )
        if np.ndim(x) not in (2, 4):
            raise FedSPMError(
                f"Expected 2D array of vectors or 4D array of images, got {np.ndim(x)}D array instead. "
                "Reshape your data: x must be (n, features) or (n, channels, height, width)"
            )
    labels = column_or_1d(y, warn=True)
    if (gone := _missing(labels)).any():
        raise FedSPMError(f"y has no label in row {int(gone.argmax()) + 1}; label it or leave the row out")
    check_classification_targets(labels)
    classes, codes = np.unique(labels, return_inverse=True)
    if len(classes) < 2:
        raise FedSPMError(f"all rows have one class only ({classes[0]}); there is nothing to predict")
    names = _names(sites, len(codes))
    rows = {name: np.flatnonzero(names == name) for name in dict.fromkeys(names.tolist())}
    if is_table(x):
        given = {name: (_taken(x, mine), codes[mine]) for name, mine in rows.items()}
        _, tables, _, schema = encode_clients(given, None, None, 0, None, TableOptions())
        made = Federation(tuple(rows), classes, tuple(tables), schema=schema)
    else:
        parts = tuple(Part(as_input(x[mine]), torch.from_numpy(codes[mine])) for mine in rows.values())
        made = Federation(tuple(rows), classes, parts)
    return made.checked() if len(rows) > 1 else made


def require_federation(given: object) -> None:
    if not isinstance(given, Federation):
        raise FedSPMError(
            f"a Federation is needed, not {type(given).__name__}; make one with "
            'Federation.from_arrays({"north": (x, y), "south": (x2, y2)}), or use score'
        )


def require_comparable(labels: np.ndarray, predicted: np.ndarray) -> None:
    if labels.shape != predicted.shape:
        raise FedSPMError(f"y has shape {labels.shape}, x has {len(predicted)} rows; y needs one label a row")
    if not len(labels):
        raise FedSPMError("x has no rows to score")
    if (labels.dtype.kind in "biuf") != (predicted.dtype.kind in "biuf"):
        raise FedSPMError(f"y: labels are {labels.dtype}, the training labels are {predicted.dtype}; use one kind")


def is_table(x: Any) -> bool:
    """A data frame, whose columns go by their names and may hold anything that a `Federation` takes."""
    return hasattr(x, "columns") and not isinstance(x, np.ndarray | torch.Tensor)


def _taken(frame: Any, rows: np.ndarray) -> Any:
    return frame.iloc[rows] if hasattr(frame, "iloc") else frame[rows.tolist()]


def _names(sites: Any, n: int) -> np.ndarray:
    if sites is None:
        return np.full(n, ONE_SITE)
    given = column_or_1d(sites)
    if len(given) != n:
        raise FedSPMError(f"sites has {len(given)} entries, x has {n} rows; every row needs one")
    if _missing(given).any():
        raise FedSPMError("sites has missing values; every row needs one")
    names: np.ndarray = given.astype(str)
    return names


def _missing(values: np.ndarray) -> np.ndarray:
    """None, NaN, and what pandas has in their place."""
    gone = [value is None or (str(value) in ("<NA>", "NaT", "nan") and not isinstance(value, str)) for value in values]
    return np.array(gone, bool)


def site_names(sites: Any, n: int, known: list[str]) -> np.ndarray:
    """The numbers of the sites that rows are from, all of which the model must know."""
    names = _names(sites, n)
    if unknown := sorted(set(names.tolist()) - set(known)):
        raise FedSPMError(f"there is no client {unknown[0]!r}; known are {', '.join(known)}")
    return np.array([known.index(name) for name in names.tolist()], dtype=np.int64)


def with_weights(
    federation: Federation, sites: Any, sample_weight: Any, class_weight: str | Mapping[Any, float] | None
) -> Federation:
    """Every training row with the weight of its class times its own, such that their mean over all clients is 1."""
    if sample_weight is None and class_weight is None:
        return federation
    y = np.concatenate([part.y.numpy() for part in federation.train])
    weight = np.ones(len(y))
    if class_weight is not None:
        known = {_class_of(label, federation): value for label, value in _class_weights(class_weight, federation, y)}
        weight *= np.array([known.get(k, 1.0) for k in range(len(federation.classes))])[y]
    if sample_weight is not None:
        given = _check_sample_weight(sample_weight, y, ensure_non_negative=True)
        names = _names(sites, len(y))
        weight *= np.concatenate([given[names == name] for name in federation.names])
    if not weight.sum() > 0:
        raise FedSPMError("all weights of rows are zero; at least one must be positive")
    pieces = torch.from_numpy((weight / weight.mean()).astype(np.float32)).split(federation.counts)
    train = tuple(replace(part, weight=piece) for part, piece in zip(federation.train, pieces, strict=True))
    return replace(federation, train=train)


def _class_weights(
    class_weight: str | Mapping[Any, float], federation: Federation, y: np.ndarray
) -> list[tuple[Any, float]]:
    if isinstance(class_weight, Mapping):
        return list(class_weight.items())
    if class_weight != "balanced":
        raise FedSPMError(
            f'class_weight is {class_weight!r}; it must be None, "balanced" or a dict of weights by class'
        )
    present = np.unique(y)
    weights = compute_class_weight("balanced", classes=present, y=y)
    return [(federation.classes[k], weight) for k, weight in zip(present, weights, strict=True)]


def _class_of(label: Any, federation: Federation) -> int:
    places = np.flatnonzero(federation.classes == label)
    if not len(places):
        raise FedSPMError(
            f"class_weight names {label!r}, which is not one of the classes {federation.classes.tolist()}"
        )
    return int(places[0])
