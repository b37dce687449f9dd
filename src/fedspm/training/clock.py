"""Seconds of training, without the time that evaluation takes."""

import time
from collections.abc import Iterator
from contextlib import contextmanager


class Clock:
    """Runs from the moment it is made; `seconds` and `done` are the time and the rounds before that."""

    def __init__(self, seconds: float, done: int):
        self._before = self._at_last = seconds
        self._done_at_last = done
        self.start()

    def start(self) -> None:
        self._began = time.perf_counter()

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._before = self.seconds()
        yield
        self.start()

    def seconds(self) -> float:
        return self._before + time.perf_counter() - self._began

    def stop(self, done: int) -> dict[str, float]:
        """Stop after `done` rounds: the seconds so far, and those of one round since the last stop."""
        self._before = self.seconds()
        each = (self._before - self._at_last) / (done - self._done_at_last)
        self._at_last, self._done_at_last = self._before, done
        return {"seconds": round(self._before, 3), "seconds_per_round": round(each, 4)}
