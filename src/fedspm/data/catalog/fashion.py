"""Fashion-MNIST: the sample that ships with the package, and all 70,000 images from idx files."""

import gzip
import math
import struct
from collections.abc import Iterator
from io import BufferedIOBase
from pathlib import Path

import numpy as np

from fedspm.base.errors import DamagedFile
from fedspm.data.catalog.cache import Piece
from fedspm.data.catalog.dataset import DataSet, Note
from fedspm.data.catalog.download import Download
from fedspm.data.readers.archive import Archive, damage

NAMES = ["T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"]
SAMPLE = Path(__file__).parent / "sample"
PARTS = {"train": 60_000, "t10k": 10_000}
SIDE = 28
ROWS = 2000  # at a time


def load_sample() -> tuple[np.ndarray, np.ndarray]:
    """10,000 real images, 1,000 of each class."""
    return read_idx(SAMPLE / "images-idx3-ubyte.gz", 3), read_idx(SAMPLE / "labels-idx1-ubyte.gz", 1)


def form(archive: Archive) -> str | None:
    return "idx files" if _called(archive, "train-images-idx3-ubyte") else None


def decode(archive: Archive, form: str, size: int, note: Note) -> Iterator[Piece]:
    """Training and test images pooled to 70,000 × 28 × 28, and their labels."""
    for part, published in PARTS.items():
        labels = np.concatenate(list(_pieces(archive, f"{part}-labels-idx1-ubyte", 1)))
        start = 0
        for images in _pieces(archive, f"{part}-images-idx3-ubyte", 3):
            yield {"images": images, "labels": labels[start : start + len(images)]}
            start += len(images)
        if start != len(labels):
            raise DamagedFile(
                f"{archive.path}: {part}-images has {start:,} images, {part}-labels has {len(labels):,} labels; one of "
                "them is damaged"
            )
        if start != published:
            note(f"{part}-images in {archive.path} has {start:,} images, the published one has {published:,}")


def read_idx(path: Path, dimensions: int) -> np.ndarray:
    """An idx file of unsigned bytes, gzipped or not."""
    with damage(path), path.open("rb") as file:
        return np.concatenate(list(_idx(file, str(path), dimensions)))


def _called(archive: Archive, stem: str) -> str | None:
    found = archive.called(stem, f"{stem}.gz")
    return found.get(f"{stem}.gz") or found.get(stem)


def _pieces(archive: Archive, stem: str, dimensions: int) -> Iterator[np.ndarray]:
    name = _called(archive, stem)
    if name is None:
        raise DamagedFile(f"{archive.path}: {stem}(.gz) is missing; Fashion-MNIST needs its four idx files")
    with archive.open(name) as file:
        for piece in _idx(file, where := archive.where(name), dimensions):
            if dimensions == 3 and piece.shape[1:] != (SIDE, SIDE):
                raise DamagedFile(f"{where} has images of {piece.shape[1:]} pixels; expected {SIDE} × {SIDE}")
            if dimensions == 1 and piece.max() >= len(NAMES):
                raise DamagedFile(f"{where} has a label above {len(NAMES) - 1}")
            yield piece


def _idx(file: BufferedIOBase, where: str, dimensions: int) -> Iterator[np.ndarray]:
    """An idx file, a few thousand rows at a time."""
    zipped = file.read(2) == b"\x1f\x8b"
    file.seek(0)
    data = gzip.GzipFile(fileobj=file) if zipped else file
    header = data.read(4 + 4 * dimensions)
    if len(header) < 4 + 4 * dimensions or header[:4] != bytes([0, 0, 8, dimensions]):
        raise DamagedFile(f"{where} is not an idx file of unsigned bytes with {dimensions} dimensions")
    shape = struct.unpack(f">{dimensions}I", header[4:])
    row, rows = math.prod(shape[1:]), 0
    while row and (content := data.read(row * ROWS)):
        if len(content) % row or rows + len(content) // row > shape[0]:
            break
        yield np.frombuffer(content, np.uint8).reshape(-1, *shape[1:])
        rows += len(content) // row
    if rows != shape[0] or not rows or data.read(1):
        raise DamagedFile(f"{where} promises {shape} bytes of data and does not hold them; it is damaged or cut off")


_OFFICIAL = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
FASHION = DataSet(
    name="fashion-mnist",
    about="70,000 grey images of 28 × 28, 10 classes",
    form=form,
    decode=decode,
    needs="its four idx files",
    apt="dataset-fashion-mnist",
    downloads=(
        Download(f"{_OFFICIAL}/train-images-idx3-ubyte.gz", "md5:8d4fb7e6c68d591d4c3dfef9ec88bf0d"),
        Download(f"{_OFFICIAL}/train-labels-idx1-ubyte.gz", "md5:25c81989df183df01b3e8a0aad5dffbe"),
        Download(f"{_OFFICIAL}/t10k-images-idx3-ubyte.gz", "md5:bef4ecab320f06d8554ea6380940ec79"),
        Download(f"{_OFFICIAL}/t10k-labels-idx1-ubyte.gz", "md5:bb300cfdad3c16e7a12a480ee83cd310"),
    ),
)
