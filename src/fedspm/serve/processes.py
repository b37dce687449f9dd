"""Processes: one server, or all nodes of a router on this machine, which are started again when they die."""

import logging
import multiprocessing
import os
import secrets
import signal
import sys
import threading
import time
import warnings
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from multiprocessing import forkserver
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI

from fedspm.base.errors import FedSPMError
from fedspm.base.ports import free_port
from fedspm.base.printable import printable
from fedspm.base.threads import keep_freed_memory
from fedspm.serve.bundle import load_router
from fedspm.serve.http.connections import guarded_protocol
from fedspm.serve.http.hosts import KnownHosts
from fedspm.serve.http.listen import Listen
from fedspm.serve.node import node_app

DRAIN = 30  # seconds that requests have to end when a process is told to stop
LOOK_EVERY = 1.0  # seconds until a stop is noticed, or that a pause is over
STEADY = 60.0  # seconds after which a node that ends was not broken from the start
LONGEST_PAUSE = 60.0  # seconds before a node that ends soon is started again
log = logging.getLogger("fedspm.serve")


def serve(app: FastAPI, listen: Listen) -> None:
    """Answer until SIGINT or SIGTERM, then finish what has begun."""
    make_server(app, listen).run()


def make_server(app: FastAPI, listen: Listen) -> uvicorn.Server:
    """A uvicorn server that refuses unknown hosts and origins before the app sees the request."""
    keep_freed_memory()
    warnings.filterwarnings("ignore", module="PIL")  # a line in the log for every odd tag of a stranger's image
    torch.set_num_threads(1)  # of the event loop, which computes a few rows itself; more have a worker
    config = uvicorn.Config(
        KnownHosts(app, listen),
        host=listen.host,
        port=listen.port,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
        http=guarded_protocol(),
        loop="fedspm.serve.http.connections:tls_event_loop" if listen.certificate else "auto",
        log_level="error",  # a warning per malformed request would let strangers fill the disk
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=DRAIN,
    )
    return uvicorn.Server(config)


class OneLine(logging.Formatter):
    """A line per record, whatever a client or a file is called."""

    def format(self, record: logging.LogRecord) -> str:
        return printable(super().format(record))


def log_to_stderr(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s %(message)s"))
    log.addHandler(handler)
    log.setLevel(level)


# -- everything on this machine ----------------------------------------------------------------------------------------


@contextmanager
def local_nodes(bundle: Path, allowed: Collection[str] = ()) -> Iterator[tuple[dict[str, str], str]]:
    """Run one node per client on loopback, each in its own process. Yields their addresses and the secret that they
    share with the router."""
    card = load_router(bundle / "router", allowed).card
    if not card.folders:
        raise FedSPMError(
            "this run was trained across sites, and what their nodes need is there; see `fedspm export --help`, then "
            "start `fedspm serve node` at every site and `fedspm serve router` here"
        )
    secret = secrets.token_urlsafe(32)
    multiprocessing.get_context("forkserver").set_forkserver_preload(["fedspm.serve.node"])
    supervisors = [NodeSupervisor(bundle / "clients" / folder, free_port(), secret, allowed) for folder in card.folders]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # which the server of processes inherits: who stops a whole group of
    forkserver.ensure_running()  # processes means the router, and nodes live until it has finished what has begun
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that what follows `yield` runs

    def keep() -> None:
        while not stop.is_set():
            wait([each.sentinel for each in supervisors if each.running], LOOK_EVERY)  # until one dies
            for supervisor in supervisors:
                supervisor.revive()

    try:
        for supervisor in supervisors:
            supervisor.start()
        threading.Thread(target=keep, daemon=True).start()
        addresses = [f"http://127.0.0.1:{supervisor.port}" for supervisor in supervisors]
        yield dict(zip(card.names, addresses, strict=True)), secret
    finally:
        stop.set()
        for supervisor in supervisors:
            supervisor.stop()


def next_pause(pause: float, lasted: float) -> float:
    """Seconds until a process that lasted so long is started again: none, or 1, 2, 4 … if it keeps ending soon."""
    return 0.0 if lasted >= STEADY else min(max(1.0, 2 * pause), LONGEST_PAUSE)


class NodeSupervisor:
    """Keeps the process of one node alive. Processes come from a server that has imported PyTorch once for all."""

    def __init__(self, folder: Path, port: int, secret: str, allowed: Collection[str] = ()):
        self.port = port
        self._arguments = (folder, port, secret, tuple(allowed))
        self._lock = threading.Lock()
        self._stopped = False
        self._process: ForkServerProcess | None = None
        self._alive: Connection | None = None
        self._began = self._pause = 0.0
        self._due: float | None = None  # when it is started again, once it was seen to have ended

    def start(self) -> None:
        self._began, self._due = time.monotonic(), None
        context = multiprocessing.get_context("forkserver")
        watched, self._alive = context.Pipe(duplex=False)
        process = context.Process(target=_node, args=(*self._arguments, watched), daemon=True)
        process.start()
        self._process = process
        watched.close()

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.is_alive()

    @property
    def sentinel(self) -> int:
        """Becomes readable when the process ends."""
        assert self._process
        return self._process.sentinel

    def revive(self) -> None:
        """Start it again if it has ended, after a pause if it ended soon."""
        with self._lock:
            if self._stopped or self.running:
                return
            now = time.monotonic()
            if self._due is None:
                self._pause = next_pause(self._pause, now - self._began)
                self._due = now + self._pause
                log.warning("the node in %s has ended; it is started again in %g s", self._arguments[0], self._pause)
            if now >= self._due:
                try:
                    self.start()
                except OSError as error:  # no process, memory or file is to be had now
                    log.error("the node in %s cannot be started: %s", self._arguments[0], error)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        if self._process:
            self._process.terminate()
            self._process.join(DRAIN)


def _node(folder: Path, port: int, secret: str, allowed: Collection[str], watched: Connection) -> None:
    """The process of a node. It ends when its parent does, however that ends."""
    os.setsid()  # Ctrl-C is for the router, which drains first
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    log_to_stderr(logging.WARNING)
    try:
        server = make_server(node_app(folder, secret, allowed), Listen(port=port))
    except FedSPMError as error:
        log.error("the node in %s does not start: %s", folder, error)
        sys.exit(1)

    def follow() -> None:
        try:
            watched.recv_bytes()
        except EOFError:
            server.should_exit = True

    threading.Thread(target=follow, daemon=True).start()
    server.run()
