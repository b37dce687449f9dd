"""Micro-batches: whatever comes in while one batch is computed is the next batch. Nobody waits for a timer."""

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Generic, TypeVar

Question = TypeVar("Question")
Answer = TypeVar("Answer")
FEW = 4  # rows


async def computed(worker: Executor, rows: int, work: Callable[[], Answer]) -> Answer:
    """By the worker, so that others are served meanwhile. A few rows here and now: that takes hardly longer than two
    threads need to wake each other."""
    return work() if rows <= FEW else await asyncio.get_running_loop().run_in_executor(worker, work)


class Batcher(Generic[Question, Answer]):
    """One batch at a time, of at most `most` rows or of one question; the rows of a question stay together."""

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
        """Whoever waits gets this error now."""
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
