"""Rows, labels, truth and seeds stay together on their way from a file or a pool of images to a client."""

import io
from dataclasses import replace

import numpy as np
import pytest
import torch
from pandas import DataFrame
from PIL import Image

from fedspm import Federation
from fedspm.base.errors import FedSPMError
from fedspm.data import arrays
from fedspm.data.catalog import cache, cifar, fashion
from fedspm.data.catalog.cifar import CIFAR10
from fedspm.data.catalog.fashion import FASHION
from fedspm.data.catalog.isic import ISIC
from fedspm.data.heterogeneity import Heterogeneity, impose
from fedspm.data.images import read_image
from fedspm.data.readers.archive import Archive
from fedspm.data.readers.datasets import read_datasets
from fedspm.data.readers.draft import Draft, ReadOptions
from forms import cifar_rows, write_fashion, write_isic, write_official, write_sheets
from own_data import HEADER, ROWS, FakeDataset, write_csv

NAMES = [str(k) for k in range(4)]
DARK = np.zeros((4000, 2, 2), np.uint8)  # component 1 shows them white
LABELS = np.arange(4000) % 4
STILL = Heterogeneity(clients=4, colour=0, brightness=0)


# -- constructed federations -------------------------------------------------------------------------------------------


def test_every_row_is_shifted_as_its_client_and_component_say():
    """All images are the same, so each row is known: the component first, then colour and brightness, clipped."""
    image = np.random.default_rng(0).integers(0, 256, (4, 5, 3), np.uint8)
    found = impose(np.repeat(image[None], 400, 0), np.arange(400) % 4, NAMES, Heterogeneity(clients=8), seed=0)
    for i in range(8):
        for c in range(2):
            expected = np.empty((3, 4, 5))
            for channel, row, column in np.ndindex(3, 4, 5):
                value = image[row, column, channel] / 255
                value = 1 - value if c else value
                value += (0.3, 0.0, -0.3)[channel] * (-1 if i & 1 else 1)
                from_top, from_left = (3 - row if i & 2 else row), (4 - column if i & 4 else column)
                value += 0.5 * (1 - from_top / 3) + 0.5 * (1 - from_left / 4) - 0.25
                expected[channel, row, column] = min(max(value, 0), 1)
            np.testing.assert_allclose(found.truth.sample[c, i], expected, atol=1e-5)
            for part, truth in ((found.train[i], found.truth.train[i]), (found.test[i], found.truth.test[i])):
                for x in part.x[truth == c]:
                    np.testing.assert_allclose(x, expected, atol=1e-5)


def test_components_are_drawn_from_the_mixing_weights_of_their_client():
    found = impose(DARK, LABELS, NAMES, replace(STILL, alpha_intra=0.5, alpha_inter=10.0), seed=0)
    for train, test, mixing in zip(found.truth.train, found.truth.test, found.truth.mixing, strict=True):
        assert torch.cat([train, test]).double().mean() == pytest.approx(float(mixing[1]), abs=0.05)


def test_clients_draw_their_components_apart():
    even = replace(STILL, clients=2, alpha_intra=1e9, alpha_inter=1e9)
    one, other = impose(DARK, LABELS, NAMES, even, seed=0).truth.train
    rows = min(len(one), len(other))
    assert (one[:rows] == other[:rows]).double().mean() == pytest.approx(0.5, abs=0.1)


def test_alpha_intra_decides_how_alike_the_mixing_weights_are():
    even = impose(DARK, LABELS, NAMES, replace(STILL, alpha_intra=1e6, alpha_inter=1.0), seed=0).truth.mixing
    assert even == pytest.approx(0.5, abs=0.01)
    skewed = impose(DARK, LABELS, NAMES, replace(STILL, alpha_intra=0.01, alpha_inter=1e6), seed=0).truth.mixing
    assert skewed.max(1).values == pytest.approx(1, abs=0.05)


def test_another_seed_has_other_mixing_weights_and_label_names():
    names, mixing = [], []
    for seed in (0, 1):
        shown, plain = (impose(DARK, LABELS, NAMES, replace(STILL, permutation=on), seed) for on in (True, False))
        called = {}
        for i in range(4):
            for c, before, after in zip(shown.truth.train[i], plain.train[i].y, shown.train[i].y, strict=True):
                called[i, int(c), int(before)] = int(after)
        names.append(called)
        mixing.append(shown.truth.mixing)
    assert any(names[0][key] != names[1][key] for key in names[0].keys() & names[1].keys())
    assert not torch.equal(*mixing)


def test_the_truth_goes_with_its_rows():
    found = impose(DARK, LABELS, NAMES, STILL, seed=0)
    held = found.with_validation(0.3, seed=0)
    less = found.without(["client-1"])
    for each in (found, held, less):
        for part, truth in zip((*each.train, *each.test), (*each.truth.train, *each.truth.test), strict=True):
            assert torch.equal(part.x[:, 0, 0, 0], truth.float())
    assert torch.equal(less.truth.mixing, found.truth.mixing[[0, 2, 3]])
    assert torch.equal(less.truth.sample, found.truth.sample[:, [0, 2, 3]])


# -- federations -------------------------------------------------------------------------------------------------------

X, Y = np.random.default_rng(0).normal(size=(20, 3)), np.arange(20) % 2


def changed(array, at):
    array = array.copy()
    array[at] = 1 - array[at]
    return array


def test_the_fingerprint_notices_every_change():
    def made(name="north", x=X, y=Y, x_test=X, y_test=Y, add=0):
        given = {name: (x, y + add), "south": (X, Y + add)}
        return Federation.from_arrays(given, {name: (x_test, y_test + add), "south": (X, Y + add)}).fingerprint

    found = [
        made(),
        made(name="west"),
        made(x=changed(X, (3, 1))),
        made(y=changed(Y, 3)),
        made(x_test=changed(X, (3, 1))),
        made(y_test=changed(Y, 3)),
        made(add=1),
    ]
    assert len(set(found)) == len(found)
    assert made() == found[0]


def test_which_rows_are_held_out_follows_from_the_seed_and_the_client():
    def held(seed):
        both = Federation.from_arrays({"north": (X, Y), "south": (X, Y)}, test_fraction=0.5, seed=seed)
        return [part.x for part in both.test]

    north, south = held(0)
    assert torch.equal(north, held(0)[0])
    assert not torch.equal(north, south)
    assert not torch.equal(north, held(1)[0])


def test_rows_are_numbered_across_pieces(monkeypatch):
    monkeypatch.setattr(arrays, "PIECE", 12)  # four rows
    with pytest.raises(FedSPMError, match="row 18 has a value"):
        arrays.require_finite(torch.tensor(X).index_fill(0, torch.tensor(17), np.nan), "it")


def test_classes_may_come_in_an_order_of_their_own():
    classes = np.array(["MEL", "NV", "BCC"])
    assert arrays.as_classes(np.array(["BCC", "MEL", "NV"]), classes, "it").tolist() == [2, 0, 1]


def test_tables_in_memory_are_matched_by_the_names_of_their_columns():
    one, other = DataFrame({"a": X[:, 0], "b": X[:, 1]}), DataFrame({"b": X[:, 1], "a": X[:, 0]})
    given = {"north": (one, Y), "south": (other, Y)}
    one, other = Federation.from_arrays(given).train
    assert torch.equal(one.x, other.x)


# -- one's own data ----------------------------------------------------------------------------------------------------


def test_rows_of_one_client_from_two_places_keep_their_labels():
    draft = Draft("here", "a test")
    for first in (0, 3):
        x = np.arange(first, first + 3, dtype=np.float32)[:, None]
        draft.add(x, np.array([f"label {int(value)}" for value in x[:, 0]]), ["north"] * 3, ["train"] * 3)
    x, labels = draft.train["north"]
    assert labels.tolist() == [f"label {int(value)}" for value in x[:, 0]]


def test_true_is_one(tmp_path):
    rows = [[row[0], "TRUE" if j % 2 else "false", row[2], row[3]] for j, row in enumerate(ROWS)]
    found = Federation.from_table(write_csv(tmp_path / "t.csv", rows, HEADER), test_fraction=None)
    assert found.train[0].x[:4, 0].tolist() == [0, 1, 0, 1]


def test_a_class_number_without_a_name_is_no_label():
    """Hugging Face writes −1 where a test label is hidden."""
    for strange in (-1, 2):
        columns = {"hospital": ["n", "s"] * 4, "a": list(range(8)), "label": [0, 1] * 3 + [strange, 0]}
        draft = read_datasets(FakeDataset(columns, ["cat", "dog"]), ReadOptions())
        assert any("row 7 has no label" in problem for problem in draft.problems)


def test_a_photograph_is_turned_upright():
    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, 3), np.uint8)
    tag, buffer = Image.Exif(), io.BytesIO()
    tag[0x0112] = 6  # to be turned by 90° clockwise
    Image.fromarray(np.rot90(pixels).copy()).save(buffer, "PNG", exif=tag)
    assert torch.equal(read_image(buffer.getvalue(), (3, 8, 9), "it"), read_image(pixels, (3, 8, 9)))


# -- data sets with a name ---------------------------------------------------------------------------------------------


def test_a_new_decoder_decodes_anew(small):
    folder = write_official(small / "x", fine=False)
    CIFAR10.load(folder)
    replace(CIFAR10, version=2).load(folder)
    assert len(list((small / "cache" / "fedspm" / "decoded").iterdir())) == 2


@pytest.mark.parametrize("write", [lambda folder: write_official(folder, fine=False), write_sheets])
def test_images_keep_their_labels_however_few_are_read_at_a_time(small, monkeypatch, write):
    monkeypatch.setattr(cifar, "ROWS", 3)
    monkeypatch.setattr(cache, "ROWS", 7)
    given = {
        x.tobytes(): int(y)
        for images, labels in cifar_rows(False).values()
        for x, y in zip(images, labels, strict=True)
    }
    found = CIFAR10.load(write(small / "x")).arrays
    assert isinstance(found["images"], np.memmap)  # what was kept is whole
    assert {x.tobytes(): int(y) for x, y in zip(found["images"], found["labels"], strict=True)} == given


def test_idx_files_keep_their_labels_however_few_are_read_at_a_time(small, monkeypatch):
    monkeypatch.setattr(fashion, "ROWS", 7)
    found = FASHION.load(write_fashion(small / "x")).arrays
    assert found["labels"].tolist() == [*(np.arange(30) % 10), *(np.arange(20) % 10)]


def test_equal_images_are_ordered_by_their_labels():
    key, labels = np.array([5, 3, 5, 3], np.uint64), np.array([1, 2, 0, 0])
    assert cache._order(key, labels).tolist() == [3, 1, 2, 0]


def test_of_two_files_of_one_name_the_upper_one_counts(tmp_path):
    for place in ("a/deeper", "b"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "train").write_text("")
    with Archive(tmp_path) as archive:
        assert archive.called("train") == {"train": "b/train"}


def test_preprocessed_images_win_over_raw_ones_and_are_averaged(small):
    folder = write_isic(small / "x", centers=[0, 1])
    stripes = np.zeros((128, 128, 3), np.uint8)
    stripes[:, ::2] = 200
    for file in list(folder.rglob("*.jpg")):
        for raw in ("A_raw", "Z_raw"):  # before and after it in the order of names
            (folder / raw).mkdir(exist_ok=True)
            (folder / raw / file.name).write_bytes(file.read_bytes())
        Image.fromarray(stripes).save(file, quality=100, subsampling=0)
    with pytest.warns(UserWarning, match="absent"):
        images = ISIC.load(folder).arrays["images"]
    np.testing.assert_allclose(images, 100, atol=3)
