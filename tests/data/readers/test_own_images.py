"""One's own data as image files: folders of classes, and tables of paths."""

import numpy as np
import pytest
import torch
from PIL import Image

from fedspm import Federation
from fedspm.base.errors import FedSPMError
from fedspm.data.readers.detect import read_path
from fedspm.data.readers.draft import ReadOptions, checked_size
from own_data import folder_of_images, picture, problems, write_csv


def test_a_folder_a_client_with_a_folder_a_class(tmp_path):
    federation = Federation.from_folder(folder_of_images(tmp_path), test_fraction=0.25)
    assert federation.names == ("north", "süd")
    assert federation.classes.tolist() == ["cat", "dog"]
    assert [len(part) for part in federation.train] == [6, 9]
    assert [len(part) for part in federation.test] == [2, 3]
    assert federation.shape == (3, 12, 10)  # all alike and small: as they are
    cats = federation.train[1].x[federation.train[1].y == 0]
    assert set((cats[:, 0, 0, 0] * 255).round().int().tolist()) <= set(range(10, 16))


def test_images_are_scaled_to_one_size(tmp_path):
    folder_of_images(tmp_path)
    picture(tmp_path / "north" / "cat" / "large.jpg", 90, (200, 100))
    picture(tmp_path / "north" / "cat" / "16bit.png", 25700, (20, 20), "I;16")
    assert Federation.from_folder(tmp_path).shape == (3, 64, 64)
    federation = Federation.from_folder(tmp_path, size=20, test_fraction=0.2)
    assert federation.shape == (3, 20, 20)
    shades = torch.cat([part.x[:, 0, 10, 10] for part in (*federation.train, *federation.test)])
    assert (shades * 255).round().int().tolist().count(100) == 1  # 25700 of 65535 is 100 of 255


def test_a_size_has_the_bounds_of_the_configuration(tmp_path):
    for size in (0, 7, -4, 513, True):
        with pytest.raises(FedSPMError, match=f"a whole number from 8 to 512; it is {size}"):
            Federation.from_folder(tmp_path, size=size)
    for size in (16.5, "64"):
        with pytest.raises(FedSPMError, match="a whole number from 8 to 512"):
            checked_size(size)
    assert checked_size(np.int64(16)) == 16


@pytest.mark.parametrize("above", [True, False])
def test_train_and_test_above_or_below_the_clients(tmp_path, above):
    for split, count in (("train", 5), ("test", 4)):
        for client in ("a", "b"):
            for j in range(count):
                place = tmp_path / split / client if above else tmp_path / client / split
                picture(place / f"class-{j % 2}" / f"{split}{j}.png", j * 10)
    federation = Federation.from_folder(tmp_path)
    assert federation.names == ("a", "b")
    assert [len(part) for part in (*federation.train, *federation.test)] == [5, 5, 4, 4]


@pytest.mark.parametrize("splits", [("train", "val", "test"), ("training", "validation")])
def test_folders_of_one_data_set_are_not_taken_for_clients(tmp_path, splits):
    """PATH/SPLIT/CLASS/image.png: held-out images would be trained on."""
    for split in splits:
        for label in ("cat", "dog"):
            picture(tmp_path / split / label / "0.png")
    with pytest.raises(FedSPMError, match=r"the folders in .* parts of one data set, not clients"):
        Federation.from_folder(tmp_path)


def test_folders_of_one_data_set_are_not_taken_for_classes(tmp_path):
    for client in "ab":
        for split in ("train", "val"):
            picture(tmp_path / client / split / "cat" / "0.png")
    with pytest.raises(FedSPMError, match=r"the folders in .*a are called train, val: .* not classes; name them train"):
        Federation.from_folder(tmp_path)


def test_every_bad_image_is_named(tmp_path):
    folder_of_images(tmp_path)
    (tmp_path / "north" / "cat" / "text.jpg").write_text("I am not an image")
    cut = tmp_path / "süd" / "dog" / "cut.png"
    Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 10), np.uint8)).save(cut)
    cut.write_bytes(cut.read_bytes()[:90])
    (tmp_path / "north" / "cat" / "notes.txt").write_text("ignored, and said")
    (tmp_path / "north" / "cat" / ".DS_Store").write_text("ignored")
    draft = read_path(tmp_path, ReadOptions())
    assert len(draft.problems) == 2
    assert "text.jpg cannot be read as an image" in draft.problems[0]
    assert "cut.png cannot be read as an image" in draft.problems[1]
    assert any("notes.txt" in remark for remark in draft.remarks)
    with pytest.raises(FedSPMError, match=r"text\.jpg cannot be read.*and 1 more; `fedspm data check .*` lists them"):
        Federation.from_folder(tmp_path)


def test_images_without_a_class_and_empty_folders(tmp_path):
    (problem,) = problems(tmp_path)
    assert "holds nothing to train on" in problem
    (tmp_path / "north").mkdir()
    (problem,) = problems(tmp_path)
    assert "client 'north'" in problem
    assert "holds no class folders" in problem
    picture(tmp_path / "north" / "1.png")
    (problem,) = problems(tmp_path)
    assert "outside a class folder" in problem
    (tmp_path / "north" / "1.png").unlink()
    picture(tmp_path / "north" / "cat" / "deeper" / "1.png")
    assert any("lies inside a class folder" in each for each in problems(tmp_path))


@pytest.mark.parametrize("ending", [".csv", ".parquet"])
def test_a_table_of_image_paths(tmp_path, ending):
    """As Fed-ISIC2019: without endings, in images/, with the published folds."""
    rows = []
    for j in range(12):
        picture(tmp_path / "images" / f"ISIC_{j}.jpg", 10 * j)
        rows.append([f"ISIC_{j}", j % 3, j % 2, "test" if j > 5 else "train"])
    table = tmp_path / f"split{ending}"
    header = ["image", "target", "center", "fold"]
    if ending == ".csv":
        write_csv(table, rows, header)
    else:
        pyarrow = pytest.importorskip("pyarrow")
        from pyarrow import parquet

        columns = dict(zip(header, map(list, zip(*rows, strict=True)), strict=True))
        columns["image"] = [{"bytes": (tmp_path / "images" / f"{i}.jpg").read_bytes()} for i in columns["image"]]
        parquet.write_table(pyarrow.table(columns), table)
    federation = Federation.from_table(table)
    assert federation.names == ("0", "1")
    assert federation.classes.tolist() == [0, 1, 2]
    assert federation.counts == (3, 3)
    assert [len(part) for part in federation.test] == [3, 3]
    assert federation.fingerprint == Federation.from_folder(tmp_path).fingerprint
    (tmp_path / "images" / "ISIC_3.jpg").unlink()
    if ending == ".csv":
        (problem,) = problems(table)
        assert "there is no image" in problem
        assert "row 4" in problem
