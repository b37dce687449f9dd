"""Where a named data set is found: in this package, on this machine, or in a plugin."""

from pathlib import Path
from typing import Any

import numpy as np

from fedspm.base.errors import FedSPMError
from fedspm.base.plugins import plugin, plugin_names
from fedspm.data.catalog import cifar, fashion, heart, isic
from fedspm.data.catalog.dataset import DataSet
from fedspm.data.federation import Federation
from fedspm.data.readers.draft import Draft

SAMPLE = "fashion-sample"
NAMED: dict[str, DataSet] = {
    each.name: each for each in (fashion.FASHION, cifar.CIFAR10, cifar.CIFAR100, isic.ISIC, heart.HEART)
}
CLASSES = {"fashion-mnist": fashion.NAMES, "cifar10": cifar.NAMES, "cifar100": cifar.COARSE}

Images = tuple[np.ndarray, np.ndarray, list[str]]  # uint8 images, labels, class names


def is_known(name: str) -> bool:
    return name in (SAMPLE, *NAMED) or name in plugin_names("data")  # which looks through every installed package


def list_datasets() -> list[dict[str, Any]]:
    """Every data set that has a name: where it lies and in which form, or what helps where it is missing (`fix`)."""
    known: list[dict[str, Any]] = [{"name": SAMPLE, "where": "ships with the package", "form": "idx files"}]
    for each in NAMED.values():
        row: dict[str, Any] = {"name": each.name, "about": each.about, "where": None, "form": None}
        try:
            if found := each.look():
                row |= {"where": str(found[0]), "form": found[1]}
            else:
                row |= {"fix": each.fix}
        except FedSPMError as error:
            row |= {"fix": str(error)}
        known.append(row)
    return known + [{"name": name, "where": "a plugin", "form": None} for name in plugin_names("data")]


def load_data(name: str, path: Path | None = None, size: int | None = None) -> Images | Federation | Draft:
    """Images to be divided over clients, a federation that is divided already, or tables by client, of which rows are
    still to be held out."""
    if name == SAMPLE:
        return *fashion.load_sample(), fashion.NAMES
    if name in NAMED:
        decoded = NAMED[name].load(path, size)
        if name not in CLASSES:
            return heart.draft(decoded) if name == heart.HEART.name else isic.federation(decoded)
        return decoded.arrays["images"], np.asarray(decoded.arrays["labels"]), CLASSES[name]
    if loader := plugin("data", name):
        try:
            loaded = loader(path)
        except Exception as error:  # whatever another package does wrong
            raise FedSPMError(f"the data set {name!r} cannot be loaded: {error!r}") from error
        return _checked(name, loaded)
    raise unknown_data(name)


def named(name: str) -> DataSet:
    """One that is looked for on this machine: neither the sample nor a plugin."""
    if name in NAMED:
        return NAMED[name]
    if name == SAMPLE or name in plugin_names("data"):
        raise FedSPMError(f"{name} comes with a package; there is nothing to fetch")
    raise unknown_data(name)


def unknown_data(name: str) -> FedSPMError:
    known = ", ".join([SAMPLE, *NAMED, *plugin_names("data")])
    return FedSPMError(
        f"there is no data set {name!r}, nor a file or folder; known are {known}, and the path of your own data"
    )


def _checked(name: str, loaded: Any) -> Images | Federation:
    """What a plugin loaded, or a sentence about what is wrong with it."""
    if isinstance(loaded, Federation):
        return loaded
    try:
        images, labels, names = loaded
        images, labels, names = np.asarray(images), np.asarray(labels), list(map(str, names))
    except (TypeError, ValueError) as error:
        raise FedSPMError(
            f"the data set {name!r} must load as (images, labels, class names) or as a Federation"
        ) from error
    if images.dtype != np.uint8 or images.ndim not in (3, 4) or (images.ndim == 4 and images.shape[3] != 3):
        raise FedSPMError(
            f"the data set {name!r} has images of type {images.dtype} and shape {images.shape}; "
            "expected uint8 and (n, height, width) or (n, height, width, 3)"
        )
    if labels.shape != images.shape[:1] or not np.isin(labels, range(len(names))).all():
        raise FedSPMError(
            f"the data set {name!r} needs one label an image, from 0 to {len(names) - 1}: the number of its class name"
        )
    return images, labels, names
