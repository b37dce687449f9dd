"""Where a named data set is found: in this package, on this machine, or in a plugin."""

import os
from pathlib import Path
from typing import Any

import numpy as np

from fedspm.data.fashion import NAMES, is_fashion, load_fashion, load_sample
from fedspm.data.federation import Federation
from fedspm.errors import FedSPMError
from fedspm.plugins import plugin, plugin_names

DATA_SETS = ("fashion-sample", "fashion-mnist")
SYSTEM = Path("/usr/share/datasets")


Images = tuple[np.ndarray, np.ndarray, list[str]]  # uint8 images, labels, class names


def is_known(name: str) -> bool:
    return name in (*DATA_SETS, *plugin_names("data"))


def load_data(name: str, path: Path | None = None) -> Images | Federation:
    """Images to be divided over clients, or a federation that is divided already."""
    if name == "fashion-sample":
        return *load_sample(), NAMES
    if name == "fashion-mnist":
        return *load_fashion(_locate(name, path)), NAMES
    if loader := plugin("data", name):
        try:
            loaded = loader(path)
        except Exception as error:  # whatever another package does wrong
            raise FedSPMError(f"the data set {name!r} cannot be loaded: {error!r}") from error
        return _checked(name, loaded)
    known = ", ".join([*DATA_SETS, *plugin_names("data")])
    raise FedSPMError(f"there is no data set {name!r}; known are {known}, and the path of your own data")


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


def _locate(name: str, path: Path | None) -> Path:
    """The path in the configuration; without one, $FEDSPM_DATA/<name>, the system package, the user cache."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "fedspm" / name
    root = os.environ.get("FEDSPM_DATA")
    places = [path] if path else [*([Path(root) / name] if root else []), SYSTEM / name, cache]
    for place in places:
        if is_fashion(place):
            return place
    raise FedSPMError(
        f"{name} was not found in {', '.join(map(str, places))}; on Debian or Ubuntu run "
        f"`apt-get install dataset-fashion-mnist`, elsewhere put its four idx files into {cache}"
    )
