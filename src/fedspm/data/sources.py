"""Where a named data set is found on this machine."""

import os
from pathlib import Path

import numpy as np

from fedspm.data.fashion import NAMES, is_fashion, load_fashion, load_sample
from fedspm.errors import FedSPMError

DATA_SETS = ("fashion-sample", "fashion-mnist")
SYSTEM = Path("/usr/share/datasets")


def load_images(name: str, path: Path | None = None) -> tuple[np.ndarray, np.ndarray, list[str]]:
    """uint8 images, labels and class names of a data set."""
    if name == "fashion-sample":
        return *load_sample(), NAMES
    if name == "fashion-mnist":
        return *load_fashion(_locate(name, path)), NAMES
    raise FedSPMError(f"there is no data set {name!r}; known are {', '.join(DATA_SETS)}")


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
