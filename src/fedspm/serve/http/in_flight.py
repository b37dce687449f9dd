"""Bodies on their way to becoming rows: how many, how large together, how long each may take, and who reads them."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fedspm.base.threads import one_core_threads
from fedspm.serve.http.problem import HTTPProblem

Rows = TypeVar("Rows")

MANY = 256  # bodies at a time
LARGE = 8  # of the largest size fit at a time


class Body:
    """One that arrives, or waits to be read."""

    def __init__(self, bodies: "BodiesInFlight"):
        self._bodies = bodies
        self.timeout = asyncio.timeout(None)
        self.size = 0
        self.arrived = self.given_up = False

    def took(self, size: int) -> None:
        """So many more bytes of it have arrived."""
        if not self.given_up:
            self.size += size
            self._bodies.make_room(size)


class BodiesInFlight:
    """Counts bodies and their bytes until they are rows. If there are too many, the one that has taken longest is given
    up: an honest body arrives and is read within milliseconds."""

    def __init__(self, largest: int):
        self._most = LARGE * largest
        self._bodies: dict[Body, None] = {}  # oldest first
        self._size = 0

    @asynccontextmanager
    async def reading(self, seconds: float) -> AsyncIterator[Body]:
        """While a body is read, at most for so many seconds."""
        body = Body(self)
        self._bodies[body] = None
        self.make_room(0)
        try:
            async with body.timeout:
                body.timeout.reschedule(asyncio.get_running_loop().time() + seconds)
                yield body
        except TimeoutError as error:
            raise _too_long(body, seconds) from error
        finally:
            if self._bodies.pop(body, body) is None:
                self._size -= body.size

    def make_room(self, size: int) -> None:
        self._size += size
        while len(self._bodies) > MANY or self._size > self._most:
            oldest = next(iter(self._bodies))
            del self._bodies[oldest]
            self._size -= oldest.size
            oldest.given_up = True
            if not oldest.timeout.expired():
                oldest.timeout.reschedule(asyncio.get_running_loop().time())


def _too_long(body: Body, seconds: float) -> HTTPProblem:
    busy = {"retry-after": "1"}
    if body.given_up:
        return HTTPProblem(503, "more bodies arrive than there is room for, and this one has taken longest", busy)
    if body.arrived:
        return HTTPProblem(503, f"the body could not be read within {seconds:.3g} seconds; try again later", busy)
    return HTTPProblem(408, f"the body did not arrive within {seconds:.3g} seconds")


class Readers:
    """A thread for what is read in milliseconds, and another for what takes longer: an image need not wait until eight
    others of sixteen million pixels are decoded."""

    def __init__(self, largest: int):
        self.bodies = BodiesInFlight(largest)
        self._quick = one_core_threads(1, "read")
        self._slow = one_core_threads(1, "read-large")

    async def read(self, work: Callable[[], Rows], *, large: bool) -> Rows:
        return await asyncio.get_running_loop().run_in_executor(self._slow if large else self._quick, work)

    def shutdown(self) -> None:
        for threads in (self._quick, self._slow):
            threads.shutdown(cancel_futures=True)
