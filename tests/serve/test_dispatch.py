"""A node as the router sees it: what it says of itself, whether it would answer, and why not."""

import asyncio
import json
import logging
import time

import httpx
import numpy as np
import pytest
import torch

from commands import PATIENCE
from fedspm.base.errors import FedSPMError
from fedspm.runs.folder import Run
from fedspm.serve import dispatch
from fedspm.serve.app import router_app
from fedspm.serve.bundle import RoutingResult, pack, unpack
from fedspm.serve.dispatch import Dispatcher, Question, RemoteNode
from fedspm.serve.export import export
from fedspm.serve.node import node_app
from fedspm.serve.router import Router
from fedspm.serve.transport import NodeFailed
from serving import service

WELL = (200, b'{"status": "ok", "client": "north", "versions": ["1"], "admitted": true}')
THREE_ROWS = Question("1", torch.zeros(3, 2), {"router": torch.zeros(3, 1, 2)}, np.arange(3))


class Saying:
    """A transport on which the node says one thing after the other, and then the last for ever."""

    def __init__(self, *replies):
        self._replies = list(replies)

    async def send(self, method, url, patience, content=b"", headers=None):
        reply = self._replies.pop(0) if len(self._replies) > 1 else self._replies[0]
        if isinstance(reply, Exception):
            raise reply
        return reply

    async def close(self): ...


def north(*replies):
    return RemoteNode("north", "http://north", Saying(*replies), PATIENCE)


@pytest.mark.parametrize("answered", [1, 2, 4, 0])
def test_a_node_that_answers_another_number_of_rows_has_failed(answered):
    """One row would fit into the places of three."""
    node = north((200, pack({"probabilities": torch.full((answered, 4), 0.25)})))
    assert asyncio.run(node.ask(THREE_ROWS, PATIENCE)) is None
    assert node.trouble == "the node answered something else than the probabilities of these rows"


class Slow:
    """A node that takes its time, and answers as many rows as it was asked."""

    def __init__(self, seconds):
        self.seconds, self.sizes = seconds, []

    async def send(self, method, url, patience, content=b"", headers=None):
        await asyncio.sleep(self.seconds)
        self.sizes.append(len(unpack(content)["x"]))
        return 200, pack({"probabilities": torch.full((self.sizes[-1], 4), 0.25)})

    async def close(self): ...


def test_a_query_in_a_hurry_takes_no_node_away_from_others():
    node = RemoteNode("north", "http://north", Slow(1.0), PATIENCE)

    async def act():
        return await asyncio.gather(node.ask(THREE_ROWS, PATIENCE), node.ask(THREE_ROWS, 0.05))

    patient, hurried = asyncio.run(act())
    assert patient.shape == (3, 4)
    assert hurried is None
    assert node.up


def test_a_node_that_is_silent_for_as_long_as_it_may_be_is_down():
    node = RemoteNode("north", "http://north", Slow(PATIENCE), 0.2)
    assert asyncio.run(node.ask(THREE_ROWS, 0.19)) is None
    assert not node.up
    assert node.trouble == "no answer within 0.19 seconds"


def test_many_rows_for_one_client_go_in_pieces_that_a_node_takes():
    slow = Slow(0)
    x = torch.zeros(600, 2)
    result = RoutingResult({"router": torch.zeros(600, 1, 2)}, torch.ones(600, 1), torch.ones(600, 1, 1), None)
    nodes = Dispatcher([RemoteNode("north", "http://north", slow, PATIENCE)])
    found = asyncio.run(nodes.best("1", x, result, time.monotonic() + PATIENCE))
    assert found.probabilities.shape == (600, 4)
    assert slow.sizes == [256, 256, 88]


@pytest.mark.parametrize(
    ("reply", "trouble"),
    [
        ((200, b"[]"), "http://north does not answer as a node does"),
        ((200, b"null"), "http://north does not answer as a node does"),
        ((200, b"<html>"), "http://north does not answer as a node does"),
        ((200, b"[" * 100_000), "http://north does not answer as a node does"),
        ((200, b'{"client": "north", "versions": 7}'), "http://north does not answer as a node does"),
        ((200, b'{"client": "south", "versions": []}'), "http://north is not the node of north"),
        ((404, b"[]"), "the node refused (404): no reason given"),
        (RuntimeError("odd"), "the probe failed: RuntimeError('odd')"),
    ],
)
def test_a_node_that_says_something_odd_is_down_and_comes_back(reply, trouble, monkeypatch):
    monkeypatch.setattr(dispatch, "PROBE_DOWN_EVERY", 0.01)
    node = north(reply, reply, WELL)

    async def act():
        await node.probe()
        seen = node.up, node.trouble
        watching = asyncio.create_task(node.watch())
        while not node.up:
            assert not watching.done()
            await asyncio.sleep(0.01)
        watching.cancel()
        return seen

    assert asyncio.run(asyncio.wait_for(act(), PATIENCE)) == (False, trouble)
    assert (node.trouble, node.versions) == (None, ["1"])


def test_why_a_node_refused_is_said_on_one_short_line(caplog):
    node = north((422, json.dumps({"error": "the rows\ndo not fit " + "x" * 1000}).encode()))
    assert asyncio.run(node.ask(THREE_ROWS, PATIENCE)) is None
    assert node.trouble.startswith("the node refused (422): the rows do not fit xxx")
    assert len(node.trouble) < 300
    assert node.trouble in caplog.text


def test_a_wrong_secret_is_seen_before_a_query_fails(served, caplog):
    async def act():
        async with service(served[2]) as (http, router, board):
            right, board.secret = board.secret, "another secret"
            for _ in range(3):  # no probe between queries that fail may find the nodes well
                await asyncio.gather(*(node.probe() for node in router.dispatcher.nodes))
                assert (await http.get("/readyz")).status_code == 503
                assert (await http.post("/v1/predict", json={"x": [0.0] * 6})).status_code == 503
            seen = (await http.get("/readyz")).status_code, (await http.get("/v1/clients")).json()
            board.secret = right
            await asyncio.gather(*(node.probe() for node in router.dispatcher.nodes))
            return *seen, (await http.get("/readyz")).status_code

    with caplog.at_level(logging.WARNING, "fedspm.serve"):
        ready, clients, ready_again = asyncio.run(act())
    assert (ready, ready_again) == (503, 200)
    assert not any(client["up"] for client in clients)
    assert caplog.text.count("start both with the same --secret") == len(clients)
    assert caplog.text.count("is back") == len(clients)


class Refusing:
    """Nobody is there yet, which takes a moment to find out."""

    async def send(self, method, url, patience, content=b"", headers=None):
        await asyncio.sleep(0.2)
        raise NodeFailed("connection refused")

    async def close(self): ...


def test_a_router_that_has_just_started_calls_no_node_up_that_is_not(served):
    """`serve all` starts its nodes and the router at the same time; whoever waits for /readyz waits for the nodes."""
    router = Router(
        served[2] / "router", dict.fromkeys(("north", "south", "west"), "http://here"), transport=Refusing()
    )
    app = router_app(router)

    async def act():
        caller = httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://here")
        async with router.lifespan(app), caller as http:
            return (await http.get("/readyz")).status_code, (await http.get("/v1/clients")).json()

    ready, clients = asyncio.run(act())
    assert ready == 503
    assert [client["trouble"] for client in clients] == ["connection refused"] * 3


def test_what_cannot_be_built_does_not_start(served, tmp_path):
    """Its encoder is not on this machine: ready, it would fail every query."""
    bundle = tmp_path / "bundle"
    export(Run.open(served[1]), bundle)
    for card in (bundle / "clients" / "north" / "node.json", bundle / "router" / "router.json"):
        content = json.loads(card.read_text())
        for role in ("predictor", "router"):
            content["settings"][role]["encoder"] = "not_on_this_machine:make"
        card.write_text(json.dumps(content))
    with pytest.raises(FedSPMError, match="'not_on_this_machine:make' cannot be imported"):
        node_app(bundle / "clients" / "north", allowed=["not_on_this_machine:make"])
    with pytest.raises(FedSPMError, match="'not_on_this_machine:make' cannot be imported"):
        nodes = dict.fromkeys(("north", "south", "west"), "http://127.0.0.1:1")
        Router(bundle / "router", nodes, allowed=["not_on_this_machine:make"])
