"""Flower's simulation: every client in a worker process of Ray on this machine, with messages in between."""

import logging
import os
import time
import warnings
from collections.abc import Callable
from contextlib import chdir
from functools import cache, partial
from pathlib import Path
from typing import TypeVar

import torch
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from fedspm.base.errors import FedSPMError
from fedspm.base.threads import cores, keep_freed_memory
from fedspm.data.federation import Federation
from fedspm.engines.flower.contract import SiteConfig
from fedspm.engines.flower.environment import FLOWER, RAY, be_quiet
from fedspm.engines.flower.handshake import introduce
from fedspm.engines.flower.loopback import NO_SECRET, LoopbackEngine, site_configs
from fedspm.engines.flower.server import client_app
from fedspm.engines.flower.site import Site
from fedspm.engines.flower.transport import Post, Waiting
from fedspm.federated.algorithm import Algorithm

Result = TypeVar("Result")


def simulate(
    federation: Federation,
    algorithm: Algorithm,
    folder: Path,
    run: str,
    work: Callable[[LoopbackEngine], Result],
    *,
    wait: float = 600.0,
    min_clients: int = 1,
    workers: int | str = "auto",
    device: str = "auto",
    say: Callable[[str], None] = lambda line: None,
) -> Result:
    """`work` with an engine whose sites are Ray's; their rows and private states are under `folder`."""
    be_quiet(FLOWER | RAY)
    run_simulation = _flower()
    waiting = Waiting(wait, min_clients)
    sites = site_configs(federation, algorithm, folder, device)
    outcome: list[Result] = []
    failures: list[BaseException] = []
    server = ServerApp()

    @server.main()
    def main(grid: Grid, context: Context) -> None:
        threads = torch.get_num_threads()
        torch.set_num_threads(1)  # the server's own arithmetic too: its bits must not depend on the machine's cores
        try:
            post = Post(grid, waiting)
            while len(online := post.online()) < len(sites):  # Flower registers them while this thread starts
                time.sleep(0.05)
            said: list[str] = []
            nodes = {name: site.node for name, site in introduce(post, online, waiting.seconds, said.append)}
            if len(nodes) < len(sites):
                raise FedSPMError(f"Flower's workers do not answer: {said[0] if said else 'no reason given'}")
            outcome.append(work(LoopbackEngine(post, algorithm, federation, run, sites, nodes, say)))
        except BaseException as error:  # Flower would log it and go on; the caller wants it
            failures.append(error)
        finally:
            torch.set_num_threads(threads)

    count = cores() if workers == "auto" else int(workers)
    resources = {"num_cpus": 1.0, "num_gpus": 0.0 if device == "cpu" or not torch.cuda.is_available() else 1 / count}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        _start_ray(count, folder)
        run_simulation(
            server_app=server,
            client_app=client_app(partial(_site_here, tuple(sites), os.getcwd())),
            num_supernodes=len(sites),
            backend_config={"client_resources": resources},
        )
    if failures:
        raise failures[0]
    if not outcome:
        raise FedSPMError("Flower's simulation ended before the training did; look into its log")
    return outcome[0]


def _flower() -> Callable[..., None]:
    try:
        import ray  # noqa: F401
        from flwr.simulation import run_simulation
    except ImportError as error:
        raise FedSPMError("Flower's simulation is not installed; pip install 'fedspm[flower]'") from error
    logging.getLogger("flwr").setLevel(logging.ERROR)
    return run_simulation


def _start_ray(workers: int, folder: Path) -> None:
    """Before Flower does, which takes Ray as it finds it and stops it at the end.

    Ray lets its workers look for modules where it was started, before everywhere else. Nothing in the working directory
    is to be imported, so it is started in a folder of our own.
    """
    import ray

    with chdir(folder):
        ray.init(num_cpus=workers, log_to_driver=False, include_dashboard=False, logging_level=logging.ERROR)


def _site_here(sites: tuple[SiteConfig, ...], home: str, context: Context) -> Site:
    """In a worker: the site of the virtual node that the message is for. Encoders that the user named may lie in the
    working directory of the command, `home`."""
    return _made(sites[int(context.node_config["partition-id"])], home)


@cache
def _made(config: SiteConfig, home: str) -> Site:
    os.chdir(home)
    keep_freed_memory()
    return Site(config, NO_SECRET)
