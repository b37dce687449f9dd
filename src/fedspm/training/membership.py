"""A client joins or leaves a trained run: the result is a new run folder, where nothing of the others has changed."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from fedspm.algorithms import build_algorithm
from fedspm.base.errors import FedSPMError
from fedspm.base.files import folder_atomically
from fedspm.data.federation import Federation
from fedspm.data.newcomer import RowSchema
from fedspm.engines.local import LocalEngine
from fedspm.federated.client import Client
from fedspm.federated.evaluation import evaluate
from fedspm.federated.sizes import learnt_parameters
from fedspm.mixture.onboarding import Onboards
from fedspm.mixture.sketch import TABLES, Sketch, among
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.config import Config, resolve
from fedspm.runs.folder import Run
from fedspm.runs.lock import refuse_existing
from fedspm.runs.manifest import ELSEWHERE, facts, manifest


@dataclass(frozen=True)
class Onboarded:
    run: Run
    rows: int  # that the newcomer learnt from
    sent: int  # bytes that the other clients sent
    misfit: float | None  # of γ against the exact normaliser; None where the other clients' rows are not at hand


def onboard(run: Run, name: str, data: Path, out: Path, command: str, *, by_sketch: bool = False) -> Onboarded:
    """Fit a newcomer's head, mixing weights and tilt: with the other clients' help, or from the run's sketch."""
    refuse_existing(out)
    algorithm, before = _algorithm_and_checkpoint(run)
    if run.config.privacy.noise:
        raise FedSPMError(
            f"{run.path} was trained with privacy.noise, and what a newcomer is compared with carries none: train anew"
        )
    if name in algorithm.task.names or not name.strip():
        raise FedSPMError(f"a newcomer cannot be called {name!r}: a client of {run.path} is, or it is no name at all")
    if max(algorithm.task.counts) < run.config.min_count:
        raise FedSPMError(
            f"no client of {run.path} has {run.config.min_count} rows (min_count) to compare a newcomer with"
        )
    config = _with_other_clients(run.config, joined={**run.config.data.joined, name: data})
    sketch = Sketch(**run.sketch()) if by_sketch or run.has_sketch() else None
    federation = None
    if run.has_rows or not by_sketch:
        with _only_for_evaluation(optional=by_sketch):
            run.require_rows()
            together = config.federation(again=True, schema=run.task.schema)
            run.require_same(together.without([name]))
            federation = together
    train = federation.train[-1] if federation else config.newcomer(name, row_schema(run))[0]
    if len(train) < (least := max(config.min_count, config.components)):
        raise FedSPMError(f"client {name!r} has {len(train)} training rows; to join, it needs at least {least}")
    newcomer = Client(name, algorithm.task.clients, train.x, train.y, {}, 0, config.seed)
    sent, misfit = 0, None
    if federation is None:
        assert sketch
        row, private = algorithm.onboarding.admit(newcomer, before.shared, sketch.others())
    else:
        others = federation.without([name])
        with LocalEngine(others, seed=config.seed, workers=config.workers, device=config.device) as engine:
            engine.restore(before.round, before.privates)
            everybody = algorithm.onboarding.everybody(before.shared, engine)
            compared = sketch.others() if sketch and by_sketch else everybody
            row, private = algorithm.onboarding.admit(newcomer, before.shared, compared)
            sent = engine.traffic.up
            misfit = algorithm.onboarding.misfit(newcomer, before.shared, row, private, everybody)
    shared = before.shared | {table: torch.cat([before.shared[table], row[table][None]]) for table in TABLES}
    if sketch:
        now = among(shared, torch.cat([sketch.here, torch.tensor([True])]))
        own = algorithm.onboarding.sketched(algorithm.onboarding.summary(newcomer, now), [name])
        sketch = sketch.moved(among(before.shared, sketch.here), now).joined(own)
    after = replace(before, shared=shared, privates=before.privates | {name: private}, releases={})
    counts = _counts(algorithm) | {name: len(train)}
    return Onboarded(_derived(run, out, config, counts, after, sketch, federation, command), len(train), sent, misfit)


def remove(run: Run, name: str, out: Path, command: str) -> Run:
    """Drop a client's tilt row, its private state, its part of the sketch and its share of the prior."""
    refuse_existing(out)
    algorithm, before = _algorithm_and_checkpoint(run)
    names = algorithm.task.names
    if name not in names:
        raise FedSPMError(f"{run.path} has no client {name!r}; its clients are {', '.join(names)}")
    if len(names) == 2:
        raise FedSPMError(f"{run.path} has two clients only; without {name!r} there would be nobody to choose from")
    data = run.config.data
    if name in data.joined:
        config = _with_other_clients(run.config, joined={key: path for key, path in data.joined.items() if key != name})
    else:
        config = _with_other_clients(run.config, without=[*data.without, name])
    gone = names.index(name)
    kept = [i for i in range(len(names)) if i != gone]
    shared = before.shared | {table: before.shared[table][kept] for table in TABLES}
    sketch = None
    if run.has_sketch():
        known = Sketch(**run.sketch())
        sketch = known.without(gone).moved(among(before.shared, known.here), among(shared, known.here[kept]))
    privates = {key: private for key, private in before.privates.items() if key != name}
    federation = None
    if run.has_rows:
        with _only_for_evaluation(optional=True):
            federation = run.federation().without([name])
    counts = {key: count for key, count in _counts(algorithm).items() if key != name}
    releases = {key: count for key, count in (before.releases or {}).items() if key != name}
    after = replace(before, shared=shared, privates=privates, releases=releases)
    return _derived(run, out, config, counts, after, sketch, federation, command)


@contextmanager
def _only_for_evaluation(optional: bool) -> Iterator[None]:
    """Rows that cannot be had any more are worth a warning, not an error, if nothing but the evaluation needs them."""
    try:
        yield
    except FedSPMError as error:
        if not optional:
            raise
        warnings.warn(f"not evaluated: {error}", stacklevel=4)


def _algorithm_and_checkpoint(run: Run) -> tuple[Onboards, Checkpoint]:
    model = run.model()
    if not isinstance(model.algorithm, Onboards):
        raise FedSPMError(
            f"clients of {run.config.algorithm} cannot come or go after training: it has no row of density ratios for "
            "each of them; train fedspm or feddrm"
        )
    found = run.latest()  # without what only further rounds would need
    return model.algorithm, replace(found, shared=model.algorithm.sent(found.shared), server=frozenset())


def _with_other_clients(config: Config, **data: Any) -> Config:
    """The configuration with other values of `data.joined` or `data.without`."""
    settings = config.to_dict()
    changes = {"joined": {key: str(path) for key, path in data["joined"].items()}} if "joined" in data else data
    return resolve(settings | {"data": settings["data"] | changes})


def row_schema(run: Run) -> RowSchema:
    """What rows must have in common with those that the run was trained on."""
    return RowSchema(run.task.shape, run.classes, run.task.schema)


def _counts(algorithm: Onboards) -> dict[str, int]:
    return dict(zip(algorithm.task.names, algorithm.task.counts, strict=True))


def _derived(
    run: Run,
    out: Path,
    config: Config,
    counts: dict[str, int],
    after: Checkpoint,
    sketch: Sketch | None,
    federation: Federation | None,
    command: str,
) -> Run:
    """A run folder like any other, written as a whole; evaluated if the rows are at hand."""
    about = _derived_manifest(run, config, counts, federation, command)
    with folder_atomically(out) as temporary:
        made = Run.create(temporary, config, about)
        made.save(after, config.keep_checkpoints)
        if sketch:
            made.save_sketch(vars(sketch))
        if federation is not None:
            model = made.model()
            parameters = learnt_parameters(model.algorithm, model.shared, model.privates[0])
            seconds = {"seconds": after.seconds, "seconds_per_round": after.seconds / max(1, after.round)}
            made.record(
                {"round": after.round, **evaluate(model, federation, full=True), "parameters": parameters, **seconds}
            )
    return Run.open(out, run.allowed)


def _derived_manifest(
    run: Run, config: Config, counts: Mapping[str, int], federation: Federation | None, command: str
) -> dict[str, Any]:
    """Of what a run became when a client came or went; its rows may be elsewhere."""
    task = replace(run.task, names=tuple(counts), counts=tuple(counts.values()))
    algorithm = build_algorithm(config, task)
    known = run.manifest | facts(algorithm, run.classes, command) | {"data_fingerprint": ELSEWHERE}
    if federation is not None:
        known = manifest(federation, algorithm, command)
    return known | {"derived_from": {"run": str(run.path.resolve()), "id": run.id}}
