"""Fed-ISIC2019 (FLamby): dermoscopic images of six centers, eight diagnoses, with the published train and test folds.

Nothing is imposed on it: a client is a center. Images of all sizes are cut to their middle square and shrunk to one
common size by averaging. A square keeps the proportions of a lesion, whose asymmetry doctors look at, and hides the
aspect ratios of the centers; shrinking blurs what each center's JPEG compression left, which would betray it too.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.catalog.cache import Decoded, Piece
from fedspm.data.catalog.dataset import DataSet, Note
from fedspm.data.federation import Federation
from fedspm.data.heterogeneity import as_pixels
from fedspm.data.images import decode_rgb
from fedspm.data.part import Part
from fedspm.data.readers.archive import Archive

NAMES = ["MEL", "NV", "BCC", "AK", "BKL", "DF", "VASC", "SCC"]
CENTERS = ["bcn", "vidir-molemax", "vidir-modern", "rosendahl", "msk", "vienna-dias"]
FOLDS = [(9930, 2483), (3163, 791), (2691, 672), (1807, 452), (655, 164), (351, 88)]  # as published
SPLITS = ("train_test_split.csv", "train_test_split", "train_test_folds.csv")
PREPROCESSED = "ISIC_2019_Training_Input_preprocessed"  # FLamby keeps the raw images beside it


class Row(NamedTuple):
    image: str
    target: int
    center: int
    train: bool


def form(archive: Archive) -> str | None:
    """FLamby keeps the split in its own source, so images alone are recognised too, to say what is missing."""
    if archive.called(*SPLITS) or any(name.endswith(".jpg") and "ISIC_" in name for name in archive.names):
        return "FLamby's folder" if archive.path.is_dir() else "FLamby's folder, packed"
    return None


def decode(archive: Archive, form: str, size: int, note: Note) -> Iterator[Piece]:
    """Images in the order they lie in an archive; their place in the split is the key that orders them."""
    rows = _split(archive)
    files = _images(archive)
    centers = {row.center for row in rows if row.image in files}
    wanted = {files.get(row.image, row.image): (i, row) for i, row in enumerate(rows) if row.center in centers}
    if missing := wanted.keys() - set(archive.names):
        raise DamagedFile(f"{archive.path} lacks {len(missing):,} of {len(wanted):,} images: {min(missing)}.jpg, …")
    _note(note, [row for _, row in wanted.values()], archive.path)
    for name in archive.names:
        if name in wanted:
            key, row = wanted[name]
            with archive.open(name) as file, decode_rgb(file, where := archive.where(name)) as image:
                pixels = _square(image, size, where)
            facts = {"labels": row.target, "center": row.center, "train": row.train, "key": key}
            yield {"images": pixels[None], **{name: np.array([value]) for name, value in facts.items()}}


def federation(decoded: Decoded) -> Federation:
    """A client a center, with the published folds."""
    images, labels, center, train = (decoded.arrays[name] for name in ("images", "labels", "center", "train"))
    centers = np.unique(center)
    parts: dict[bool, list[Part]] = {True: [], False: []}
    for i in centers:
        for fold, clients in parts.items():
            rows = np.flatnonzero((center == i) & (train == fold))
            clients.append(Part(as_pixels(images, rows), torch.from_numpy(labels[rows].astype(np.int64))))
    names = tuple(CENTERS[i] for i in centers)
    return Federation(names, np.asarray(NAMES), tuple(parts[True]), tuple(parts[False])).checked()


def _split(archive: Archive) -> list[Row]:
    found = archive.called(*SPLITS)
    if not found:
        raise DamagedFile(
            f"{archive.path} has images and no train_test_split.csv; copy the file train_test_split of FLamby's "
            "flamby/datasets/fed_isic2019/dataset_creation_scripts there"
        )
    name = next(found[split] for split in SPLITS if split in found)
    with archive.open(name) as file:
        lines = csv.DictReader(io.StringIO(file.read().decode("utf-8-sig", "replace")))
        rows = []
        for line in lines:
            try:
                target, center, fold = int(line["target"]), int(line["center"]), line["fold"]
                if not (0 <= target < len(NAMES) and 0 <= center < len(CENTERS) and fold in ("train", "test")):
                    raise ValueError
                rows.append(Row(line["image"], target, center, fold == "train"))
            except (KeyError, TypeError, ValueError) as error:
                raise DamagedFile(
                    f"{archive.where(name)}, line {lines.line_num}: expected image, target (0 to 7), center (0 to 5), "
                    "fold (train or test)"
                ) from error
    if len({row.image for row in rows}) < len(rows):
        raise DamagedFile(f"{archive.where(name)} names an image twice")
    return rows


def _images(archive: Archive) -> dict[str, str]:
    """Files by the image's name; preprocessed ones win over raw ones."""
    names = [name for name in archive.names if name.lower().endswith((".jpg", ".jpeg", ".png"))]
    names.sort(key=lambda name: PREPROCESSED in name)
    return {PurePosixPath(name).stem: name for name in names}


def _square(image: Image.Image, size: int, where: str) -> np.ndarray:
    width, height = image.size
    side = min(width, height)
    if side < size:
        raise FedSPMError(
            f"{where} is {width} × {height} pixels, too small for data.size = {size}; choose {side} or less"
        )
    left, top = (width - side) // 2, (height - side) // 2
    return np.asarray(image.resize((size, size), Image.Resampling.BOX, (left, top, left + side, top + side)))


def _note(note: Note, rows: list[Row], path: Path) -> None:
    """What differs from the published data."""
    counts = Counter((row.center, row.train) for row in rows)
    for i, (name, published) in enumerate(zip(CENTERS, FOLDS, strict=True)):
        here = (counts[i, True], counts[i, False])
        if here == (0, 0):
            note(f"center {i} ({name}) is absent from {path}; the others are used")
        elif here != published:
            note(
                f"center {i} ({name}) in {path} has {here[0]:,} images for training and {here[1]:,} for testing, the "
                f"published one has {published[0]:,} and {published[1]:,}"
            )


ISIC = DataSet(
    name="fed-isic2019",
    size=64,
    about="23,247 dermoscopic images of six centers, 8 diagnoses; already divided: a client is a center",
    form=form,
    decode=decode,
    needs="FLamby's train_test_split.csv and its images",
    unfetched="the licences of ISIC 2019 and HAM10000 (CC BY-NC) are for a person to accept; follow FLamby's page on "
    "Fed-ISIC2019 (download_isic.py, resize_images.py), copy its train_test_split beside the images, and train with "
    "`--set data.path=FOLDER`",
)
