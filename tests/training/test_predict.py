"""Queries to a model: a table by the names of its columns, an archive as an archive is read for training."""

import numpy as np
import pytest
import torch

from fedspm import Federation
from fedspm.base.errors import FedSPMError
from fedspm.data.readers.detect import read_vectors
from fedspm.data.tables.schema import TableSchema
from own_data import ROWS, write_csv

NAMES = TableSchema.of_numbers(("age", "pressure"))


def test_queries_are_matched_by_the_names_of_columns(tmp_path):
    turned = [[row[2], row[3], "x", row[1]] for row in ROWS[:3]]
    path = write_csv(tmp_path / "q.csv", turned, ["pressure", "target", "note", "age"])
    assert read_vectors(path, (2,), NAMES)[1].tolist() == [31, 99.5]
    with pytest.raises(FedSPMError, match="no column 'weight', on which the model was trained"):
        read_vectors(path, (2,), TableSchema.of_numbers(("age", "weight")))
    with pytest.raises(FedSPMError, match="column 'target' holds no numbers"):
        read_vectors(path, (2,), None)
    np.savez(tmp_path / "q.npz", x=np.ones((4, 2)))
    assert read_vectors(tmp_path / "q.npz", (2,), NAMES).shape == (4, 2)
    with pytest.raises(FedSPMError, match="the model was trained on"):
        read_vectors(tmp_path / "q.npz", (3,), None)


def test_queries_without_rows(tmp_path):
    path = write_csv(tmp_path / "q.csv", [], ["age", "pressure"])
    np.savez(tmp_path / "q.npz", x=np.ones((0, 2)))
    for empty in (path, tmp_path / "q.npz"):
        with pytest.raises(FedSPMError, match="has no rows"):
            read_vectors(empty, (2,), NAMES)


def test_rows_of_queries_are_numbered_as_in_their_file(tmp_path):
    path = write_csv(tmp_path / "q.csv", [[1, 2], [3, "1e300"]], ["age", "pressure"])
    np.savez(tmp_path / "q.npz", x=np.array([[1, 2], [3, np.nan]]))
    sentences = {path: "no finite 32-bit number in row 2", tmp_path / "q.npz": "row 2 has a value that is not a finite"}
    for bad, sentence in sentences.items():
        with pytest.raises(FedSPMError, match=sentence):
            read_vectors(bad, (2,), NAMES)


BYTES = np.random.default_rng(0).integers(0, 256, (6, 12, 12, 4), np.uint8)


@pytest.mark.parametrize(
    "x",
    [
        BYTES[..., 0],
        BYTES[..., :1],
        BYTES[..., :3],
        BYTES,
        np.moveaxis(BYTES[..., :3], 3, 1),
        np.moveaxis(BYTES[..., :2], 3, 1),
        BYTES[..., 0] / 255,
        (BYTES[..., :3] / 255).astype(">f4"),
        BYTES[..., :3].astype(np.int64),
    ],
    ids=["grey", "grey, last", "last", "rgba", "first", "two", "fractions", "big-endian", "whole"],
)
def test_images_are_asked_as_they_were_trained_on(tmp_path, x):
    for client in ("train/a", "train/b", "q"):
        (tmp_path / client).parent.mkdir(exist_ok=True)
        np.savez(tmp_path / f"{client}.npz", x=x, y=np.arange(6) % 2)
    federation = Federation.from_folder(tmp_path / "train", test_fraction=None)
    asked = read_vectors(tmp_path / "q.npz", federation.shape, None, federation.range)
    assert torch.equal(asked, federation.train[0].x)


def test_a_model_of_bytes_in_memory_is_asked_with_bytes(tmp_path):
    """Federation.from_arrays takes values and axes as they are."""
    first = np.moveaxis(BYTES, 3, 1)[..., :3]  # (n, 4, 12, 3): the channels come first
    federation = Federation.from_arrays({name: (first, np.arange(6) % 2) for name in "ab"})
    np.savez(tmp_path / "q.npz", x=first)
    asked = read_vectors(tmp_path / "q.npz", federation.shape, None, federation.range)
    assert torch.equal(asked, federation.train[0].x)
