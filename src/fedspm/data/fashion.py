"""Fashion-MNIST: the sample that ships with the package, and all 70,000 images from idx files."""

import gzip
import struct
import zlib
from pathlib import Path

import numpy as np

from fedspm.errors import DamagedFile

NAMES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
SAMPLE = Path(__file__).parent / "sample"
PARTS = ("train", "t10k")


def load_sample() -> tuple[np.ndarray, np.ndarray]:
    """10,000 real images, 1,000 of each class."""
    return _pair(SAMPLE / "images-idx3-ubyte.gz", SAMPLE / "labels-idx1-ubyte.gz")


def load_fashion(folder: Path) -> tuple[np.ndarray, np.ndarray]:
    """Training and test images pooled to 70,000 × 28 × 28, and their labels."""
    pairs = [
        _pair(_find(folder, f"{part}-images-idx3-ubyte"), _find(folder, f"{part}-labels-idx1-ubyte")) for part in PARTS
    ]
    return np.concatenate([x for x, _ in pairs]), np.concatenate([y for _, y in pairs])


def is_fashion(folder: Path) -> bool:
    return any((folder / f"train-images-idx3-ubyte{ending}").exists() for ending in ("", ".gz"))


def _find(folder: Path, stem: str) -> Path:
    for candidate in (folder / f"{stem}.gz", folder / stem):
        if candidate.exists():
            return candidate
    raise DamagedFile(f"{folder}: {stem}(.gz) is missing; Fashion-MNIST needs its four idx files in one folder")


def _pair(images: Path, labels: Path) -> tuple[np.ndarray, np.ndarray]:
    x, y = read_idx(images, dimensions=3), read_idx(labels, dimensions=1)
    if len(x) != len(y):
        raise DamagedFile(f"{images} has {len(x)} images, {labels.name} has {len(y)} labels; one of them is damaged")
    return x, y


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of unsigned bytes, gzipped or not."""
    try:
        content = path.read_bytes()
        data = gzip.decompress(content) if path.suffix == ".gz" else content
    except (OSError, EOFError, zlib.error) as error:
        raise DamagedFile(f"{path} cannot be read: {error}") from error
    header = 4 + 4 * dimensions
    if len(data) < header or data[:4] != bytes([0, 0, 8, dimensions]):
        raise DamagedFile(f"{path} is not an idx file of unsigned bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", data[4:header])
    if len(data) - header != np.prod(shape):
        raise DamagedFile(
            f"{path} promises {shape} bytes of data and holds {len(data) - header}; it is damaged or cut off"
        )
    return np.frombuffer(data, np.uint8, offset=header).reshape(shape)
