"""A training from its first round to its last: rounds, evaluations, checkpoints, and going on after a stop."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol, runtime_checkable

from fedspm.config import Config
from fedspm.core.algorithm import Algorithm
from fedspm.core.replies import Tensors
from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.evaluation import Model, evaluate
from fedspm.likelihood.diagnostics import Diagnosis
from fedspm.runs import Checkpoint, Run


@runtime_checkable
class Watcher(Protocol):
    """Somebody who looks on: a progress bar, TensorBoard, a test."""

    def round_done(self, round: int) -> bool:
        """True to stop here, with a checkpoint."""

    def evaluated(self, metrics: dict[str, Any]) -> None: ...


def one_round(algorithm: Algorithm, engine: LocalEngine, shared: Tensors, number: int) -> Tensors:
    """The shared state after round `number`, counted from zero."""
    engine.begin_round(number, algorithm.participants(number))
    return algorithm.server_round(shared, engine)


def begin(algorithm: Algorithm, engine: LocalEngine) -> Tensors:
    engine.begin_round(0)
    engine.enrol(algorithm)
    return algorithm.start(engine)


def personalised(algorithm: Algorithm, engine: LocalEngine, shared: Tensors) -> Model:
    """The model as it is evaluated: after whatever clients do on their own for that."""
    if algorithm.personalises():
        engine.begin_round(engine.round)  # everybody is evaluated, whoever trained
        engine(algorithm.personalise, shared)
    return Model(algorithm, engine.send(shared), list(engine.privates.values()))


def evaluated(algorithm: Algorithm, engine: LocalEngine, shared: Tensors) -> dict[str, Any]:
    """The metrics of a model on the test rows, and how many parameters it took."""
    model = personalised(algorithm, engine, shared)
    parameters = algorithm.parameters(shared, model.privates[0])
    return {**evaluate(model, engine.federation, engine.map), "parameters": parameters}


def train(
    config: Config,
    federation: Federation,
    algorithm: Algorithm,
    run: Run,
    watcher: Watcher,
    checkpoint: Checkpoint | None = None,
) -> int:
    """Train to the end of the configuration, from the start or from a checkpoint, filling the run folder.

    Metrics are written before the checkpoint of the same round, so a kill between the two loses neither. Returns the
    number of rounds done, which is less than all if the watcher stopped it.
    """
    with LocalEngine(federation, seed=config.seed, workers=config.workers, device=config.device) as engine:
        if checkpoint is None:
            shared, done, seconds = begin(algorithm, engine), 0, 0.0
            run.save(Checkpoint(0, 0.0, shared, engine.privates), config.keep_checkpoints)
        else:
            algorithm.require_fit(checkpoint.shared)
            shared, done, seconds = checkpoint.shared, checkpoint.round, checkpoint.seconds
            engine.privates = {name: engine.send(private) for name, private in checkpoint.privates.items()}
        diagnosis = Diagnosis(algorithm, engine.data, engine.map) if config.diagnose_every else None
        clock = Clock(seconds, done)
        while done < config.rounds:
            before = None
            if diagnosis and config.diagnose_every and done % config.diagnose_every == 0:
                with clock.paused():
                    before = diagnosis.before(engine.send(shared), list(engine.privates.values()))
            shared = one_round(algorithm, engine, shared, done)
            if before:
                with clock.paused():
                    run.record({"round": done, **before.after(engine.send(shared))}, "diagnostics.jsonl")
            done += 1
            stop = watcher.round_done(done)
            last = done == config.rounds
            if due := last or done % config.eval_every == 0:
                costs = clock.stop(done) | {"bytes_down": engine.traffic.down, "bytes_up": engine.traffic.up}
                metrics = {"round": done, **evaluated(algorithm, engine, shared), **costs}
                run.record(metrics)
                watcher.evaluated(metrics)
                clock.start()
            if due or stop:
                run.save(Checkpoint(done, clock.seconds(), shared, engine.privates), config.keep_checkpoints)
            if stop:
                return done
        if done not in {line["round"] for line in run.metrics()}:  # a finished run whose metrics were lost
            engine.begin_round(done - 1)
            metrics = evaluated(algorithm, engine, shared)
            run.record({"round": done, **metrics, "seconds": seconds, "seconds_per_round": seconds / done})
    return done


class Clock:
    """Seconds of training, without the time that evaluation takes."""

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
        self._before = self.seconds()
        each = (self._before - self._at_last) / (done - self._done_at_last)
        self._at_last, self._done_at_last = self._before, done
        return {"seconds": round(self._before, 3), "seconds_per_round": round(each, 4)}
