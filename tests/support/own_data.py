"""Somebody's own data in small: a table, a folder of images, a data set in memory."""

import csv

from PIL import Image

from fedspm.data.readers.detect import read_path
from fedspm.data.readers.draft import ReadOptions

HEADER = ["site", "age", "pressure", "target"]
ROWS = [["nord", 30 + j, 100.5 - j, "ill" if j % 2 else "well"] for j in range(10)]
ROWS += [["Süd 10", 50 + j, 80.25 + j, "ill" if j % 3 else "well"] for j in range(12)]
ROWS += [["Süd 2", j, 5.0 * j, "well" if j % 4 else "ill"] for j in range(8)]


def write_csv(path, rows, header=HEADER, **options):
    with path.open("w", newline="", encoding=options.pop("encoding", "utf-8")) as file:
        csv.writer(file, **options).writerows([header, *rows])
    return path


def problems(path, **how):
    return read_path(path, ReadOptions(**how)).problems


def picture(path, shade=100, size=(10, 12), mode="L"):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new(mode, size, shade).save(path)
    return path


def folder_of_images(path, split=""):
    for i, client in enumerate(("north", "süd")):
        for k, label in enumerate(("cat", "dog")):
            for j in range(4 + 2 * i):
                picture(path / client / split / label / f"{j}.png", 40 * k + 10 * i + j)
    return path


class FakeDataset:
    """The part of a Hugging Face Dataset that is used: column_names, features, dataset["column"]."""

    def __init__(self, columns, class_names=None):
        self._columns = columns
        self.column_names = list(columns)
        label = type("ClassLabel", (), {"names": class_names})() if class_names else object()
        self.features = {name: label if name == "label" else object() for name in columns}

    def __getitem__(self, name):
        return self._columns[name]
