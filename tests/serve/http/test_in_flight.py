"""Bodies that arrive: how many, how large together, how long."""

import asyncio

import pytest

from fedspm.serve.http import in_flight
from fedspm.serve.http.in_flight import BodiesInFlight
from fedspm.serve.http.limits import Limits
from fedspm.serve.http.problem import HTTPProblem
from serving import ask


async def arrives(bodies, sizes, until, seconds=60.0):
    async with bodies.reading(seconds) as body:
        for size in sizes:
            body.took(size)
            await asyncio.sleep(0)
        await until.wait()
    return "read"


async def outcomes(bodies, *arrivals):
    until = asyncio.Event()
    tasks = [asyncio.create_task(arrives(bodies, sizes, until)) for sizes in arrivals]
    await asyncio.sleep(0.05)
    until.set()
    found = await asyncio.gather(*tasks, return_exceptions=True)
    return [each if isinstance(each, str) else each.status for each in found]


def test_the_oldest_is_given_up_for_newer_ones_when_their_bytes_are_too_many():
    bodies = BodiesInFlight(100)  # 800 bytes together
    assert asyncio.run(outcomes(bodies, *[[50, 40]] * 10)) == [503, 503] + ["read"] * 8
    assert asyncio.run(outcomes(bodies, *[[50, 40]] * 8)) == ["read"] * 8  # nothing is counted for ever


def test_nor_are_very_many_taken_however_small(monkeypatch):
    monkeypatch.setattr(in_flight, "MANY", 3)
    assert asyncio.run(outcomes(BodiesInFlight(100), *[[1]] * 5)) == [503, 503, "read", "read", "read"]


def test_a_body_that_does_not_come_is_not_waited_for():
    async def late():
        with pytest.raises(HTTPProblem, match=r"did not arrive within 0\.01 seconds") as caught:
            await arrives(BodiesInFlight(100), [], asyncio.Event(), 0.01)
        return caught.value.status

    assert asyncio.run(late()) == 408


def test_reading_counts_in_the_deadline(served):
    """A body that takes longer than an answer may is refused, not answered late."""

    async def slowly():
        yield b'{"x": ['
        await asyncio.sleep(600)

    async def act(http, router, board):
        return await http.post("/v1/predict", content=slowly(), headers={"content-type": "application/json"})

    reply = ask(served[2], act, deadline=0.2)
    assert (reply.status_code, reply.json()["error"]) == (408, "the body did not arrive within 0.2 seconds")


def test_json_has_a_limit_of_its_own(served):
    async def act(http, router, board):
        return await http.post("/v1/predict", json={"x": [[0.5] * 6] * 100})

    reply = ask(served[2], act, limits=Limits(json=1000))
    assert reply.status_code == 413
    assert "JSON may have 1000 bytes; send fewer rows, or tensors" in reply.json()["error"]
