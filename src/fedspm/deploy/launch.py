"""Hands a run to a SuperLink, and follows it to its end."""

import tempfile
import time
import uuid
from collections.abc import Callable, Sequence
from pathlib import Path
from shlex import quote

import tomli_w

from fedspm.base.errors import FedSPMError
from fedspm.base.files import read_json, require_files, write_atomically
from fedspm.deploy.processes import CONNECTION, connect, flwr
from fedspm.runs.config import Config
from fedspm.runs.folder import Run
from fedspm.runs.lock import refuse_existing

LOG = "server.log"  # what the ServerApp says: deploy/server.py
APP = {
    "project": {"name": "fedspm-run", "version": "1.0.0", "description": "A FedSPM run", "license": "Apache-2.0"},
    "build-system": {"requires": ["hatchling"], "build-backend": "hatchling.build"},
    "tool": {
        "flwr": {
            "app": {
                "publisher": "fedspm",
                "components": {"serverapp": "fedspm_run.server:app", "clientapp": "fedspm_run.client:app"},
                "config": {"folder": "", "attempt": ""},
            }
        }
    },
}


def outcome_of(run: Path, attempt: str) -> Path:
    """The file in which the ServerApp of an attempt writes how it ended. Every attempt has its own: the server of a
    SuperLink that was killed ends a little later, when the next attempt may already have begun."""
    return run / f"outcome-{attempt}.json"


def launch(run: Path, superlink: str, certificates: Path | None) -> str:
    """Give the run to the SuperLink, which starts its ServerApp on the SuperLink's machine.

    Returns the name of this attempt, by which `follow` knows its end from that of an earlier one.
    """
    attempt = uuid.uuid4().hex[:16]
    app, home = run / "app", run / "flower"
    (app / "fedspm_run").mkdir(parents=True, exist_ok=True)
    write_atomically(app / "pyproject.toml", tomli_w.dumps(APP))
    write_atomically(app / "fedspm_run" / "__init__.py", "")
    write_atomically(app / "fedspm_run" / "server.py", "from fedspm.deploy.server import app\n\n__all__ = ['app']\n")
    write_atomically(app / "fedspm_run" / "client.py", "from fedspm.deploy.client import app\n\n__all__ = ['app']\n")
    connect(home, superlink, certificates)
    for earlier in run.glob("outcome*.json"):
        earlier.unlink(missing_ok=True)
    flwr(home, "run", str(app), CONNECTION, "--run-config", f'folder="{run.resolve()}" attempt="{attempt}"')
    return attempt


def train_across_sites(
    config: Config, out: Path, superlink: str, certificates: Path | None, say: Callable[[str], None]
) -> Run:
    """Begin a run with the sites that are connected to a SuperLink, and follow it to its end."""
    refuse_existing(out)
    out.mkdir(parents=True, exist_ok=True)
    write_atomically(out / "config.toml", config.to_toml())
    return _launch_and_follow(out, superlink, certificates, say)


def resume_across_sites(
    run: Path, superlink: str, certificates: Path | None, say: Callable[[str], None], allowed: Sequence[str] = ()
) -> Run:
    """Go on with a run after its last complete round. What is `allowed` and not part of FedSPM may run its code."""
    if not (run / "config.toml").exists():
        raise FedSPMError(f"{run} is not a run: it has no config.toml")
    Run(run, allowed).require_allowed()
    return _launch_and_follow(run, superlink, certificates, say)


def _launch_and_follow(run: Path, superlink: str, certificates: Path | None, say: Callable[[str], None]) -> Run:
    told = len(lines_of(run))
    attempt = launch(run, superlink, certificates)
    follow(run, attempt, say, told=told)
    return Run.open(run)


def register_site(public: Path, name: str, superlink: str, certificates: Path | None) -> None:
    """Let the site with this public key connect to a SuperLink."""
    require_files(public, certificates)
    with tempfile.TemporaryDirectory() as home:
        connect(Path(home), superlink, certificates)
        flwr(Path(home), "supernode", "register", str(public), CONNECTION, "--name", name)


def follow(
    run: Path,
    attempt: str,
    say: Callable[[str], None],
    alive: Callable[[], None] = lambda: None,
    told: int = 0,
    silence: float = 300,
) -> None:
    """Repeat what the server's log says, from line `told` on, until the attempt has ended. Raises an error if it
    failed, or if nobody has worked on the run for `silence` seconds."""
    outcome = outcome_of(run, attempt)
    heard = time.monotonic()
    while True:
        ended = outcome.exists()
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
    found = read_json(outcome)
    if not found.get("done"):
        raise FedSPMError(f"{found.get('error', 'the run stopped')}; go on with: {_resuming(run)}")


def _resuming(run: Path) -> str:
    return f"fedspm federation resume {quote(str(run))} --superlink HOST:PORT"


def lines_of(run: Path) -> list[str]:
    """The lines of the server's log so far."""
    return (run / LOG).read_text("utf-8").splitlines() if (run / LOG).exists() else []


def _at_work(run: Path) -> bool:
    """Does a process hold the run's lock?"""
    try:
        with Run(run).locked():
            return False
    except FedSPMError:
        return True
