"""Handing a run to a SuperLink, and following it."""

import time
from collections.abc import Callable
from pathlib import Path
from shlex import quote

import tomli_w

from fedspm.deploy.processes import CONNECTION, connect, flwr
from fedspm.errors import FedSPMError
from fedspm.files import read_json, write_atomically
from fedspm.runs import Run

OUTCOME, LOG = "outcome.json", "server.log"  # what the ServerApp writes: deploy/server.py
APP = {
    "project": {"name": "fedspm-run", "version": "1.0.0", "description": "A FedSPM run", "license": "Apache-2.0"},
    "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
    "tool": {
        "flwr": {
            "app": {
                "publisher": "fedspm",
                "components": {"serverapp": "fedspm_run.server:app", "clientapp": "fedspm_run.client:app"},
                "config": {"folder": ""},
            }
        }
    },
}


def launch(run: Path, superlink: str, certificates: Path | None) -> None:
    """Give the run to the SuperLink, which starts its ServerApp on the SuperLink's machine."""
    app, home = run / "app", run / "flower"
    (app / "fedspm_run").mkdir(parents=True, exist_ok=True)
    write_atomically(app / "pyproject.toml", tomli_w.dumps(APP))
    write_atomically(app / "fedspm_run" / "__init__.py", "")
    write_atomically(app / "fedspm_run" / "server.py", "from fedspm.deploy.server import app\n\n__all__ = ['app']\n")
    write_atomically(app / "fedspm_run" / "client.py", "from fedspm.deploy.client import app\n\n__all__ = ['app']\n")
    connect(home, superlink, certificates)
    (run / OUTCOME).unlink(missing_ok=True)
    flwr(home, "run", str(app), CONNECTION, "--run-config", f'folder="{run.resolve()}"')


def follow(
    run: Path, say: Callable[[str], None], alive: Callable[[], None] = lambda: None, told: int = 0, silence: float = 120
) -> None:
    """Repeat what the server says after its first `told` lines until the run has ended; a failure becomes an error,
    and so do `silence` seconds in which nobody works on the run."""
    heard = time.monotonic()
    while True:
        ended = (run / OUTCOME).exists()
        lines = lines_of(run)
        for line in lines[told:]:
            say(line)
        if len(lines) > told:
            heard = time.monotonic()
        told = len(lines)
        if ended:
            break
        alive()
        if time.monotonic() - heard > silence:
            if not _at_work(run):
                raise FedSPMError(
                    f"nobody works on {run}: the server's process did not start within {silence:g} s, or is gone; "
                    f"look into the SuperLink's log, then go on with: {_resuming(run)}"
                )
            heard = time.monotonic()
        time.sleep(0.5)
    outcome = read_json(run / OUTCOME)
    if not outcome.get("done"):
        raise FedSPMError(f"{outcome.get('error', 'the run stopped')}; go on with: {_resuming(run)}")


def _resuming(run: Path) -> str:
    return f"fedspm federation resume {quote(str(run))} --superlink HOST:PORT"


def lines_of(run: Path) -> list[str]:
    """What the server has said so far."""
    return (run / LOG).read_text("utf-8").splitlines() if (run / LOG).exists() else []


def _at_work(run: Path) -> bool:
    """Does a process hold the run's lock?"""
    try:
        with Run(run).locked():
            return False
    except FedSPMError:
        return True
