"""Heart disease (UCI): 920 patients of four hospitals, 13 columns with many missing values; a client is a hospital.

The four files ship with the package. A patient is ill if `num` is above 0. Of cp, restecg, slope and thal the numbers
name levels; a cholesterol or blood pressure of 0 stands for one that was not measured.
"""

from collections.abc import Iterator
from pathlib import Path

import numpy as np

from fedspm.base.errors import DamagedFile
from fedspm.data.catalog.cache import Decoded, Piece
from fedspm.data.catalog.dataset import DataSet, Note
from fedspm.data.catalog.download import Download
from fedspm.data.readers.archive import Archive
from fedspm.data.readers.draft import Draft
from fedspm.data.tables.table import Table

COLUMNS = [
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
]
CATEGORIES = ("cp", "restecg", "slope", "thal")
NEVER_ZERO = ("trestbps", "chol")
HOSPITALS = {"cleveland": 303, "hungarian": 294, "switzerland": 123, "va": 200}  # and their rows, as published
FILES = {f"processed.{hospital}.data": hospital for hospital in HOSPITALS}
CLASSES = np.array(["well", "ill"])


def form(archive: Archive) -> str | None:
    return "the four processed files" if len(archive.called(*FILES)) == len(FILES) else None


def decode(archive: Archive, form: str, size: int, note: Note) -> Iterator[Piece]:
    """Hospitals in the order of their names, rows in that of their file."""
    for i, (file, name) in enumerate(sorted(archive.called(*FILES).items())):
        with archive.open(name) as opened:
            lines = opened.read().decode("utf-8", "replace").splitlines()
        rows = [_row(line, f"{archive.where(name)}, line {j}") for j, line in enumerate(lines, 1) if line.strip()]
        if len(rows) != (published := HOSPITALS[FILES[file]]):
            note(f"{archive.where(name)} has {len(rows)} rows, the published one has {published}")
        cells = np.array(rows).reshape(len(rows), len(COLUMNS) + 1)
        yield {"cells": cells[:, :-1], "labels": (cells[:, -1] > 0).astype(np.int64), "hospital": np.full(len(rows), i)}


def _row(line: str, where: str) -> list[float]:
    try:
        row = [np.nan if cell.strip() == "?" else float(cell) for cell in line.split(",")]
    except ValueError as error:
        raise DamagedFile(f"{where}: {error}; expected numbers and ? with commas between them") from error
    if len(row) != len(COLUMNS) + 1 or np.isnan(row[-1]):
        raise DamagedFile(f"{where}: expected {len(COLUMNS)} columns and a diagnosis, found {len(row)} cells")
    return row


def draft(decoded: Decoded) -> Draft:
    """One table per hospital, as somebody's own would be read."""
    found = Draft("heart-disease", "the data set heart-disease: one table per hospital", categories=CATEGORIES)
    cells, labels, hospital = (np.array(decoded.arrays[name]) for name in ("cells", "labels", "hospital"))
    for column in NEVER_ZERO:
        k = COLUMNS.index(column)
        if zeros := int((cells[:, k] == 0).sum()):
            found.remarks.append(f"{column} is 0 in {zeros} rows, which stands for a missing value")
        cells[cells[:, k] == 0, k] = np.nan
    for i, name in enumerate(sorted(HOSPITALS)):
        mine = hospital == i
        table = Table.of(dict(zip(COLUMNS, cells[mine].T, strict=True)), name, CATEGORIES)
        found.train[name] = table, CLASSES[labels[mine]]
    return found.finish()


_OFFICIAL = "https://archive.ics.uci.edu/ml/machine-learning-databases/heart-disease"
HEART = DataSet(
    name="heart-disease",
    about="920 patients of four hospitals, 13 columns with missing values, ill or well; a client is a hospital",
    form=form,
    decode=decode,
    needs="processed.cleveland.data, processed.hungarian.data, processed.switzerland.data and processed.va.data",
    shipped=Path(__file__).with_name("heart_disease"),
    downloads=tuple(
        Download(f"{_OFFICIAL}/processed.{hospital}.data", f"sha256:{checksum}")
        for hospital, checksum in (
            ("cleveland", "a74b7efa387bc9d108d7d0115d831fe9b414b29ae7124f331b622b4efa0427c8"),
            ("hungarian", "d1ad108f785768cd3d7e82dc522e6f5a61eea93cccfb3a46ee8076f73fc3d796"),
            ("switzerland", "834a405ccf5b66ab4056bb77794adc8df0b7125186454c0a1d002d33c6c3b314"),
            ("va", "e7c93d8d0d2acdadfa4c5e8de768e2191e7f618b952e29623f1f0d5949ff6b8f"),
        )
    ),
)
