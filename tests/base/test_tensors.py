"""Tensor files: what was written is what is read, and whatever is wrong with a file is said in a sentence."""

import pytest
import torch

from fedspm.base.errors import DamagedFile
from fedspm.base.files import sha256
from fedspm.base.tensors import read_tensors, write_tensors

TENSORS = {"z": torch.arange(3), "a.weight": torch.rand(2, 2), "b": torch.rand(2).double()}


def test_what_was_written_is_read_in_the_order_of_names(tmp_path):
    path = tmp_path / "state.safetensors"
    write_tensors(path, TENSORS, {"tag": "3/1"})
    tensors, metadata = read_tensors(path, sha256(path.read_bytes()))
    assert list(tensors) == sorted(TENSORS)
    assert all(torch.equal(tensors[name], value) for name, value in TENSORS.items())
    assert metadata == {"tag": "3/1"}
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_without_metadata_has_none(tmp_path):
    write_tensors(tmp_path / "plain", TENSORS)
    assert read_tensors(tmp_path / "plain").metadata == {}


def test_what_is_wrong_with_a_file_is_said(tmp_path):
    path = tmp_path / "state.safetensors"
    with pytest.raises(DamagedFile, match=r"state\.safetensors is missing"):
        read_tensors(path)
    write_tensors(path, TENSORS)
    with pytest.raises(DamagedFile, match=r"state\.safetensors is damaged: its SHA-256 is not the one"):
        read_tensors(path, "0" * 64)
    with pytest.raises(DamagedFile, match=r"state\.safetensors is of another export"):
        read_tensors(path, "0" * 64, other_digest="is of another export")
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(DamagedFile, match=r"state\.safetensors is damaged"):
        read_tensors(path)
