"""The training loop: rounds from the first to the last, with callbacks that evaluate, save, report and stop.

The command line, the estimator, the workers of a grid and the server of a deployment all call `train`. What happens
around a round is in `fedspm.training.callbacks`; docs/callbacks.md shows how to write one.
"""

import math
from collections.abc import Mapping, Sequence

from fedspm.base.errors import FedSPMError, TooFewSites, TrainingFailed
from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.federated.accountant import Releases
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.robust.rules import rule_of
from fedspm.federated.steps import ATTEMPTS
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import Config
from fedspm.runs.folder import Run
from fedspm.training.callbacks import Callback
from fedspm.training.clock import Clock
from fedspm.training.engine import Engine, in_process
from fedspm.training.training import Training

EXPLODED = 1e8  # times as long as before, or as ones would be: noise alone makes covariances a million times as large


def train(
    config: Config,
    algorithm: Algorithm,
    federation: Federation | None,
    *,
    engine: Engine | None = None,
    validation: Federation | None = None,
    run: Run | None = None,
    checkpoint: Checkpoint | None = None,
    callbacks: Sequence[Callback] = (),
) -> Training:
    """Train to the end of the configuration, or until a callback stops it, from the start or from a checkpoint.

    Without a federation the rows are at the sites of the `engine`, and a checkpoint follows every round. A `run` folder
    is filled on the way; metrics are written before the checkpoint of the same round, so that a kill between the two
    loses neither. The test rows of `validation` are evaluated beside those of the federation: `metrics["validation"]`.
    """
    training = Training(
        config, algorithm, federation, validation=validation, run=run, checkpoint=checkpoint, callbacks=callbacks
    )
    with training.set_up():
        if engine is not None:
            _run_rounds(training, engine)
        elif federation is None:
            raise FedSPMError("without a federation train needs an engine, whose sites have the rows")
        elif config.engine == "flower-simulation":
            _simulate(training, federation)
        else:
            with in_process(config, federation) as local:
                _run_rounds(training, local)
    return training


def _run_rounds(training: Training, engine: Engine) -> None:
    """All rounds, or those until somebody stops it."""
    _start(training, engine)
    training.notify("on_start")
    training.clock.start()
    while not training.finished:
        training.metrics = None
        training.notify("on_round_start")
        training.shared = one_round(training.algorithm, engine, training.shared, training.round)
        training.round += 1
        training.note_refused()
        training.notify("on_round_end")
        if training.stopping:
            break
    if (chosen := training.to_restore) is not None:
        training.shared, training.round = chosen.shared, chosen.round
        engine.restore(chosen.round, chosen.privates)
    for callback in reversed(training.callbacks):
        callback.on_end(training)


def _start(training: Training, engine: Engine) -> None:
    """The state before the first round: a new one, or that of the checkpoint."""
    training.engine = engine
    engine.releases = _releases(training)
    resumed = training.resumed
    if resumed is None:
        training.shared = begin(training.algorithm, engine)
    else:
        training.algorithm.require_fit(resumed.shared)
        training.shared = resumed.shared
        engine.restore(resumed.round, resumed.privates)
    training.clock = Clock(resumed.seconds if resumed else 0.0, training.round)
    training.privacy()  # a missing accountant is better found now,
    rule_of(training.algorithm.settings.robust)  # as is a rule that nobody has


def _releases(training: Training) -> Releases:
    """What has left the clients so far.

    In process it is what the checkpoint counts: rounds that are done again leave the same bits again. Across sites they
    may not, so everything counts that was ever asked for, also after the checkpoint or before there was one.
    """
    run, resumed = training.run, training.resumed
    if resumed is not None and resumed.releases is None and training.algorithm.settings.privacy.noise:
        where = run.path if run else "this checkpoint"
        raise FedSPMError(f"{where} is of a version that did not count noised replies, so no ε is known; train anew")
    before = dict((resumed and resumed.releases) or {})
    if training.federation is not None or run is None:
        return Releases(before)
    asked = run.releases()
    return Releases({name: max(before.get(name, 0), asked.get(name, 0)) for name in before | asked}, run.save_releases)


def begin(algorithm: Algorithm, engine: Engine) -> Tensors:
    """The shared state before the first round; the engine holds the private ones."""
    engine.begin_round(0)
    engine.init_private(algorithm)
    return algorithm.start(engine)


def one_round(algorithm: Algorithm, engine: Engine, shared: Tensors, number: int) -> Tensors:
    """The shared state after round `number`, counted from zero.

    A round that too few sites answered is repeated. One that spoils the state is undone, at the clients too, and
    repeated without the client whose reply was furthest beyond the others'.
    """
    without: dict[str, str] = {}
    for attempt in range(ATTEMPTS):
        invited = [i for i in algorithm.participants(number) if algorithm.task.names[i] not in without]
        engine.begin_round(number, invited)
        try:
            after = algorithm.server_round(shared, engine)
        except TooFewSites:
            if attempt + 1 == ATTEMPTS:
                raise
            continue
        why = spoilt(shared, after)
        if why is None:
            engine.leave_out(without)
            return after
        times, suspect = max(((times, name) for name, times in engine.suspicion.items()), default=(0.0, ""))
        if times <= algorithm.settings.max_update or len(invited) < 2 or attempt + 1 == ATTEMPTS:
            raise TrainingFailed(f"round {number}: {why}; {_what_to_do(algorithm, without)}")
        without[suspect] = (
            f"client {suspect!r}: with its reply, {times:.3g} times as long as the others', {why}; round {number} was "
            "done again without it"
        )
        engine.undo_round()
    raise AssertionError


def spoilt(before: Tensors, after: Tensors) -> str | None:
    """Why no round can follow this state: a value is not finite, or a tensor is out of all proportion."""
    for name, value in after.items():
        if not value.is_floating_point() or value is before.get(name):
            continue
        size = float(value.double().norm())
        if not math.isfinite(size):
            return f"{name} is not finite after averaging"
        if name in before and size > EXPLODED * max(float(before[name].double().norm()), value.numel() ** 0.5):
            return f"{name} is {size:.1e} long after averaging"
    return None


def _what_to_do(algorithm: Algorithm, without: Mapping[str, str]) -> str:
    if without:
        return f"without {', '.join(map(repr, without))} it was no better; lower the learning rate"
    if algorithm.settings.robust == "none":
        return 'lower the learning rate, or find out by robust = "norm" whose update it was'
    return "lower the learning rate"


def _simulate(training: Training, federation: Federation) -> None:
    from fedspm.engines.flower.simulation import simulate

    config, run = training.config, training.run
    if run is None:
        raise FedSPMError("engine = flower-simulation needs a run folder, in which its sites keep their state")
    simulate(
        federation,
        training.algorithm,
        run.path / "sites",
        run.id,
        lambda engine: _run_rounds(training, engine),
        wait=config.sites.wait,
        min_clients=config.sites.min_clients,
        workers=config.workers,
        device=config.device,
    )
