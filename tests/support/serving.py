"""Bundles that are made in a second, and a router and its nodes in one process, without sockets."""

import asyncio
from contextlib import asynccontextmanager

import httpx
import numpy as np
import pytest

from fedspm import FederatedClassifier, Federation
from fedspm.runs.folder import Run
from fedspm.serve.app import router_app
from fedspm.serve.bundle import load_router
from fedspm.serve.export import export
from fedspm.serve.node import node_app
from fedspm.serve.router import Router
from fedspm.serve.transport import NodeFailed


def trained(federation, path, algorithm="fedspm", rounds=3, **settings):
    block = {"encoder": "mlp", "dimension": 4, "batch_size": 32, "steps": 3}
    options = {f"{role}.{key}": value for role in ("predictor", "router") for key, value in block.items()}
    model = FederatedClassifier(algorithm, components=2, rounds=rounds, workers=1, settings=options | settings)
    model.fit(federation).save(path)
    return model


@pytest.fixture(scope="session")
def served(vectors, tmp_path_factory):
    """(model, run folder, bundle) of three clients with rows of six numbers."""
    place = tmp_path_factory.mktemp("served")
    model = trained(vectors, place / "run")
    export(Run.open(place / "run"), place / "bundle")
    return model, place / "run", place / "bundle"


@pytest.fixture(scope="session")
def pictured(tmp_path_factory):
    """(model, bundle) of two clients with images of 3 × 8 × 8."""
    place = tmp_path_factory.mktemp("pictured")
    random = np.random.default_rng(0)
    rows = {name: (random.random((40, 3, 8, 8)).astype(np.float32), random.integers(0, 2, 40)) for name in "ab"}
    model = trained(Federation.from_arrays(rows), place / "run", rounds=1)
    export(Run.open(place / "run"), place / "bundle")
    return model, place / "bundle"


class Switchboard:
    """Nodes by host name. One may be dead, or slow; `asked` counts what reached each."""

    def __init__(self, apps, secret):
        self.apps, self.secret, self._callers = {}, secret, {}
        for name, app in apps.items():
            self.add(name, app)
        self.dead, self.slow, self.asked = set(), {}, []

    def add(self, name, app):
        self.apps[name] = app
        self._callers[name] = httpx.AsyncClient(transport=httpx.ASGITransport(app=app))

    async def send(self, method, url, patience, content=b"", headers=None):
        name = httpx.URL(url).host
        if method == "POST":
            self.asked.append(name)
        if name in self.dead:
            raise NodeFailed("connection refused")
        await asyncio.sleep(self.slow.get(name, 0))
        shown = {"authorization": f"Bearer {self.secret}", **(headers or {})}
        reply = await self._callers[name].request(method, url, content=content, headers=shown)
        return reply.status_code, reply.content

    async def close(self):
        pass


@asynccontextmanager
async def service(bundle, secret="a secret that is long enough", nodes=None, **options):
    """A caller of a router whose nodes are behind a switchboard."""
    card = load_router(bundle / "router").card
    apps = {
        name: node_app(bundle / "clients" / folder, secret)
        for name, folder in zip(card.names, card.folders, strict=True)
    }
    board = Switchboard(apps, secret)
    nodes = nodes or {name: f"http://{name}" for name in card.names}
    router = Router(bundle / "router", nodes, transport=board, **options)
    app = router_app(router)
    async with (
        router.lifespan(app),
        httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here") as http,
    ):
        yield http, router, board


def ask(bundle, act, **options):
    """What `act(http, router, board)` answers, with a service of its own."""

    async def run():
        async with service(bundle, **options) as (http, router, board):
            return await act(http, router, board)

    return asyncio.run(run())
