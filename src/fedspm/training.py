"""A training from its first round to its last: rounds, evaluations, checkpoints, and going on after a stop."""

import time
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from fedspm.config import Config
from fedspm.core.algorithm import Algorithm
from fedspm.core.replies import Tensors
from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.evaluation import Model, evaluate
from fedspm.runs import Checkpoint, Run


@runtime_checkable
class Watcher(Protocol):
    """Somebody who looks on: a progress bar, TensorBoard, a test."""

    def round_done(self, round: int) -> bool:
        """True to stop here, with a checkpoint."""

    def evaluated(self, metrics: dict[str, Any]) -> None: ...


@dataclass
class Outcome:
    model: Model
    round: int


def one_round(algorithm: Algorithm, engine: LocalEngine, shared: Tensors, number: int) -> Tensors:
    """The shared state after round `number`, counted from zero."""
    engine.round = number
    return algorithm.server_round(shared, engine)


def begin(algorithm: Algorithm, engine: LocalEngine) -> Tensors:
    engine.round = 0
    engine.enrol(algorithm)
    return algorithm.start(engine)


def current(algorithm: Algorithm, engine: LocalEngine, shared: Tensors) -> Model:
    """The model as it stands, after whatever clients do on their own before they are evaluated."""
    if algorithm.personalises():
        engine(algorithm.personalise, shared)
    return Model(algorithm, engine.send(shared), list(engine.privates.values()))


def train(
    config: Config,
    federation: Federation,
    algorithm: Algorithm,
    run: Run,
    watcher: Watcher,
    checkpoint: Checkpoint | None = None,
) -> Outcome:
    """Train to the end of the configuration, from the start or from a checkpoint, filling the run folder.

    Metrics are written before the checkpoint of the same round, so a kill between the two loses neither.
    """
    with LocalEngine(federation, seed=config.seed, workers=config.workers, device=config.device) as engine:
        if checkpoint is None:
            shared, done, seconds = begin(algorithm, engine), 0, 0.0
            run.save(Checkpoint(0, 0.0, shared, engine.privates), config.keep_checkpoints)
        else:
            shared = checkpoint.shared
            engine.privates = {name: engine.send(private) for name, private in checkpoint.privates.items()}
            done, seconds = checkpoint.round, checkpoint.seconds
        last_seconds, last_round = seconds, done
        began = time.perf_counter()
        for number in range(done, config.rounds):
            shared = one_round(algorithm, engine, shared, number)
            done = number + 1
            stop = watcher.round_done(done)
            finished = done == config.rounds
            if done % config.eval_every == 0 or finished:
                seconds += time.perf_counter() - began
                metrics = {"round": done, **evaluate(current(algorithm, engine, shared), federation, engine.map)}
                metrics["seconds"] = round(seconds, 3)
                metrics["seconds_per_round"] = round((seconds - last_seconds) / (done - last_round), 4)
                last_seconds, last_round = seconds, done
                run.record(metrics)
                began = time.perf_counter()
                watcher.evaluated(metrics)
            if done % config.eval_every == 0 or finished or stop:
                elapsed = seconds + time.perf_counter() - began
                run.save(Checkpoint(done, elapsed, shared, engine.privates), config.keep_checkpoints)
            if stop:
                break
        return Outcome(current(algorithm, engine, shared), done)
