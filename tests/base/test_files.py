"""All of a file or nothing of it."""

import errno
import os

import pytest
import torch
from safetensors.torch import save_file

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.files import folder_atomically, read_json, write_atomically


def full(*_):
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_a_sentence_and_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "metrics.jsonl"
    write_atomically(path, "old\n")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedSPMError, match=r"no space left on the disk while writing .*metrics\.jsonl"):
        write_atomically(path, "new\n")
    assert path.read_text() == "old\n"
    assert list(tmp_path.iterdir()) == [path]


def test_a_folder_appears_whole_or_not_at_all(tmp_path, monkeypatch):
    with pytest.raises(RuntimeError, match="crash"), folder_atomically(tmp_path / "round-1") as folder:
        (folder / "a").write_text("a")
        raise RuntimeError("crash")
    assert list(tmp_path.iterdir()) == []
    with folder_atomically(tmp_path / "round-1") as folder:
        save_file({"a": torch.zeros(1)}, folder / "a.safetensors")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(FedSPMError, match="no space left"), folder_atomically(tmp_path / "round-2") as folder:
        (folder / "a").write_text("a")
    assert [path.name for path in tmp_path.iterdir()] == ["round-1"]


def test_a_folder_that_cannot_be_replaced_stays(tmp_path, monkeypatch):
    with folder_atomically(tmp_path / "bundle") as folder:
        (folder / "a").write_text("old")
    replace = os.replace

    def interrupted(source, target):
        if target == tmp_path / "bundle" and (source / "a").read_text() == "new":
            raise KeyboardInterrupt
        replace(source, target)

    monkeypatch.setattr(os, "replace", interrupted)
    with pytest.raises(KeyboardInterrupt), folder_atomically(tmp_path / "bundle") as folder:
        (folder / "a").write_text("new")
    assert (tmp_path / "bundle" / "a").read_text() == "old"
    assert list(tmp_path.iterdir()) == [tmp_path / "bundle"]


def test_a_damaged_json_file_is_named(tmp_path):
    (tmp_path / "state.json").write_text("{")
    with pytest.raises(DamagedFile, match=r"state\.json is damaged"):
        read_json(tmp_path / "state.json")
    with pytest.raises(DamagedFile, match=r"other\.json is missing"):
        read_json(tmp_path / "other.json")
