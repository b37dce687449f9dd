"""Ten thousand malformed or hostile requests: no 5xx, a sentence for each refusal, and memory that stays flat."""

import asyncio
import collections

import aiohttp
import pytest

from fire import ALICE, MALLORY, asked, resident
from hostile_requests import Hostile, said

REQUESTS = 10_000
SETTLED = 3_000  # requests after which the service has seen everything once
CALLERS = 16
LENIENT = {405, 404}  # HEAD has no body, so no sentence


async def attack(service, requests, seed):
    hostile = Hostile(service.image, MALLORY, seed)
    seen = collections.defaultdict(collections.Counter)
    silent, memory, left = [], {}, requests

    async def one(session, make):
        request = make()
        path, method = request.pop("path"), request["method"]
        try:
            async with session.request(url=service.url + path, **request) as reply:
                text = await reply.read()
                seen[make.__name__][reply.status] += 1
                if reply.status >= 400 and method != "HEAD" and len(said(text)) < 10:
                    silent.append(f"{make.__name__} {reply.status} {text[:100]!r}")
        except (aiohttp.ClientError, ValueError, KeyError) as error:  # the connection was closed, or aiohttp refuses
            seen[make.__name__][0] += 1
            if not isinstance(error, aiohttp.ClientConnectionError | ValueError):
                silent.append(f"{make.__name__} {error!r}")

    async def caller(session):
        nonlocal left
        while left > 0:
            left -= 1
            if requests - left == SETTLED:
                memory["settled"] = resident(service.process.pid)
            await one(session, hostile.oversized if left % 500 == 0 else hostile.kinds[left % len(hostile.kinds)])

    async with aiohttp.ClientSession() as session:
        await asyncio.gather(*(caller(session) for _ in range(CALLERS)))
    memory["end"] = resident(service.process.pid)
    return seen, silent, memory


@pytest.mark.long
def test_ten_thousand_hostile_requests(service):
    seen, silent, memory = asyncio.run(attack(service, REQUESTS, seed=29))
    everything = sum(seen.values(), collections.Counter())
    for kind, statuses in seen.items():
        print(f"{kind:12} {dict(sorted(statuses.items()))}")
    print(memory, "answered:", everything[200])
    assert sum(everything.values()) >= REQUESTS
    wrong = {status for status in everything if status >= 500}
    assert not wrong, {kind: dict(statuses) for kind, statuses in seen.items() if wrong & statuses.keys()}
    assert not silent, silent[:5]
    assert memory["end"] < 1.15 * memory["settled"] + 30
    asked(service.port, service.image, ALICE, 0, least=3)
    assert "failed" not in service.log.read_text()  # nothing unforeseen was raised
