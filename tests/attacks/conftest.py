"""What is attacked: real processes that listen on loopback, as an operator would start them."""

import io
import subprocess
import sys

import numpy as np
import pytest
from PIL import Image

from commands import wait
from fedspm import Federation
from fedspm.base.ports import free_port
from fire import ALICE, MALLORY, Service
from serving import trained


@pytest.fixture(scope="session")
def photographs(tmp_path_factory):
    """A run folder of three clients with images of 3 × 28 × 28, and one image."""
    place = tmp_path_factory.mktemp("photographs")
    random = np.random.default_rng(0)
    rows = {name: (random.random((60, 3, 28, 28)).astype(np.float32), random.integers(0, 2, 60)) for name in "abc"}
    trained(Federation.from_arrays(rows), place / "run", rounds=1)
    buffer = io.BytesIO()
    Image.fromarray((random.random((28, 28, 3)) * 255).astype(np.uint8)).save(buffer, "PNG")
    return place / "run", buffer.getvalue()


@pytest.fixture
def service(photographs, tmp_path):
    run, image = photographs
    (tmp_path / "tokens.toml").write_text(f'alice = "{ALICE}"\nmallory = "{MALLORY}"\n')
    port = free_port()
    options = ["--port", port, "--tokens", tmp_path / "tokens.toml", "--rate", "1e9"]
    command = [sys.executable, "-m", "fedspm", "serve", "all", run, *options]
    with (tmp_path / "log").open("w+") as log:
        process = subprocess.Popen([str(each) for each in command], stdout=log, stderr=log)
        found = Service(port, process, image, tmp_path / "log")
        try:
            wait(lambda: process.poll() is not None or all(client["up"] for client in found.clients()))
            assert process.poll() is None, (tmp_path / "log").read_text()
            yield found
            assert process.poll() is None, (tmp_path / "log").read_text()  # nothing of all that ended it
        finally:
            process.terminate()
            process.wait()
