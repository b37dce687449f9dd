"""Where the time of a round goes: `python benchmarks/where_time_goes.py [ROUNDS] [KEY=VALUE …]`.

Every part is timed without the parts it calls; what is left is "everything else". CPU seconds of one thread, so that
other work on the machine counts little. Fashion-MNIST, FedSPM 1×, one worker, every round with its E-step; then an
evaluation and a checkpoint.
"""

import sys
import tempfile
import time
from collections import defaultdict
from contextlib import ExitStack, contextmanager
from pathlib import Path
from unittest.mock import patch

import torch

from fedspm.algorithms import build_algorithm
from fedspm.base.layers import parse_assignments
from fedspm.engines.local import LocalEngine
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.evaluation import evaluate
from fedspm.federated.replies import Mean
from fedspm.federated.task import Task
from fedspm.nn import sgd
from fedspm.nn.encoder import Encoder
from fedspm.nn.sgd import Batches
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import resolve
from fedspm.runs.folder import Run
from fedspm.training.evaluation import personalised
from fedspm.training.loop import begin, one_round


class Parts:
    def __init__(self):
        self.seconds = defaultdict(float)
        self._stack = []
        self._role = ""

    @contextmanager
    def part(self, name):
        began, self._stack = time.process_time(), [*self._stack, 0.0]
        try:
            yield
        finally:
            took = time.process_time() - began
            self.seconds[name] += took - self._stack.pop()
            if self._stack:
                self._stack[-1] += took

    def timed(self, owner, attribute, name):
        inner = getattr(owner, attribute)

        def outer(*arguments, **options):
            with self.part(name if isinstance(name, str) else name(*arguments, **options)):
                return inner(*arguments, **options)

        return patch.object(owner, attribute, outer)

    def encoder(self, encoder, tensors, x, *, training=False, only=None):
        if training:
            self._role = encoder.role
        return f"{encoder.role}, forward" if training else f"E-step, {encoder.role}"

    def batches(self):
        inner = Batches.__iter__

        def outer(rows):
            each = inner(rows)
            while True:
                with self.part("gathering batches"):
                    batch = next(each, None)
                if batch is None:
                    return
                yield batch

        return patch.object(Batches, "__iter__", outer)


def main(rounds, settings):
    torch.set_num_threads(1)
    config = resolve({"data": {"name": "fashion-mnist"}, "em": {"start": "random"}}, settings)
    federation = config.federation()
    algorithm = build_algorithm(config, Task.of_federation(federation))
    parts = Parts()
    with LocalEngine(federation, seed=0, workers=1, device="cpu") as engine:
        shared = one_round(algorithm, engine, begin(algorithm, engine), 0)
        with ExitStack() as stack:
            for each in (
                parts.timed(Encoder, "__call__", parts.encoder),
                parts.timed(torch.autograd, "grad", lambda *_, **__: f"{parts._role}, backward"),
                parts.timed(sgd, "sgd", "SGD steps"),
                parts.timed(Algorithm, "standardise", "standardising"),
                parts.timed(Mean, "__init__", "averaging"),
                parts.timed(Mean, "merge", "averaging"),
                parts.timed(Mean, "result", "averaging"),
                parts.timed(Client, "batches", "gathering batches"),
                parts.batches(),
            ):
                stack.enter_context(each)
            began = time.process_time()
            for number in range(1, rounds + 1):
                shared = one_round(algorithm, engine, shared, number)
            total = time.process_time() - began
        parts.seconds["everything else"] = total - sum(parts.seconds.values())
        print(f"a round: {total / rounds:.2f} s of CPU\n")
        for name, seconds in sorted(parts.seconds.items(), key=lambda item: -item[1]):
            print(f"| {name} | {seconds / rounds:.3f} | {seconds / total:.1%} |")
        began = time.process_time()
        evaluate(personalised(algorithm, engine, shared), federation)
        print(f"\nevaluation {time.process_time() - began:.2f} s")
        with tempfile.TemporaryDirectory() as folder:
            run, _ = Run.begin(Path(folder) / "run", config, "")
            began = time.process_time()
            run.save(Checkpoint(rounds, 0.0, shared, engine.privates), 1)
            print(f"checkpoint {time.process_time() - began:.3f} s")


if __name__ == "__main__":
    count = [argument for argument in sys.argv[1:] if "=" not in argument]
    main(int(count[0]) if count else 3, parse_assignments([argument for argument in sys.argv[1:] if "=" in argument]))
