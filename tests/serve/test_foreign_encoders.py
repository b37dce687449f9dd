"""A bundle may name code to import. It is imported only if the operator allows exactly that name."""

import asyncio
import json
import logging
import os
import shutil
import sys

import httpx
import pytest

from commands import fedspm, wait
from fedspm.base.errors import FedSPMError
from fedspm.base.ports import free_port
from fedspm.runs.folder import Run
from fedspm.serve.bundle import load_node, load_router
from fedspm.serve.export import export, is_current
from fedspm.serve.hot_reload import ReloadableModel
from fedspm.serve.node import node_app
from fedspm.serve.processes import local_nodes
from fedspm.serve.router import Router

NAME = "payload:make"
MODULE = """
from pathlib import Path
from fedspm.nn.mlp import MLP

Path(__file__).with_name("was-imported").touch()
make = MLP
"""


@pytest.fixture
def payload(tmp_path, monkeypatch):
    """A module that leaves a trace when it is imported; says whether it was."""
    place = tmp_path / "code"
    place.mkdir()
    (place / "payload.py").write_text(MODULE)
    monkeypatch.syspath_prepend(place)
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(place), os.environ.get("PYTHONPATH", "")]))
    yield (place / "was-imported").exists
    sys.modules.pop("payload", None)


def naming(folder, kind, encoder=NAME, **said):
    """The folder, whose card names an encoder from elsewhere."""
    card = json.loads((folder / f"{kind}.json").read_text())
    card["settings"]["predictor"]["encoder"] = encoder
    (folder / f"{kind}.json").write_text(json.dumps(card | said))
    return folder


@pytest.mark.parametrize(
    ("inside", "kind", "load"), [("router", "router", load_router), ("clients/north", "node", load_node)]
)
def test_a_hot_swapped_bundle_imports_nothing(served, tmp_path, payload, caplog, inside, kind, load):
    folder = shutil.copytree(served[2] / inside, tmp_path / "folder")
    current = ReloadableModel(folder, load)
    naming(folder, kind, version="other")
    with caplog.at_level(logging.WARNING, "fedspm.serve"):
        asyncio.run(current.refresh())
    assert not payload()
    assert current.model.card.version != "other"
    assert f"the encoder '{NAME}' is not part of FedSPM and would run code" in caplog.text
    assert f"--allow {NAME}" in caplog.text


def test_no_service_starts_with_it_unless_that_very_name_is_allowed(served, tmp_path, payload):
    node = naming(shutil.copytree(served[2] / "clients" / "north", tmp_path / "north"), "node")
    router = naming(shutil.copytree(served[2] / "router", tmp_path / "router"), "router")
    nodes = {name: f"http://{name}" for name in ("north", "south", "west")}
    for allowed in ((), ("payload",), ("payload:other",), ("payload:make ",), ("*",)):
        with pytest.raises(FedSPMError, match="the encoder 'payload:make' is not part of FedSPM"):
            node_app(node, allowed=allowed)
        with pytest.raises(FedSPMError, match="the encoder 'payload:make' is not part of FedSPM"):
            Router(router, nodes, allowed=allowed)
    assert not payload()
    node_app(node, allowed=(NAME,))
    assert payload()
    Router(router, nodes, allowed=(NAME,))


def test_a_swap_takes_up_what_is_allowed(served, tmp_path, payload):
    folder = shutil.copytree(served[2] / "clients" / "north", tmp_path / "folder")
    current = ReloadableModel(folder, lambda path: load_node(path, [NAME]))
    naming(folder, "node", version="other")
    asyncio.run(current.refresh())
    assert payload()
    assert current.model.card.version == "other"


@pytest.fixture
def run(served, tmp_path):
    """A run folder that somebody sent, which names code."""
    run = shutil.copytree(served[1], tmp_path / "run")
    config = (run / "config.toml").read_text().replace('encoder = "mlp"', f'encoder = "{NAME}"', 1)
    assert NAME in config
    (run / "config.toml").write_text(config)
    return Run.open(run)


def test_a_run_that_names_it_is_not_exported_unless_it_is_allowed(run, tmp_path, payload):
    with pytest.raises(FedSPMError, match="the encoder 'payload:make' is not part of FedSPM"):
        export(run, tmp_path / "bundle")
    assert not payload()
    allowed = Run.open(run.path, [NAME])
    export(allowed, tmp_path / "bundle")
    assert payload()
    assert not is_current(run, tmp_path / "bundle", 0.05)
    with pytest.raises(FedSPMError, match="is not part of FedSPM"), local_nodes(tmp_path / "bundle"):
        pass


def test_the_commands_refuse_it_and_take_the_option(run, tmp_path, payload):
    for command in (("export", run.path, "--out", tmp_path / "bundle"), ("serve", "all", run.path)):
        done = fedspm(*command, "--allow", "payload:other", check=False)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1), done.stderr
        assert f"--allow {NAME}" in done.stderr
    assert not payload()
    fedspm("export", run.path, "--out", tmp_path / "bundle", "--allow", NAME)
    assert payload()
    node = ("serve", "node", tmp_path / "bundle" / "clients" / "north", "--port", free_port())
    assert f"--allow {NAME}" in fedspm(*node, check=False).stderr


def test_all_services_start_with_what_is_allowed(run, payload, background):
    port = free_port()
    background("serve", "all", run.path, "--port", port, "--allow", NAME)
    up = f"http://127.0.0.1:{port}/v1/clients"
    wait(lambda: all(client["up"] for client in httpx.get(up).json()))
    assert httpx.post(f"http://127.0.0.1:{port}/v1/predict", json={"x": [0.0] * 6}).status_code == 200


@pytest.fixture
def background():
    import subprocess

    started = []

    def start(*arguments):
        command = [sys.executable, "-m", "fedspm", *map(str, arguments)]
        started.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL))

    yield start
    for process in started:
        process.terminate()
    for process in started:
        process.wait(60)
