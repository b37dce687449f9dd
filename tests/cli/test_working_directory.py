"""Nothing in the working directory is imported unless the user names it, and nothing that only a run folder names."""

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from commands import fedspm, wait
from fedspm import FederatedClassifier
from fedspm.base.errors import FedSPMError
from fedspm.base.ports import free_port
from fedspm.cli.app import app

TOLD = "import os, pathlib\npathlib.Path(os.environ['TOLD'], pathlib.Path(__file__).stem).touch()\n"
SHADOWS = ("tomli_w", "torch", "numpy", "pydantic", "typer", "rich", "typing", "json", "multiprocessing", "uvicorn")
OURS = ("helper", "payload")  # in the order of the alphabet
PAYLOAD = """
import math
from torch import nn

def make(shape, dimension):
    import helper
    return nn.Sequential(nn.Flatten(), helper.layer(math.prod(shape), dimension))
"""
HELPER = "from torch.nn import Linear as layer\n"
SMALL = ["--rounds", "1", "--components", "2", "--set", "predictor.steps=1", "--set", "router.steps=1"]
OWN = ["--set", "predictor.encoder=payload:make", "--set", "router.encoder=payload:make"]
HOW = {"fedspm": [Path(sys.executable).with_name("fedspm")], "python -m fedspm": [sys.executable, "-m", "fedspm"]}


class Place:
    """A folder to work in, whose modules leave a mark when they are imported."""

    def __init__(self, folder: Path):
        self.here, self._told = folder / "here", folder / "told"
        self.here.mkdir()
        self._told.mkdir()
        rows = [f"{site},{j % 7},{(i + j) % 5},{j % 2}" for i, site in enumerate("abc") for j in range(40)]
        (self.here / "rows.csv").write_text("\n".join(["client,u,v,label", *rows]))
        (folder / "newcomer.csv").write_text("\n".join(["u,v,label", *(row[2:] for row in rows[80:])]))
        for name in SHADOWS:
            (self.here / f"{name}.py").write_text(TOLD)
        (self.here / "payload.py").write_text(TOLD + PAYLOAD)
        (self.here / "helper.py").write_text(TOLD + HELPER)
        self.options = {"cwd": self.here, "env": os.environ | {"TOLD": str(self._told)}}

    def imported(self) -> list[str]:
        return sorted(mark.name for mark in self._told.iterdir())

    def content(self) -> dict[Path, bytes]:
        return {file: file.read_bytes() for file in self.here.rglob("*") if file.is_file()}

    def fedspm(self, *arguments, **options):
        return fedspm(*arguments, **self.options, **options)


@pytest.fixture
def place(tmp_path):
    return Place(tmp_path)


@pytest.mark.parametrize("how", HOW)
def test_nothing_in_the_working_directory_is_imported(place, how):
    command = [*HOW[how], "data", "check", "."]
    checked = subprocess.run(command, capture_output=True, text=True, check=False, **place.options)
    assert "3 clients" in checked.stdout, checked.stderr
    assert place.imported() == []


def everybody_is_up(port):
    return all(client["up"] for client in httpx.get(f"http://127.0.0.1:{port}/v1/clients").json())


def test_nor_by_the_processes_that_a_command_starts(place):
    place.fedspm("compare", "--data", "rows.csv", "--algorithms", "fedspm", "--seeds", 0, *SMALL, "--out", "out")
    assert place.imported() == []
    (run,) = (manifest.parent for manifest in place.here.glob("out/**/manifest.json"))
    port = free_port()
    command = [sys.executable, "-m", "fedspm", "serve", "all", str(run), "--port", str(port)]
    server = subprocess.Popen(command, **place.options)
    try:
        wait(lambda: server.poll() is not None or everybody_is_up(port))
        assert server.poll() is None
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait()
    assert place.imported() == []


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A run with an encoder of the user's own, which lay in the working directory."""
    place = Place(tmp_path_factory.mktemp("own"))
    trained = place.fedspm("train", "--data", place.here / "rows.csv", *SMALL, *OWN, "--out", "run", "--horizon", 9)
    assert "queries.csv --allow payload:make" in trained.stdout  # what it says to try next can be typed
    return place


def test_an_own_encoder_in_the_working_directory_trains(trained):
    assert tuple(trained.imported()) == OURS  # and nothing else that lies there


def test_an_own_encoder_in_the_working_directory_is_compared(place):
    place.fedspm("compare", "--data", "rows.csv", "--algorithms", "fedspm", "--seeds", 0, *SMALL, *OWN, "--out", "out")
    assert tuple(place.imported()) == OURS


@pytest.fixture
def received(trained, place, monkeypatch):
    """The run, and modules of the names that it knows, came from somebody else; commands run in this process."""
    shutil.copytree(trained.here / "run", place.here / "run")
    monkeypatch.chdir(place.here)
    monkeypatch.setenv("TOLD", place.options["env"]["TOLD"])
    yield place
    for name in OURS:
        sys.modules.pop(name, None)


def invoked(*arguments):
    return CliRunner().invoke(app, arguments, catch_exceptions=False)


@pytest.mark.parametrize(
    "arguments",
    [
        ["resume", "run", "--rounds", "2"],
        ["route", "run", "run/samples/queries.csv"],
        ["export", "run", "--out", "bundle"],
        ["onboard", "run", "--name", "d", "--data", "../newcomer.csv"],
        ["remove", "run", "--name", "a"],
    ],
    ids=lambda arguments: arguments[0],
)
def test_an_encoder_that_a_run_names_is_not_imported_unless_it_is_allowed(received, arguments):
    before = received.content()
    with pytest.raises(FedSPMError, match=r"would run code of the module payload; .*--allow payload:make"):
        invoked(*arguments)
    assert received.imported() == []
    assert received.content() == before
    assert invoked(*arguments, "--allow", "payload:make").exit_code == 0
    assert tuple(received.imported()) == OURS


def test_what_a_run_has_written_down_is_shown_without_its_encoder(received):
    assert invoked("evaluate", "run").exit_code == 0
    with pytest.raises(FedSPMError, match="was not diagnosed"):
        invoked("diagnose", "run")
    assert received.imported() == []


def test_python_loads_a_run_with_an_encoder_that_is_allowed_by_name(received):
    with pytest.raises(FedSPMError, match=r"would run code of the module payload; .*allow=\('payload:make',\)"):
        FederatedClassifier.load("run")
    assert received.imported() == []
    loaded = FederatedClassifier.load("run", allow=("payload:make",))
    assert loaded.client_names_ == ["a", "b", "c"]


def test_the_workers_of_the_simulation_import_what_the_user_names_and_nothing_else(place):
    """Ray lets its workers look for modules where it was started, before everywhere else."""
    pytest.importorskip("ray", reason="pip install 'fedspm[flower]'")
    place.fedspm("train", "--data", "rows.csv", "--engine", "flower-simulation", *SMALL, *OWN, "--out", "out")
    assert place.imported() == list(OURS)
