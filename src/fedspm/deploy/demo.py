"""A whole federation on this machine: SuperLink and sites as separate processes, with TLS and node authentication."""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tomli_w

from fedspm.algorithms import build_algorithm
from fedspm.base.files import private_folder, write_atomically
from fedspm.base.ports import free_port
from fedspm.data.federation import Federation
from fedspm.deploy.keys import make_certificates, make_key
from fedspm.deploy.launch import follow, launch
from fedspm.deploy.processes import CONNECTION, Processes, connect, flwr, wait_for_server
from fedspm.engines.flower.loopback import site_configs
from fedspm.federated.task import Task
from fedspm.runs.config import Config, resolve
from fedspm.runs.folder import Run
from fedspm.runs.lock import refuse_existing


class Loopback:
    """A SuperLink and its sites on this machine, each a process that can be started and stopped by itself."""

    def __init__(self, folder: Path, processes: Processes):
        self.folder, self.processes = folder, processes
        self.superlink = f"127.0.0.1:{free_port()}"
        self.certificates = folder / "server" / "ca.crt"
        self.sites: dict[str, Path] = {}

    def start_superlink(self) -> int:
        server = self.folder / "server"
        host, _, port = self.superlink.rpartition(":")
        tls = ["--ssl-ca-certfile", "ca.crt", "--ssl-certfile", "server.pem", "--ssl-keyfile", "server.key"]
        tls = [part if part.startswith("--") else str(server / part) for part in tls]
        command = [script("flower-superlink"), "--host", host, "--port", port, *tls, "--enable-supernode-auth"]
        command += ["--database", str(server / "state.db"), "--disable-runtime-dependency-installation"]
        number = self.processes.start("superlink", command, server / "flower")
        wait_for_server(self.superlink, self.certificates, 300, self.processes)
        return number

    def start_site(self, name: str) -> int:
        site = self.sites[name]
        command = [sys.executable, "-m", "fedspm", "federation", "site", str(site), "--superlink", self.superlink]
        command += ["--root-certificates", str(self.certificates), "--key", str(site.parent / "key")]
        return self.processes.start(f"site-{name}", command, site.parent / "flower")


@contextmanager
def loopback(
    federation: Federation, config: Config, folder: Path, algorithms: tuple[str, ...] = ()
) -> Iterator[Loopback]:
    """Start a SuperLink and one registered site per client; stop them all at the end."""
    refuse_existing(folder)
    private_folder(folder)
    make_certificates(folder / "server", ["fl.example.org"])  # as docs/deploy.md has it
    algorithm = build_algorithm(config, Task.of_federation(federation))
    with Processes(folder) as processes:
        net = Loopback(folder, processes)
        net.start_superlink()
        connect(folder / "server" / "operator", net.superlink, net.certificates)
        for site in site_configs(federation, algorithm, folder / "sites", "cpu"):
            place = Path(site.rows).parent
            site = site.model_copy(update={"algorithms": algorithms or site.algorithms})  # noqa: PLW2901
            write_atomically(place / "site.toml", tomli_w.dumps(site.model_dump(mode="json", exclude_none=True)))
            public = make_key(place / "key")
            flwr(folder / "server" / "operator", "supernode", "register", str(public), CONNECTION, "--name", site.name)
            net.sites[site.name] = place / "site.toml"
            net.start_site(site.name)
        yield net


def across_sites(config: Config, federation: Federation, **changes: object) -> Config:
    """The configuration of a run whose clients are sites."""
    sites = config.sites.model_dump() | {"names": federation.names} | changes
    return resolve(config.model_dump(exclude_none=True) | {"engine": "flower", "sites": sites})


def run_federation(
    settings: Mapping[str, Any] | Config,
    out: Path | str,
    *,
    federation: Federation | None = None,
    say: Callable[[str], None] = lambda _: None,
) -> Run:
    """Train across processes on this machine, a server and one site per client, with TLS and keys; everything is
    stopped at the end. Returns the run, which lies in `out`/run.

    `settings` are nested tables as in a configuration file; the data that they name is read unless `federation` is
    given. `say` is told every line that the server says.
    """
    config = settings if isinstance(settings, Config) else resolve(settings)
    federation = federation or config.federation()
    folder, config = Path(out), across_sites(config, federation)
    say("making certificates and keys, starting the SuperLink and its sites")
    with loopback(federation, config, folder) as net:
        for name, process in net.processes.running.items():
            say(f"  {name:24} process {process.pid}")
        run = folder / "run"
        run.mkdir()
        write_atomically(run / "config.toml", config.to_toml())
        attempt = launch(run, net.superlink, net.certificates)
        follow(run, attempt, say, net.processes.require_alive)
    say("all processes stopped")
    return Run.open(run)


def script(name: str) -> str:
    return str(Path(sys.executable).parent / name)
