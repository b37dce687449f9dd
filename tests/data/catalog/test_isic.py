"""Fed-ISIC2019: one client per center, the published folds, one size; what is missing is said."""

import warnings

import numpy as np
import pytest

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.catalog.isic import CENTERS, ISIC, NAMES
from fedspm.runs.config import resolve
from forms import packed, write_isic


def federation(path, **data):
    return resolve({"data": {"name": "fed-isic2019", "path": str(path), **data}}).federation()


@pytest.mark.parametrize("ending", ["", ".tar", ".zip"])
@pytest.mark.parametrize("images", ["images", "ISIC_2019_Training_Input_preprocessed"])
def test_six_centers_just_work(small, ending, images):
    folder = write_isic(small / "x", images=images)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = federation(packed(folder, ending) if ending else folder)
    assert found.names == tuple(CENTERS)
    assert found.classes.tolist() == NAMES
    assert found.counts == (4,) * 6
    assert [len(part) for part in found.test] == [2] * 6
    assert found.shape == (3, 64, 64)
    assert found.truth is None
    for i, (train, test) in enumerate(zip(found.train, found.test, strict=True)):
        assert train.y.tolist() == [0, 1, 3, 4]
        assert test.y.tolist() == [2, 5]
        # the sides are cut off, nothing is squeezed: only the colour of the middle is left
        np.testing.assert_allclose(train.x[:, :, :, 2:-2].numpy(), 40 * i / 255, atol=0.02)


def test_a_folder_and_an_archive_make_the_same_federation(small):
    folder = write_isic(small / "x")
    assert federation(folder).fingerprint == federation(packed(folder, ".tar")).fingerprint


def test_the_size_can_be_chosen_and_is_not_enlarged(small):
    folder = write_isic(small / "x")
    assert federation(folder, size=32).shape == (3, 32, 32)
    assert federation(folder).shape == (3, 64, 64)
    with pytest.raises(FedSPMError, match=r"\.jpg is 200 × 150 pixels, too small for data\.size = 200; choose 150"):
        federation(folder, size=200)


def test_an_absent_center_is_said_also_from_the_cache(small):
    folder = write_isic(small / "x", centers=range(1, 6))
    for _ in range(2):
        with pytest.warns(UserWarning, match=r"center 0 \(bcn\) is absent from .*; the others are used"):
            assert federation(folder).names == tuple(CENTERS[1:])


def test_the_whole_split_with_the_images_of_some_centers(small):
    folder = write_isic(small / "x")
    for file in folder.rglob("ISIC_0003*.jpg"):
        file.unlink()
    with pytest.warns(UserWarning, match="center 3"):
        assert len(federation(folder).names) == 5


def test_other_numbers_than_published_are_said(machine):
    with pytest.warns(UserWarning, match="center") as told:
        ISIC.load(write_isic(machine / "x"))
    assert len(told) == 6
    assert "4 images for training and 2 for testing, the published one has 351 and 88" in str(told[-1].message)


def spoil(name, content):
    def change(folder):
        (folder / name).write_bytes(content)

    return change


IMAGE = "ISIC_2019_Training_Input_preprocessed/ISIC_0002001.jpg"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        (lambda folder: (folder / IMAGE).unlink(), "lacks 1 of 36 images: ISIC_0002001.jpg"),
        (spoil(IMAGE, b"\xff\xd8\xff junk"), "ISIC_0002001.jpg has an image that cannot be read"),
        (lambda folder: (folder / "train_test_split.csv").unlink(), "no train_test_split.csv; copy the file"),
        (
            spoil("train_test_split.csv", b"image,target\nISIC_1,2\n"),
            "split.csv, line 2: expected image, targ",
        ),
        (spoil("train_test_split.csv", b"image,target,center,fold\nISIC_1,8,1,train\n"), r"line 2: .*0 to 7"),
        (spoil("train_test_split.csv", b"image,target,center,fold\n"), "has no images; expected FLamby's"),
        (spoil("train_test_split.csv", b"image,target,center,fold\nA,1,1,test\nA,1,1,test\n"), "names an image twice"),
    ],
)
def test_damage_is_named(small, change, sentence):
    folder = write_isic(small / "x")
    change(folder)
    with pytest.raises(DamagedFile, match=sentence):
        ISIC.load(folder)


def test_what_divides_images_over_clients_is_refused_and_not_written():
    for table, key, value in [("data", "clients", 4), ("data", "alpha_inter", 0.5), ("shift", "colour", 0.0)]:
        with pytest.raises(FedSPMError, match=rf"{table}\.{key} is for images .* fed-isic2019 comes divided"):
            resolve({"data": {"name": "fed-isic2019"}}, {table: {key: value}})
    assert "clients" not in resolve({"data": {"name": "fed-isic2019"}}).to_dict()["data"]
