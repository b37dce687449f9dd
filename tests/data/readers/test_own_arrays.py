"""One's own data as arrays: NumPy archives, and data sets that are in memory already."""

import zipfile

import numpy as np
import pytest
import torch
from PIL import Image

from fedspm import Federation
from fedspm.base.errors import FedSPMError
from fedspm.data.readers.datasets import read_datasets
from fedspm.data.readers.detect import read_path
from fedspm.data.readers.draft import ReadOptions
from own_data import FakeDataset

# -- archives --------------------------------------------------------------------------------------------------------


def test_archives(tmp_path):
    x, y = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32), np.arange(20) % 3
    client = np.array(["b", "a"])[np.arange(20) % 2]
    np.savez(tmp_path / "one.npz", x=x, y=y, client=client, split=np.where(np.arange(20) < 14, "train", "test"))
    for name in "ab":
        mine = client == name
        parts = {"x": x[mine][:7], "y": y[mine][:7], "x_test": x[mine][7:], "y_test": y[mine][7:]}
        (tmp_path / "many").mkdir(exist_ok=True)
        np.savez_compressed(tmp_path / "many" / f"{name}.npz", **parts)
        for form in ("split", "parts"):
            (tmp_path / form).mkdir(exist_ok=True)
        split = np.where(np.arange(10) < 7, "Train", "test")
        np.savez(tmp_path / "split" / f"{name}.npz", x=x[mine], y=y[mine], split=split)
        half = slice(0, 10) if name == "a" else slice(10, 20)
        split = np.where(np.arange(20) < 14, b"train", b"test")
        np.savez(tmp_path / "parts" / f"{name}.npz", x=x[half], y=y[half], client=client[half], split=split[half])
    one, many = Federation.from_table(tmp_path / "one.npz"), Federation.from_folder(tmp_path / "many")
    assert one.fingerprint == many.fingerprint
    assert Federation.from_folder(tmp_path / "split").fingerprint == one.fingerprint
    assert Federation.from_folder(tmp_path / "parts").fingerprint == one.fingerprint
    assert one.names == ("a", "b")
    assert one.counts == (7, 7)


def test_images_in_archives_are_values_from_0_to_1_channels_first(tmp_path):
    shapes = {"a": (6, 8, 8, 3), "b": (6, 3, 8, 8)}
    for name, shape in shapes.items():
        np.savez(tmp_path / f"{name}.npz", x=np.full(shape, 51, np.uint8), y=np.arange(6) % 2)
    federation = Federation.from_folder(tmp_path)
    assert federation.shape == (3, 8, 8)
    torch.testing.assert_close(federation.train[0].x, torch.full_like(federation.train[0].x, 0.2))


def test_rgba_in_archives_loses_its_opacity_as_in_image_files(tmp_path):
    x = np.random.default_rng(0).integers(0, 256, (6, 8, 8, 4), np.uint8)
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x=x, y=np.arange(6) % 2)
        for j, pixels in enumerate(x):
            picture = tmp_path / "files" / name / str(j % 2) / f"{j}.png"
            picture.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(pixels).save(picture)
    arrays = Federation.from_folder(tmp_path, test_fraction=None)
    files = Federation.from_folder(tmp_path / "files", test_fraction=None)
    assert arrays.shape == (3, 8, 8)
    torch.testing.assert_close(arrays.train[0].x[::2], files.train[0].x[:3])


def test_rows_are_numbered_as_in_their_archive(tmp_path):
    x, y = np.zeros((20, 3)), np.arange(20) % 2
    x[16, 1], x[18, 1] = np.nan, 1e300
    np.savez(tmp_path / "one.npz", x=x, y=y, client=np.array(["b", "a"])[y])
    (tmp_path / "many").mkdir()
    np.savez(tmp_path / "many" / "a.npz", x=x, y=y, x_test=x[17:], y_test=y[17:])
    np.savez(tmp_path / "many" / "b.npz", x=x[:16], y=y[:16])
    (problem,) = read_path(tmp_path / "one.npz", ReadOptions()).problems
    assert "one.npz: row 17 has a value that is not a finite" in problem
    first, second = read_path(tmp_path / "many", ReadOptions()).problems
    assert "a.npz: row 17 has a value" in first
    assert "a.npz, test rows: row 2 has a value" in second


class Bomb:
    def __reduce__(self):
        return print, ("unpickled!",)


def test_archives_are_never_unpickled(tmp_path, capsys):
    np.savez(tmp_path / "a.npz", x=np.array([Bomb()], dtype=object), y=np.zeros(1))
    np.savez(tmp_path / "b.npz", x=np.zeros((3, 2)), z=np.zeros(3))
    np.savez(tmp_path / "c.npz", x=np.zeros((3, 2)), y=np.zeros(4))
    (tmp_path / "d.npz").write_bytes(b"not a zip file")
    with zipfile.ZipFile(tmp_path / "e.npz", "w") as archive:
        archive.writestr("x.npy", b"\x93NUMPY\x01\x00junk")
    found = read_path(tmp_path, ReadOptions()).problems
    for sentence in (
        "never unpickled",
        "holds x, z; expected x and y",
        r"y (4,)",
        "d.npz cannot be read",
        "e.npz cannot",
    ):
        assert any(sentence in problem for problem in found), sentence
    assert "unpickled!" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ({"client": ["a", "b"] * 3, "x_test": np.ones((1, 2)), "y_test": [0]}, "x_test stands beside client or split"),
        ({"x_test": np.ones((1, 2))}, "there is x_test and no y_test"),
        ({"y_test": [0]}, "there is no x_test and y_test (1,)"),
        ({"split": [0, 1] * 3}, "split holds '0'; expected 'train' and 'test'"),
        ({"split": ["train", ""] * 3}, "split is empty in row 2"),
        ({"split": ["train"] * 5}, "split needs one value a row of x"),
        ({"client": ["a", "b"] * 3}, "a.npz says whose each row is (client), "),
    ],
)
def test_no_array_that_matters_is_left_out_silently(tmp_path, more, sentence):
    x, y = np.arange(12.0).reshape(6, 2), np.arange(6) % 2
    np.savez(tmp_path / "a.npz", x=x, y=y, **more)
    np.savez(tmp_path / "b.npz", x=x, y=y)
    assert any(sentence in problem for problem in read_path(tmp_path, ReadOptions()).problems)


def test_arrays_without_a_role_are_mentioned(tmp_path):
    for name in "ab":
        np.savez(tmp_path / f"{name}.npz", x_train=np.arange(12.0).reshape(6, 2), y_train=np.arange(6) % 2, x_val=0)
    draft = read_path(tmp_path, ReadOptions())
    assert draft.problems == []
    assert draft.remarks[0].endswith("a.npz: not used: x_val")


def test_rows_of_one_client_keep_their_split(tmp_path):
    split = np.where(np.arange(6) < 4, "train", "test")
    np.savez(tmp_path / "west.npz", x=np.arange(12.0).reshape(6, 2), y=np.arange(6) % 2, split=split)
    draft = read_path(tmp_path / "west.npz", ReadOptions(client="West"))
    assert [len(part["west"][1]) for part in (draft.train, draft.test)] == [4, 2]


@pytest.mark.parametrize("splits", [("train", "test"), ("train", "valid")])
def test_archives_of_one_data_set_are_not_taken_for_clients(tmp_path, splits):
    for split in splits:
        np.savez(tmp_path / f"{split}.npz", x=np.arange(12.0).reshape(6, 2), y=np.arange(6) % 2)
    with pytest.raises(FedSPMError, match="not clients; an archive a client has x, y, x_test and y_test"):
        Federation.from_folder(tmp_path)


# -- data sets in memory ---------------------------------------------------------------------------------------------


class FakePartitioner:
    """The part of a Flower Datasets partitioner that is used."""

    num_partitions = 2

    def load_partition(self, i):
        return dataset(i)


def dataset(i, n=8, **more):
    images = [Image.new("RGB", (9, 9), (10 * i, j, 0)) for j in range(n)]
    return FakeDataset({"image": images, "label": [j % 2 for j in range(n)], **more}, ["cat", "dog"])


def test_data_sets_in_memory():
    by_name = Federation.from_datasets({"client-0": dataset(0), "client-1": dataset(1)})
    partitioned = Federation.from_datasets(FakePartitioner())
    assert by_name.fingerprint == partitioned.fingerprint
    assert by_name.classes.tolist() == ["cat", "dog"]
    assert by_name.shape == (3, 9, 9)
    large = {name: FakeDataset({"image": [Image.new("L", (70, 70))] * 6, "label": [0, 1] * 3}) for name in "ab"}
    assert Federation.from_datasets(large).shape == (3, 64, 64)  # alike, and too large to be kept
    larger = FakeDataset({"image": [Image.new("L", (20, 20))] * 6, "label": [0, 1] * 3}, ["cat", "dog"])
    assert Federation.from_datasets({"a": dataset(0), "b": larger}).shape == (3, 64, 64)
    tested = Federation.from_datasets(
        {name: {"train": dataset(i), "test": dataset(i, 3)} for i, name in enumerate("ab")}
    )
    assert [len(part) for part in tested.test] == [3, 3]
    assert tested.counts == (8, 8)


def test_data_sets_in_the_formats_of_numpy_and_torch():
    """Columns are arrays, tensors, or lists of them; labels are tensors, and images have their channels first."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 9, 9, 3), np.uint8)
    first = torch.from_numpy(pixels).permute(0, 3, 1, 2)
    spelled = [
        ([Image.fromarray(each) for each in pixels], [0, 1] * 4),
        (list(pixels), list(np.array([0, 1] * 4))),
        (np.minimum(pixels.astype(int) * 257 + 100, 65535).astype(np.uint16), np.array([0, 1] * 4)),
        (pixels.tolist(), [np.array(j) for j in [0, 1] * 4]),
        ((pixels / 255).tolist(), [0, 1] * 4),
        (list(first), list(torch.tensor([0, 1] * 4))),
        (first.float() / 255, torch.tensor([0, 1] * 4)),
    ]
    for names, classes in ((["cat", "dog"], ["cat", "dog"]), (None, [0, 1])):
        found = [
            Federation.from_datasets({name: FakeDataset({"image": x, "label": y}, names) for name in "ab"})
            for x, y in spelled
        ]
        assert found[0].classes.tolist() == classes
        assert len({each.fingerprint for each in found}) == 1


def test_a_bad_image_in_a_data_set_is_named_without_its_bytes():
    images = [b"PNG?" * 1000, {"bytes": b"JPEG" * 1000, "path": "scan.jpg"}, torch.full((9, 9), 1.5)]
    data = FakeDataset({"image": [*images, Image.new("L", (9, 9))], "label": [0, 1] * 2})
    draft = read_datasets({"a": data, "b": dataset(1)}, ReadOptions())
    named = [problem.partition(" cannot")[0] for problem in draft.problems]
    assert named == ["a, row 1", "a, row 2: scan.jpg", "a, row 3"]
    assert all(len(problem) < 200 for problem in draft.problems)
    assert "its values go from 1.5 to 1.5" in draft.problems[2]


def test_a_data_set_with_a_client_column_and_lists_of_numbers():
    columns = {"hospital": ["n", "s"] * 6, "x": [[j, 2.0 * j] for j in range(12)], "label": [j % 3 for j in range(12)]}
    federation = Federation.from_datasets(FakeDataset(columns), test_fraction=None)
    assert federation.columns == ("x[0]", "x[1]")
    assert federation.train[1].x[0].tolist() == [1, 2]
    with pytest.raises(FedSPMError, match="is not a data set with named columns"):
        Federation.from_datasets({"a": 3})


@pytest.mark.parametrize("names", [("train", "validation"), ("train", "test", "validation"), ("Train", "Test")])
def test_parts_of_one_data_set_are_not_taken_for_clients(names, tmp_path):
    with pytest.raises(FedSPMError, match="parts of one data set, not clients"):
        Federation.from_datasets({name: dataset(0) for name in names})
    for name in names:
        (tmp_path / f"{name}.csv").write_text("site,label,a\nnorth,x,1\nnorth,y,2\nsouth,x,3\nsouth,y,4\n")
    if set(names) != {"Train", "Test"}:  # as names of files these are train and test
        with pytest.raises(FedSPMError, match="parts of one data set, not clients"):
            Federation.from_folder(tmp_path)


def test_labels_may_be_bytes_if_they_are_text():
    x = np.arange(8.0).reshape(4, 2)
    names = np.array(["süd".encode(), b"north"] * 2)
    assert Federation.from_arrays(dict.fromkeys("ab", (x, names))).classes.tolist() == ["north", "süd"]
    with pytest.raises(FedSPMError, match="client 'a': a label is bytes that are no text"):
        Federation.from_arrays({name: (x, np.array([b"\xff", b"north"] * 2)) for name in "ab"})
