"""How much and how often a caller may ask."""

import time
from collections.abc import Callable
from dataclasses import dataclass

from starlette.requests import ClientDisconnect, Request

from fedspm.serve.http.problem import HTTPProblem

REMEMBERED_CALLERS = 10_000  # callers whose rate is remembered


@dataclass(frozen=True)
class Limits:
    body: int = 16 * 2**20  # bytes of a request
    json: int = 2 * 2**20  # bytes of a request in JSON: nothing else runs while numbers are parsed
    batch: int = 512  # rows of a request
    pixels: int = 16_000_000  # of all images of a request together, before they are scaled down
    rate: float = 1000.0  # requests per second and caller
    waiting: int = 8192  # rows that may wait for the router


class RateLimiter:
    """One token bucket per caller: it holds one second's requests and fills up again at `rate` per second."""

    def __init__(self, rate: float, clock: Callable[[], float] = time.monotonic):
        self._rate = rate
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # caller → (requests left, when)

    def admit(self, caller: str) -> None:
        """Count one request of this caller, or refuse it."""
        now, most = self._clock(), max(1.0, self._rate)
        left, since = self._buckets.pop(caller, (most, now))
        left = min(most, left + (now - since) * self._rate)
        if len(self._buckets) >= REMEMBERED_CALLERS:  # the one that was silent longest is forgotten
            self._buckets.pop(next(iter(self._buckets)))
        self._buckets[caller] = (max(0.0, left - 1), now)
        if left < 1:
            raise HTTPProblem(429, f"more than {self._rate:g} requests a second; try again later", {"retry-after": "1"})


async def read_body(request: Request, most: int, took: Callable[[int], object] = lambda size: None) -> bytes:
    """The body, or a refusal as soon as it is clear that it is too long. `took` is told what has arrived."""
    too_long = HTTPProblem(413, f"the body is longer than {most} bytes; send fewer or smaller images")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise too_long
    parts, size = [], 0
    try:
        async for part in request.stream():
            size += len(part)
            if size > most:
                raise too_long
            parts.append(part)
            took(len(part))
    except ClientDisconnect as error:
        raise HTTPProblem(400, "the caller went away before the body had arrived") from error
    return b"".join(parts)
