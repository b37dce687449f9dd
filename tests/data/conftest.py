"""A machine of one's own: no data on it, an empty cache, and no network."""

import urllib.request

import pytest

from fedspm.data.catalog import cifar, dataset, fashion, isic


@pytest.fixture
def machine(tmp_path, monkeypatch):
    def unreachable(address, timeout):
        raise OSError("no network in this test")

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("FEDSPM_DATA", raising=False)
    monkeypatch.setattr(dataset, "SYSTEM", tmp_path / "system")
    monkeypatch.setattr(urllib.request, "urlopen", unreachable)
    return tmp_path


@pytest.fixture
def small(machine, monkeypatch):
    """… on which the published numbers are those of `forms`, so that nothing is odd about them."""
    for numbers in (cifar.BATCHES, cifar.SHEETS):
        monkeypatch.setattr(cifar, "BATCHES" if numbers is cifar.BATCHES else "SHEETS", dict.fromkeys(numbers, 10))
    monkeypatch.setattr(cifar, "WHOLE", {"train": 50, "test": 10})
    monkeypatch.setattr(isic, "FOLDS", [(4, 2)] * 6)
    monkeypatch.setattr(fashion, "PARTS", {"train": 30, "t10k": 20})
    return machine
