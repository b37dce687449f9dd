"""A training from its first round to its last: rounds, evaluations, checkpoints, and going on after a stop."""

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, runtime_checkable

import torch

from fedspm.base.errors import FedSPMError, TooFewSites, TrainingFailed
from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.engines.local import LocalEngine
from fedspm.federated.accountant import spent
from fedspm.federated.algorithm import Algorithm, Exchange
from fedspm.federated.evaluation import Model, evaluate, from_counts
from fedspm.federated.releases import Releases
from fedspm.federated.steps import ATTEMPTS
from fedspm.federated.traffic import Traffic
from fedspm.mixture.onboarding import Newcomers
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import Config
from fedspm.runs.folder import Run

if TYPE_CHECKING:
    from fedspm.likelihood.diagnostics import Diagnosis

In = TypeVar("In")
Out = TypeVar("Out")


@runtime_checkable
class Watcher(Protocol):
    """Somebody who looks on: a progress bar, TensorBoard, a test."""

    def round_done(self, round: int) -> bool:
        """True to stop here, with a checkpoint."""

    def evaluated(self, metrics: dict[str, Any]) -> None: ...


class Engine(Exchange, Protocol):
    """What a training needs of an engine, beside the exchanges that an algorithm asks for."""

    traffic: Traffic
    releases: Releases
    absent: dict[str, str]  # clients that were left out of an exchange of this round, and why

    def private_states(self) -> dict[str, Tensors]: ...

    def begin_round(self, number: int, participants: Sequence[int] | None = None) -> None: ...

    def invite_all(self) -> None: ...

    def init_private(self, algorithm: Algorithm) -> None: ...

    def restore(self, round: int, privates: Mapping[str, Tensors]) -> None: ...

    def send(self, tensors: Tensors) -> Tensors: ...

    def map(self, function: Callable[[In], Out], items: Iterable[In]) -> Iterator[Out]: ...


@runtime_checkable
class Counts(Protocol):
    """An engine whose sites evaluate on their own rows."""

    def count(self, shared: Tensors) -> dict[str, Tensors]: ...


def one_round(algorithm: Algorithm, engine: Engine, shared: Tensors, number: int) -> Tensors:
    """The shared state after round `number`, counted from zero. A round that too few sites answered is repeated."""
    for attempt in range(ATTEMPTS):
        engine.begin_round(number, algorithm.participants(number))
        try:
            after = algorithm.server_round(shared, engine) | algorithm.frozen(shared)  # whatever noise was added
            return require_finite(after, number)
        except TooFewSites:
            if attempt + 1 == ATTEMPTS:
                raise
    raise AssertionError


def require_finite(shared: Tensors, number: int) -> Tensors:
    """A state that no round can follow is never kept."""
    for name, value in shared.items():
        if value.is_floating_point() and not torch.isfinite(value).all():
            raise TrainingFailed(f"round {number}: {name} is not finite after averaging; lower the learning rate")
    return shared


def begin(algorithm: Algorithm, engine: Engine) -> Tensors:
    engine.begin_round(0)
    engine.init_private(algorithm)
    return algorithm.start(engine)


def personalise(algorithm: Algorithm, engine: Engine, shared: Tensors) -> None:
    """Whatever clients do on their own before they are evaluated: all of them, whoever trained."""
    engine.invite_all()
    if algorithm.personalises():
        engine(algorithm.personalise, shared)


def personalised(algorithm: Algorithm, engine: Engine, shared: Tensors) -> Model:
    """The model as it is evaluated."""
    personalise(algorithm, engine, shared)
    return Model(algorithm, engine.send(shared), list(engine.private_states().values()))


def evaluated(algorithm: Algorithm, engine: Engine, shared: Tensors, federation: Federation | None) -> dict[str, Any]:
    """The metrics of a model on the test rows, and how many parameters it took; across sites, what they counted."""
    if federation is None:
        return counted(algorithm, engine, shared)
    model = personalised(algorithm, engine, shared)
    parameters = algorithm.parameters(shared, model.privates[0])
    return {**evaluate(model, federation, engine.map), "parameters": parameters}


def counted(algorithm: Algorithm, engine: Engine, shared: Tensors) -> dict[str, Any]:
    assert isinstance(engine, Counts)
    try:
        personalise(algorithm, engine, shared)
        counts = engine.count(shared)
    except TooFewSites:
        counts = {}
    return from_counts(counts, algorithm.task.names, algorithm.routes)


def in_process(config: Config, federation: Federation) -> LocalEngine:
    return LocalEngine(
        federation,
        seed=config.seed,
        workers=config.workers,
        device=config.device,
        clients_at_once=config.clients_at_once,
    )


def train(
    config: Config,
    federation: Federation,
    algorithm: Algorithm,
    run: Run,
    watcher: Watcher,
    checkpoint: Checkpoint | None = None,
) -> int:
    """Train to the end of the configuration, from the start or from a checkpoint, filling the run folder."""
    if config.engine == "flower-simulation":
        from fedspm.engines.flower.simulation import simulate

        return simulate(
            federation,
            algorithm,
            run.path / "sites",
            run.id,
            lambda engine: train_on(engine, config, federation, algorithm, run, watcher, checkpoint),
            wait=config.sites.wait,
            min_clients=config.sites.min_clients,
            max_update=config.sites.max_update,
            workers=config.workers,
            device=config.device,
        )
    with in_process(config, federation) as engine:
        return train_on(engine, config, federation, algorithm, run, watcher, checkpoint)


def train_on(
    engine: Engine,
    config: Config,
    federation: Federation | None,
    algorithm: Algorithm,
    run: Run,
    watcher: Watcher,
    checkpoint: Checkpoint | None = None,
) -> int:
    """A training with an engine; without a federation the rows are at the sites, and a checkpoint follows every round.

    Metrics are written before the checkpoint of the same round, so a kill between the two loses neither. Returns the
    number of rounds done, which is less than all if the watcher stopped it.
    """
    engine.releases = _releases(algorithm, federation, run, checkpoint)
    if checkpoint is None:
        shared, done, seconds = begin(algorithm, engine), 0, 0.0
        run.save(_checkpoint(0, 0.0, shared, engine), config.keep_checkpoints)
    else:
        algorithm.require_fit(checkpoint.shared)
        shared, done, seconds = checkpoint.shared, checkpoint.round, checkpoint.seconds
        engine.restore(done, checkpoint.privates)
    _privacy(algorithm, shared, engine)  # a missing accountant is better found now
    diagnosis = _diagnosis(algorithm, engine, federation) if config.diagnose_every and federation else None
    clock = Clock(seconds, done)
    while done < config.rounds:
        before = None
        if diagnosis and config.diagnose_every and done % config.diagnose_every == 0:
            with clock.paused():
                before = diagnosis.before(engine.send(shared), list(engine.private_states().values()))
        shared = one_round(algorithm, engine, shared, done)
        if before:
            with clock.paused():
                run.record({"round": done, **before.after(engine.send(shared))}, "diagnostics.jsonl")
        done += 1
        if engine.absent:
            run.record({"round": done, "absent": dict(engine.absent)}, "absent.jsonl")
        stop = watcher.round_done(done)
        last = done == config.rounds
        if due := last or done % config.eval_every == 0:
            costs = clock.stop(done) | engine.traffic.metrics() | _privacy(algorithm, shared, engine)
            metrics = {"round": done, **evaluated(algorithm, engine, shared, federation), **costs}
            run.record(metrics)
            watcher.evaluated(metrics)
            clock.start()
        if stop and not due and federation:
            personalise(algorithm, engine, shared)  # whoever loads the checkpoint finds nothing stale in it
        if due or stop or federation is None:
            run.save(_checkpoint(done, clock.seconds(), shared, engine), config.keep_checkpoints)
        if stop and not last:
            return done
    keep_sketch(algorithm, engine, shared, run, done)
    if checkpoint is not None and checkpoint.round == done:
        evaluate_again(algorithm, engine, federation, run, checkpoint)
    return done


def _diagnosis(algorithm: Algorithm, engine: Engine, federation: Federation) -> "Diagnosis":
    from fedspm.likelihood.diagnostics import Diagnosis  # SciPy is slow to import

    parts = [engine.send({"x": part.x, "y": part.y}) for part in federation.train]
    return Diagnosis(algorithm, [(part["x"], part["y"]) for part in parts], engine.map)


def evaluate_again(
    algorithm: Algorithm, engine: Engine, federation: Federation | None, run: Run, finished: Checkpoint
) -> None:
    """Of a finished run whose last metrics were lost, and across sites in any case: one that missed the end gets the
    last state with it."""
    done, shared = finished.round, finished.shared
    known = next((line for line in run.metrics() if line["round"] == done), {})
    if known and federation is not None:
        return
    engine.begin_round(done - 1)
    metrics = evaluated(algorithm, engine, shared, federation) | _privacy(algorithm, shared, engine)
    if not (known and engine.absent):  # never fewer sites than before
        costs = {"seconds": finished.seconds, "seconds_per_round": finished.seconds / done}
        run.record({**costs, **known, "round": done, **metrics})


def _checkpoint(done: int, seconds: float, shared: Tensors, engine: Engine) -> Checkpoint:
    return Checkpoint(done, seconds, shared, engine.private_states(), dict(engine.releases.of))


def _releases(algorithm: Algorithm, federation: Federation | None, run: Run, checkpoint: Checkpoint | None) -> Releases:
    """What has left the clients so far.

    In process it is what the checkpoint counts: rounds that are done again leave the same bits again. Across sites they
    may not, so everything counts that was ever asked for, also after the checkpoint or before there was one.
    """
    if checkpoint is not None and checkpoint.releases is None and algorithm.settings.privacy.noise:
        raise FedSPMError(f"{run.path} is of a version that did not count noised replies, so no ε is known; train anew")
    before = dict((checkpoint and checkpoint.releases) or {})
    if federation is not None:
        return Releases(before)
    asked = run.releases()
    return Releases({name: max(before.get(name, 0), asked.get(name, 0)) for name in before | asked}, run.save_releases)


def _privacy(algorithm: Algorithm, shared: Tensors, engine: Engine) -> dict[str, Any]:
    if algorithm.settings.privacy.clip is None:
        return {}
    return {"privacy": spent(algorithm, shared, engine.releases.most)}


def keep_sketch(algorithm: Algorithm, engine: Engine, shared: Tensors, run: Run, done: int) -> None:
    """What a later newcomer needs of everybody's rows, after the last round; without it the sites have to help.

    A run with noise writes none: its ε would not cover it.
    """
    if not isinstance(algorithm, Newcomers) or run.has_sketch() or algorithm.settings.privacy.noise:
        return
    if engine.round != done - 1:
        engine.begin_round(done - 1)
    engine.invite_all()
    with suppress(TooFewSites):
        run.save_sketch(vars(algorithm.sketch(shared, engine)))


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
