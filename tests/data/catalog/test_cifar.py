"""CIFAR from every form: the same rows in the same order, or the name of the file that is wrong."""

import pickle
import warnings

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.catalog.cifar import CIFAR10, CIFAR100, COARSE, COARSE_OF
from fedspm.data.catalog.sources import load_data
from fedspm.runs.config import resolve
from forms import (
    ROWS,
    by_planes,
    cifar_rows,
    encoded,
    packed,
    write_official,
    write_parquet,
    write_python2,
    write_sheets,
)

WRITERS = {
    "official": write_official,
    "official of Python 2": write_python2,
    "official of Python 3": lambda folder, fine: write_official(folder, fine, protocol=4),
    "parquet": lambda folder, fine: write_parquet(folder, fine, "plain"),
    "hub": lambda folder, fine: write_parquet(folder, fine, "hub"),
    "sheets": lambda folder, fine: write_sheets(folder),
}


def load(data, path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        return data.load(path).arrays


@pytest.mark.parametrize("fine", [False, True], ids=["cifar10", "cifar100"])
def test_every_form_and_wrapping_gives_the_same_rows(small, fine):
    rows = cifar_rows(fine)
    given = {(x.tobytes(), int(y)) for images, labels in rows.values() for x, y in zip(images, labels, strict=True)}
    data, expected = (CIFAR100 if fine else CIFAR10), None
    for form, write in WRITERS.items():
        if form == "sheets" and fine:
            continue
        folder = write(small / form, fine)
        for place in (folder, *(packed(folder, ending) for ending in (".tar", ".tar.gz", ".tgz", ".zip"))):
            found = load(data, place)
            labels = found["fine" if fine else "labels"]
            assert {(x.tobytes(), int(y)) for x, y in zip(found["images"], labels, strict=True)} == given, (form, place)
            if expected is not None:
                for name, array in expected.items():
                    np.testing.assert_array_equal(found[name], array, err_msg=f"{form} {place} {name}")
            expected = {name: np.array(array) for name, array in found.items()}


def test_the_task_of_cifar100_is_its_coarse_classes(small):
    write_official(small / "x", fine=True)
    images, labels, names = load_data("cifar100", small / "x")
    assert names == COARSE
    assert len(names) == 20
    assert np.bincount(COARSE_OF).tolist() == [5] * 20
    assert sorted(labels) == sorted(COARSE_OF[np.concatenate([y for _, y in cifar_rows(fine=True).values()])])
    assert images.shape == (sum(ROWS.values()), 32, 32, 3)


def test_coarse_labels_follow_from_fine_ones_and_must_agree(small):
    rows = cifar_rows(fine=True)
    for split, (images, labels) in rows.items():
        table = {"img": [encoded(image) for image in images], "fine_label": labels}
        pq.write_table(pa.table(table), small / f"{split}.parquet")
    found = load(CIFAR100, small)
    np.testing.assert_array_equal(found["labels"], COARSE_OF[found["fine"]])
    images, labels = rows["test"]
    wrong = {"img": [encoded(image) for image in images], "fine_label": labels, "coarse_label": labels * 0}
    pq.write_table(pa.table(wrong), small / "test.parquet")
    with pytest.raises(DamagedFile, match=r"test\.parquet has coarse labels that do not belong"):
        load(CIFAR100, small)


class Hostile:
    def __reduce__(self):
        import os

        return os.mkdir, (str(Hostile.target),)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_hostile_pickle_is_refused_and_nothing_runs(small, protocol):
    Hostile.target = small / "pwned"
    write_official(small / "x", fine=False)
    batch = small / "x" / "cifar-10-batches-py" / "data_batch_3"
    batch.write_bytes(pickle.dumps({b"data": Hostile(), b"labels": [1]}, protocol))
    with pytest.raises(DamagedFile, match=r"data_batch_3 is not a batch .* it names .*mkdir"):
        load(CIFAR10, small / "x")
    assert not Hostile.target.exists()


def official(change):
    def write(folder):
        write_official(folder, fine=False)
        path = folder / "cifar-10-batches-py" / "data_batch_2"
        change(path)

    return write


def batch(**changes):
    x = by_planes(cifar_rows(fine=False)["test"][0])
    given = {"data": x, "labels": [0] * 10, **changes}
    return lambda path: path.write_bytes(
        pickle.dumps({key: value for key, value in given.items() if value is not None})
    )


def shard(**columns):
    def write(folder):
        write_parquet(folder, fine=False, style="plain")
        pq.write_table(pa.table(columns), folder / "test.parquet")

    return write


def hub_without_a_shard(folder):
    write_parquet(folder, fine=False, style="hub")
    (folder / "data" / "train-00001-of-00002.parquet").unlink()


def sheets(name, content):
    def write(folder):
        write_sheets(folder)
        (folder / "package" / name).write_bytes(content)

    return write


def cut(write, name):
    def cut_file(folder):
        write(folder)
        path = folder / name
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return cut_file


PNG = encoded(np.zeros((32, 32, 3), np.uint8))


@pytest.mark.parametrize(
    ("write", "sentence"),
    [
        (official(lambda path: path.unlink()), "has no data_batch_2; expected data_batch_1, data_batch_2"),
        (official(lambda path: path.write_bytes(b"")), "data_batch_2 is not a batch of the official CIFAR archive"),
        (official(lambda path: path.write_bytes(path.read_bytes()[:9000])), "data_batch_2 is not a batch"),
        (official(batch(labels=[0] * 9)), "data_batch_2 has 10 images and 9 labels"),
        (official(batch(labels=[10] * 10)), "data_batch_2 has labels that are not whole numbers from 0 to 9"),
        (official(batch(labels=None)), "data_batch_2 has no labels"),
        (official(batch(data=np.zeros((10, 5), np.uint8))), "data_batch_2 needs an array `data` .* 3072 a row"),
        (official(batch(data=np.zeros((10, 3072)))), "data_batch_2 is not a batch .* does not hold unsigned bytes"),
        (cut(lambda folder: write_parquet(folder, False, "plain"), "train.parquet"), r"train\.parquet is not a whole"),
        (
            shard(img=[PNG], fine_label=[1]),
            r"test\.parquet has the columns img, fine_label; expected img or image, and l",
        ),
        (shard(img=[PNG[:40]], label=[1]), r"test\.parquet has an image that cannot be read"),
        (shard(img=[encoded(np.zeros((8, 9, 3), np.uint8))], label=[1]), r"test\.parquet has an image of 9 × 8"),
        (shard(img=[{"bytes": None, "path": "a"}], label=[1]), r"test\.parquet: an image is given by its path"),
        (hub_without_a_shard, "has 1 train files of 2"),
        (sheets("test_batch.png", PNG), r"test_batch\.png is 32 × 32 pixels; expected 1024 × 10"),
        (sheets("test_lables.json", b"[1, 2"), r"test_lables\.json is not a list of labels"),
        (cut(write_sheets, "package/data_batch_4.png"), r"data_batch_4\.png has an image that cannot be read"),
    ],
)
def test_a_wrong_short_or_damaged_file_is_named(small, write, sentence):
    folder = small / "x"
    write(folder)
    with pytest.raises(DamagedFile, match=sentence) as caught:
        load(CIFAR10, folder)
    assert "\n" not in str(caught.value)
    assert not list((small / "cache").rglob("entry.json"))


def test_fewer_images_than_published_are_used_with_a_word_about_the_file(machine):
    write_parquet(machine / "x", fine=True, style="plain")
    for _ in range(2):  # decoded, then from the cache
        with (
            pytest.warns(UserWarning, match="train in .* has 50 images, the published one has 50,000"),
            pytest.warns(UserWarning, match="test in .* has 10 images, the published one has 10,000"),
        ):
            CIFAR100.load(machine / "x")


def test_without_pyarrow_one_sentence_says_what_to_install(small, monkeypatch):
    write_parquet(small / "x", fine=False, style="plain")
    monkeypatch.setitem(__import__("sys").modules, "pyarrow", None)
    with pytest.raises(FedSPMError, match=r"pip install 'fedspm\[parquet\]'"):
        load(CIFAR10, small / "x")


def test_green_alone_is_inverted(small):
    write_official(small / "x", fine=False)
    given = {"name": "cifar10", "path": str(small / "x"), "clients": 2}
    still = {"colour": 0, "brightness": 0, "permutation": False}
    federation = resolve({"data": given, "shift": still}).federation()
    plain = resolve({"data": given, "shift": {**still, "inversion": False}}).federation()
    for i in range(2):
        second = federation.truth.train[i] == 1
        assert second.any()
        x, original = federation.train[i].x, plain.train[i].x
        np.testing.assert_array_equal(x[~second], original[~second])
        np.testing.assert_array_equal(x[second][:, [0, 2]], original[second][:, [0, 2]])
        np.testing.assert_array_equal(x[second][:, 1], 1 - original[second][:, 1])
