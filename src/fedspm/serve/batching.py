"""Micro-batches: queries that arrive while one batch is computed form the next batch. Nobody waits for a timer."""

import asyncio
import time
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

from fedspm.base.threads import one_core_threads

Question = TypeVar("Question")
Answer = TypeVar("Answer")
FEW, BRIEF = 4, 0.003  # rows, seconds


class Worker:
    """A thread that computes while the event loop serves others. A few rows are computed on the loop itself as long as
    that is brief: with a small network, switching threads would take a good part of the time."""

    def __init__(self, name: str):
        self._thread = one_core_threads(1, name)
        self._brief = False  # until it was seen: the first time may build a network

    async def compute(self, rows: int, work: Callable[[], Answer]) -> Answer:
        def timed() -> Answer:
            began = time.perf_counter()
            answer = work()
            if rows <= FEW:
                self._brief = time.perf_counter() - began < BRIEF
            return answer

        if rows <= FEW and self._brief:
            return timed()
        return await asyncio.get_running_loop().run_in_executor(self._thread, timed)

    def shutdown(self) -> None:
        self._thread.shutdown()


class Batcher(Generic[Question, Answer]):
    """Computes one batch at a time: a question, or several of at most `most` rows. Questions are not split."""

    def __init__(
        self,
        work: Callable[[list[Question]], Awaitable[list[Answer]]],
        rows: Callable[[Question], int],
        most: int,
        seen: Callable[[int], object] = lambda rows: None,
    ):
        self._work = work
        self._rows = rows
        self._most = most
        self._seen = seen
        self._waiting: deque[tuple[Question, asyncio.Future[Answer]]] = deque()
        self._computed: list[tuple[Question, asyncio.Future[Answer]]] = []
        self._task: asyncio.Task[None] | None = None

    async def ask(self, question: Question) -> Answer:
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._waiting.append((question, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return await future

    def abandon(self, error: Exception) -> None:
        """Raise this error now for everybody who waits."""
        for _, future in (*self._computed, *self._waiting):
            if not future.done():
                future.set_exception(error)
        self._waiting.clear()

    async def _drain(self) -> None:
        try:
            while batch := self._next():
                self._computed = batch
                await self._answer(batch)
        finally:
            self._task = None

    def _next(self) -> list[tuple[Question, "asyncio.Future[Answer]"]]:
        batch: list[tuple[Question, asyncio.Future[Answer]]] = []
        rows = 0
        while self._waiting:
            question, future = self._waiting[0]
            if batch and rows + self._rows(question) > self._most:
                break
            self._waiting.popleft()
            if not future.done():  # whoever asked may have given up
                batch.append((question, future))
                rows += self._rows(question)
        if batch:
            self._seen(rows)
        return batch

    async def _answer(self, batch: list[tuple[Question, "asyncio.Future[Answer]"]]) -> None:
        try:
            answers = await self._work([question for question, _ in batch])
        except Exception as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
        else:
            for (_, future), answer in zip(batch, answers, strict=True):
                if not future.done():
                    future.set_result(answer)
