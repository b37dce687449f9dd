"""A site's rows: from a file that it made, or from a function of its own."""

import sys

import numpy as np
import pytest
import torch

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.engines.flower.contract import SiteConfig
from fedspm.engines.flower.site_data import SiteRows, load_rows, save_rows

Y = np.arange(4) % 2


def test_images_that_are_given_as_bytes_have_values_from_0_to_1(tmp_path):
    """As image files have, which a router will be asked with."""
    x = np.random.default_rng(0).integers(0, 256, (4, 3, 8, 8), np.uint8)
    save_rows(tmp_path / "rows.safetensors", x, Y, x[:1], Y[:1])
    rows = load_rows(str(tmp_path / "rows.safetensors"))
    assert torch.equal(rows.train.x, torch.from_numpy(x) / 255)
    assert torch.equal(rows.test.x, torch.from_numpy(x[:1]) / 255)
    assert rows.pixels


@pytest.mark.parametrize(
    ("x", "pixels"),
    [(np.full((4, 3, 8, 8), 200.0), False), (np.full((4, 3, 8, 8), -1.0), False), (np.full((4, 3, 8, 8), 0.5), True)],
)
def test_a_site_says_whether_its_values_are_as_in_image_files(x, pixels):
    assert SiteRows.of(x, Y).pixels is pixels


def test_vectors_of_bytes_stay_as_they_are():
    assert SiteRows.of(np.full((4, 5), 200, np.uint8), Y).train.x.max() == 200


def test_a_path_with_a_colon_is_a_path(tmp_path):
    folder = tmp_path / "run 10:30"
    folder.mkdir()
    save_rows(folder / "rows.safetensors", np.zeros((4, 5)), Y)
    (folder / "site.toml").write_text('name = "north"\nrows = "rows.safetensors"\nstate = "state"\n')
    assert len(load_rows(SiteConfig.read(folder / "site.toml").rows).train) == 4
    with pytest.raises(DamagedFile, match="rows = 'nowhere:rows' cannot be loaded"):
        load_rows("nowhere:rows")


def test_a_site_file_in_another_encoding_gets_a_sentence(tmp_path):
    (tmp_path / "site.toml").write_bytes('name = "Zürich"\nrows = "rows.safetensors"\n'.encode("latin-1"))
    with pytest.raises(FedSPMError, match=r"site\.toml cannot be read"):
        SiteConfig.read(tmp_path / "site.toml")


def test_a_function_in_the_working_directory_is_found_after_everything_else(tmp_path, monkeypatch):
    (tmp_path / "rows_of_ours.py").write_text("import colorsys\n\ndef load():\n    return [[1.0], [2.0]], [0, 1]\n")
    (tmp_path / "colorsys.py").write_text("raise AssertionError('not the one of the standard library')")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    before = list(sys.path)
    assert len(load_rows("rows_of_ours:load").train) == 2
    assert sys.path == before
    del sys.modules["rows_of_ours"]
