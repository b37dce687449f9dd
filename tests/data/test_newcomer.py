"""The rows of one client that comes to a run, in the forms of one's own data."""

import shutil

import numpy as np
import pytest
import torch
from PIL import Image

from fedspm.base.errors import FedSPMError
from fedspm.data.newcomer import RowSchema, read_newcomer
from fedspm.data.readers.draft import ReadOptions
from fedspm.data.tables.schema import TableSchema


def test_a_table_without_a_client_column_and_in_another_order(tmp_path):
    like = RowSchema((2,), np.array(["ill", "well"]), TableSchema.of_numbers(("a", "b")))
    lines = ["b,a,label", *(f"{j},{-j},{'ill' if j % 2 else 'well'}" for j in range(10))]
    (tmp_path / "rows.csv").write_text("\n".join(lines))
    shutil.copy(tmp_path / "rows.csv", tmp_path / "without.csv")
    train, test = read_newcomer(tmp_path / "rows.csv", "new", like, ReadOptions(), 0.3, 0)
    assert (len(train), len(test)) == (7, 3)
    assert torch.equal(train.x[:, 0], -train.x[:, 1])
    (tmp_path / "rows.csv").write_text("\n".join(["client,a,b,label", "x,1,2,ill", "y,3,4,well"]))
    with pytest.raises(FedSPMError, match="holds the clients x, y, and none is called 'new'"):
        read_newcomer(tmp_path / "rows.csv", "new", like, ReadOptions(), 0.3, 0)
    said = ReadOptions(client_column="hospital", label_column="label", ignore=("patient",))  # of the others' table
    again = read_newcomer(tmp_path / "without.csv", "new", like, said, 0.3, 0)
    assert torch.equal(again[0].x, train.x)
    (tmp_path / "rows.csv").write_text("\n".join(["a,label", "1,ill", "2,well"]))
    with pytest.raises(FedSPMError, match="no column 'b'"):
        read_newcomer(tmp_path / "rows.csv", "new", like, ReadOptions(), 0.3, 0)


def test_a_folder_of_classes(tmp_path):
    for label in ("cat", "dog"):
        for j in range(4):
            (tmp_path / "rows" / label).mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (20, 20), (j, 0, 0)).save(tmp_path / "rows" / label / f"{j}.png")
    like = RowSchema((3, 8, 8), np.array(["cat", "dog"]))
    train, test = read_newcomer(tmp_path / "rows", "new", like, ReadOptions(), 0.25, 0)
    assert train.x.shape == (6, 3, 8, 8)
    assert len(test) == 2
