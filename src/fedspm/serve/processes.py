"""Processes: one server, or a router with all its nodes on this machine, restarted when they die."""

import logging
import multiprocessing
import os
import secrets
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path

import torch
import uvicorn
from fastapi import FastAPI

from fedspm.core.process import keep_freed_memory
from fedspm.errors import FedSPMError
from fedspm.ports import free_port
from fedspm.serve.bundle import load_router
from fedspm.serve.guard import Listen
from fedspm.serve.node import node_app

DRAIN = 30  # seconds that requests have to end when a process is told to stop
LOOK_EVERY = 1.0  # seconds until a stop is noticed


def serve(app: FastAPI, listen: Listen) -> None:
    """Answer until SIGINT or SIGTERM, then finish what has begun."""
    server_of(app, listen).run()


def server_of(app: FastAPI, listen: Listen) -> uvicorn.Server:
    keep_freed_memory()
    torch.set_num_threads(1)  # of the event loop, which computes a few rows itself; more have a worker
    config = uvicorn.Config(
        app,
        host=listen.host,
        port=listen.port,
        ssl_certfile=listen.certificate,
        ssl_keyfile=listen.key,
        log_level="warning",
        access_log=False,
        server_header=False,
        timeout_keep_alive=75,
        timeout_graceful_shutdown=DRAIN,
    )
    return uvicorn.Server(config)


def log_to_stderr(level: int = logging.INFO) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))
    log = logging.getLogger("fedspm.serve")
    log.addHandler(handler)
    log.setLevel(level)


# -- everything on this machine ----------------------------------------------------------------------------------------


@contextmanager
def nodes_of(bundle: Path) -> Iterator[tuple[dict[str, str], str]]:
    """A process a client on loopback: their addresses and the secret that they share with the router."""
    card = load_router(bundle / "router").card
    if not card.folders:
        raise FedSPMError(
            "this run was trained across sites, and what their nodes need is there; see `fedspm export --help`, then "
            "start `fedspm serve node` at every site and `fedspm serve router` here"
        )
    secret = secrets.token_urlsafe(32)
    crew = [Keeper(bundle / "clients" / folder, free_port(), secret) for folder in card.folders]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that what follows `yield` runs

    def keep() -> None:
        while not stop.is_set():
            wait([keeper.sentinel for keeper in crew], LOOK_EVERY)  # until one dies
            for keeper in crew:
                keeper.revive()

    try:
        for keeper in crew:
            keeper.start()
        threading.Thread(target=keep, daemon=True).start()
        yield {name: f"http://127.0.0.1:{keeper.port}" for name, keeper in zip(card.names, crew, strict=True)}, secret
    finally:
        stop.set()
        for keeper in crew:
            keeper.stop()


class Keeper:
    """Keeps the process of one node alive. Processes come from a server that has imported PyTorch once for all."""

    def __init__(self, folder: Path, port: int, secret: str):
        self.port = port
        self._arguments = (folder, port, secret)
        self._lock = threading.Lock()
        self._stopped = False
        self._process: ForkServerProcess | None = None
        self._alive: Connection | None = None

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["fedspm.serve.node"])
        watched, self._alive = context.Pipe(duplex=False)
        self._process = context.Process(target=_node, args=(*self._arguments, watched), daemon=True)
        self._process.start()
        watched.close()

    @property
    def sentinel(self) -> int:
        """Becomes readable when the process ends."""
        assert self._process
        return self._process.sentinel

    def revive(self) -> None:
        with self._lock:
            if not self._stopped and self._process and not self._process.is_alive():
                self.start()

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
        if self._process:
            self._process.terminate()
            self._process.join(DRAIN)


def _node(folder: Path, port: int, secret: str, watched: Connection) -> None:
    """The process of a node. It ends when its parent does, however that ends."""
    os.setsid()  # Ctrl-C is for the router, which drains first
    log_to_stderr(logging.WARNING)
    server = server_of(node_app(folder, secret), Listen(port=port))

    def follow() -> None:
        try:
            watched.recv_bytes()
        except EOFError:
            server.should_exit = True

    threading.Thread(target=follow, daemon=True).start()
    server.run()
