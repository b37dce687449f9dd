"""Starts and stops the processes of a federation, each by its own number."""

import os
import re
import signal
import socket
import ssl
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType

import tomli_w

from fedspm.base.errors import FedSPMError
from fedspm.base.files import write_atomically
from fedspm.engines.flower.environment import FLOWER

CONNECTION = "fedspm"


class Processes:
    """Child processes, each with its own process group and log file; all of them end with this object. Only their owner
    may read what they write (logs, Flower's databases)."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def __enter__(self) -> "Processes":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in list(self.running):
            self.stop(name)

    def start(self, name: str, command: list[str], home: Path) -> int:
        """Start a process that keeps Flower's files in `home` and sends no telemetry; return its number."""
        with open(self.folder / f"{name}.log", "ab", opener=_private) as log:
            self.running[name] = subprocess.Popen(
                command,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=flower_environment(home),
                umask=0o077,
            )
        return self.running[name].pid

    def stop(self, name: str, seconds: float = 10.0) -> None:
        """Ask the process and all that it started to end (SIGTERM); kill them if they have not after `seconds`."""
        process = self.running.pop(name)
        for how in (signal.SIGTERM, signal.SIGKILL):
            try:
                os.killpg(process.pid, how)
            except ProcessLookupError:
                break
            try:
                process.wait(seconds)
            except subprocess.TimeoutExpired:
                continue
        process.wait()

    def kill(self, name: str) -> None:
        """End it without warning, as a power cut would."""
        process = self.running.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def require_alive(self) -> None:
        for name, process in self.running.items():
            if process.poll() is not None:
                raise FedSPMError(f"{name} ended with code {process.returncode}; see {self.folder / name}.log")


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def flower_environment(home: Path) -> dict[str, str]:
    """The environment of Flower's programs: no telemetry, nothing installed at run time, our own scripts first."""
    scripts = str(Path(sys.executable).parent)
    path = f"{scripts}{os.pathsep}{os.environ.get('PATH', '')}"
    return {**os.environ, **FLOWER, "FLWR_HOME": str(home), "PATH": path}


def connect(home: Path, superlink: str, certificates: Path | None) -> None:
    """Write the connection under which `flwr` finds the SuperLink."""
    home.mkdir(parents=True, exist_ok=True)
    secure = {"root-certificates": str(certificates.resolve())} if certificates else {"insecure": True}
    settings = {"superlink": {"default": CONNECTION, CONNECTION: {"address": superlink, **secure}}}
    write_atomically(home / "config.toml", tomli_w.dumps(settings))


def flwr(home: Path, *arguments: str) -> str:
    """Call Flower's own command line."""
    command = [str(Path(sys.executable).parent / "flwr"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=flower_environment(home))
    if done.returncode:
        raise FedSPMError(f"`flwr {arguments[0]}` failed: {one_line(done.stderr + done.stdout) or done.returncode}")
    return done.stdout


def one_line(said: str) -> str:
    """What a program printed, on one line, without boxes and without its usage message."""
    lines = (re.sub(r"[─-╿]+", " ", line) for line in said.splitlines())
    words = " ".join(
        line for line in lines if not re.match(r"\s*(Usage:|Try |Using SuperLink|Error\s*$)", line)
    ).split()
    return " ".join(words)[:500]


def wait_for_server(address: str, certificates: Path | None, seconds: float, processes: Processes) -> None:
    """Return once the server accepts connections (over TLS, with certificates); an error if it does not in time."""
    host, _, port = address.rpartition(":")
    context = ssl.create_default_context(cafile=certificates) if certificates else None
    end = time.monotonic() + seconds
    while True:
        processes.require_alive()
        try:
            with socket.create_connection((host, int(port)), timeout=2) as plain:
                if context:
                    context.wrap_socket(plain, server_hostname=host).close()
                return
        except OSError as error:
            if time.monotonic() > end:
                raise FedSPMError(f"no server answers at {address} after {seconds:g} s: {error}") from error
            time.sleep(0.2)
