"""`fedspm bench profile`: where the time of a round goes.

Every part is timed without the parts that it calls; what is left is "everything else". CPU seconds of one thread, so
that other work on the machine counts little. One worker, every round with its E-step; then an evaluation and a
checkpoint.
"""

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from fedspm.algorithms import build_algorithm
from fedspm.bench.measure import machine
from fedspm.engines.local import LocalEngine
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.evaluation import evaluate
from fedspm.federated.replies import Mean
from fedspm.federated.task import Task
from fedspm.nn import sgd
from fedspm.nn.encoder import Encoder
from fedspm.nn.sgd import Batches
from fedspm.report.terminal import console
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round


def bench_profile(settings: Mapping[str, Any] | None = None, repeats: int = 3) -> dict[str, Any]:
    """CPU seconds of a round by part, the mean of `repeats` rounds, and those of an evaluation and a checkpoint."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return _profiled(settings or {}, repeats)
    finally:
        torch.set_num_threads(threads)


def _profiled(settings: Mapping[str, Any], repeats: int) -> dict[str, Any]:
    config = resolve(settings, {"em": {"start": "random"}})  # every round has its E-step
    with console.status("reading the data"):
        federation = config.federation()
    algorithm = build_algorithm(config, Task.of_federation(federation))
    parts = Parts()
    with (
        console.status("timing rounds"),
        LocalEngine(federation, seed=0, workers=1, device="cpu") as engine,
    ):
        shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
        with parts.watched():
            began = time.process_time()
            for number in range(1, repeats + 1):
                shared = one_round(algorithm, engine, shared, number)
            total = time.process_time() - began
        parts.seconds["everything else"] = total - sum(parts.seconds.values())
        began = time.process_time()
        evaluate(personalised(algorithm, engine, shared), federation)
        evaluation = time.process_time() - began
        with tempfile.TemporaryDirectory() as folder:
            run, _ = Run.begin(Path(folder) / "run", config, "fedspm bench profile")
            began = time.process_time()
            run.save(Checkpoint(repeats, 0.0, shared, engine.privates), 1)
            checkpoint = time.process_time() - began
    return {
        "algorithm": f"{config.algorithm} {config.variant}",
        "data": config.data.name,
        "rows": sum(federation.counts),
        "machine": machine(),
        "repeats": repeats,
        "cpu_seconds": round(total / repeats, 4),
        "parts": {
            name: round(seconds / repeats, 4)
            for name, seconds in sorted(parts.seconds.items(), key=lambda item: -item[1])
        },
        "evaluation_cpu_seconds": round(evaluation, 4),
        "checkpoint_cpu_seconds": round(checkpoint, 4),
    }


class Parts:
    """CPU seconds by the name of a part; a part that another one calls counts for itself alone."""

    def __init__(self) -> None:
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self._inside: list[float] = []  # seconds of the parts called by each part that is under way
        self._role = ""

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Time the functions that a round is made of, as long as the context lasts."""
        with ExitStack() as stack:
            for each in (
                self._timed(Encoder, "__call__", self._encoder),
                self._timed(torch.autograd, "grad", lambda *_, **__: f"{self._role}, backward"),
                self._timed(sgd, "sgd", "SGD steps"),
                self._timed(Algorithm, "standardise", "standardising"),
                *(self._timed(Mean, name, "averaging") for name in ("__init__", "merge", "result")),
                self._timed(Client, "batches", "gathering batches"),
                self._batches(),
            ):
                stack.enter_context(each)
            yield

    @contextmanager
    def _part(self, name: str) -> Iterator[None]:
        began, self._inside = time.process_time(), [*self._inside, 0.0]
        try:
            yield
        finally:
            took = time.process_time() - began
            self.seconds[name] += took - self._inside.pop()
            if self._inside:
                self._inside[-1] += took

    def _timed(self, owner: Any, attribute: str, name: str | Callable[..., str]) -> AbstractContextManager[object]:
        inner = getattr(owner, attribute)

        def outer(*arguments: Any, **options: Any) -> Any:
            with self._part(name if isinstance(name, str) else name(*arguments, **options)):
                return inner(*arguments, **options)

        return patch.object(owner, attribute, outer)

    def _encoder(self, encoder: Encoder, *_: Any, training: bool = False, **__: Any) -> str:
        if training:
            self._role = encoder.role
        return f"{encoder.role}, forward" if training else f"E-step, {encoder.role}"

    def _batches(self) -> AbstractContextManager[object]:
        inner = Batches.__iter__

        def outer(rows: Batches) -> Iterator[Any]:
            each = inner(rows)
            while True:
                with self._part("gathering batches"):
                    batch = next(each, None)
                if batch is None:
                    return
                yield batch

        return patch.object(Batches, "__iter__", outer)
