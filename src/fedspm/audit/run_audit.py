"""The audit of a run: attacks on what its clients send and on the model that it ends with, with noise and without.

Two rounds are taken once more, here, where the rows are: the first, and the last. What every client sends is what a
server would see; from it rows are rebuilt (`nn.row_inversion`) and members are guessed (`audit.membership`). Noise is
that of the run, or one that is asked for; the model that the run ended with is attacked as it is.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

import numpy as np

from fedspm.algorithms import build_algorithm
from fedspm.audit.membership import Told, model_scores, told_apart, update_scores
from fedspm.base.errors import FedSPMError, TrainingFailed
from fedspm.base.tensors import Tensors
from fedspm.data.federation import Federation
from fedspm.data.part import Part
from fedspm.engines.watched import Watched, WatchedExchange
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.settings import Settings
from fedspm.nn.row_inversion import layers_on_rows, rows_read
from fedspm.runs.checkpoints import Checkpoint
from fedspm.runs.folder import Run


@dataclass(frozen=True)
class Rebuilt:
    """Rows that the updates of a round show; `layers` see rows themselves, and without any nothing can be read so."""

    rows: int
    of: int
    layers: int


@dataclass(frozen=True)
class RoundAudit:
    """What a server could learn from one round."""

    round: str  # first, last
    noise: float
    clip: float | None
    rebuilt: Rebuilt
    update: Told | None  # None where the clients send no update


@dataclass(frozen=True)
class Audit:
    """What was found of a run."""

    rounds: list[RoundAudit]
    model: dict[str, Told]  # by attack, on the model that the run ended with
    not_tried: list[str]

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


def audit_run(run: Run, noise: float = 1.0) -> Audit:
    """Attack a run whose rows are at hand, without noise and with it: the run's own, or `noise`, with a clip at the
    median length of the updates."""
    federation, checkpoint = run.federation(), run.latest()
    if federation.test is None or not any(map(len, federation.test)):
        raise FedSPMError(f"{run.path}: without test rows there are no others to tell members from")
    algorithm, not_tried = run.algorithm(), list[str]()
    clear = algorithm.settings.alone().model_copy(update={"privacy": type(run.config.privacy)()})
    rounds, lengths = list[RoundAudit](), list[float]()
    for which in ("first", "last"):
        seen = _watch(build_algorithm(clear, algorithm.task), federation, checkpoint, which)
        lengths += [length for each in seen if (length := _length(each))]
        rounds.append(_audited(which, algorithm, clear, federation, checkpoint, seen))
    own = run.config.privacy
    wanted = own if own.noise else own.model_copy(update={"noise": noise, "clip": own.clip or median(lengths or [1.0])})
    noisy = clear.model_copy(update={"privacy": wanted})
    for which in ("first", "last"):
        try:
            seen = _watch(build_algorithm(noisy, algorithm.task), federation, checkpoint, which)
        except TrainingFailed as error:
            not_tried.append(str(error))
            break
        rounds.append(_audited(which, algorithm, noisy, federation, checkpoint, seen))
    return Audit(rounds, _of_model(algorithm, federation, checkpoint), not_tried)


def _watch(algorithm: Algorithm, federation: Federation, checkpoint: Checkpoint, which: str) -> list[Watched]:
    """What clients send in a round that is taken once more."""
    assert federation.test is not None
    parts = zip(federation.names, federation.train, federation.test, strict=True)
    rows = {name: {"train": train, "test": test} for name, train, test in parts}
    if which == "first":
        exchange = WatchedExchange(algorithm, rows)
        shared = algorithm.start(exchange)
    else:
        exchange = WatchedExchange(algorithm, rows, checkpoint.privates, max(0, checkpoint.round - 1))
        shared = checkpoint.shared
    exchange.seen.clear()
    algorithm.server_round(shared, exchange)
    return exchange.seen


def _audited(
    which: str,
    algorithm: Algorithm,
    settings: Settings,
    federation: Federation,
    checkpoint: Checkpoint,
    seen: list[Watched],
) -> RoundAudit:
    updates = [each for each in seen if _moved(each)]
    shown, layers = set[tuple[str, int]](), 0
    members, others = list[np.ndarray](), list[np.ndarray]()
    for each in updates:
        i = federation.names.index(each.client)
        train = federation.train[i]
        x = algorithm.standardise(each.shared, train.x).flatten(1)
        for weight, bias in layers_on_rows(each.shared, x.shape[1]):
            if each.sent.keys() >= {weight, bias}:
                layers += 1
                change, of_bias = (each.sent[name].double() - each.shared[name].double() for name in (weight, bias))
                shown |= {(each.client, j) for j in rows_read(change, of_bias, x).tolist()}
        assert federation.test is not None
        scored = [_scored(algorithm, each, checkpoint, i, part) for part in (train, federation.test[i])]
        members.append(scored[0])
        others.append(scored[1])
    told = told_apart(np.concatenate(members), np.concatenate(others)) if members else None
    rebuilt = Rebuilt(len(shown), sum(federation.counts), layers)
    return RoundAudit(which, settings.privacy.noise, settings.privacy.clip, rebuilt, told)


def _scored(algorithm: Algorithm, each: Watched, checkpoint: Checkpoint, client: int, part: Part) -> np.ndarray:
    if not len(part):
        return np.empty(0)
    private = checkpoint.privates[each.client]
    return update_scores(algorithm, checkpoint.shared | each.shared, _moved(each), private, client, part)


def _moved(each: Watched) -> Tensors:
    """The parameters that a client has sent back changed."""
    return {
        name: value
        for name, value in each.sent.items()
        if name in each.shared and value.is_floating_point() and value.shape == each.shared[name].shape
    }


def _length(each: Watched) -> float:
    return math.sqrt(sum(float((value - each.shared[name]).square().sum()) for name, value in _moved(each).items()))


def _of_model(algorithm: Algorithm, federation: Federation, checkpoint: Checkpoint) -> dict[str, Told]:
    assert federation.test is not None
    privates = [checkpoint.privates[name] for name in federation.names]
    scores: dict[str, tuple[list[np.ndarray], list[np.ndarray]]] = {}
    for i in range(len(federation.names)):
        for kind, part in enumerate((federation.train[i], federation.test[i])):
            if len(part):
                for attack, found in model_scores(algorithm, checkpoint.shared, privates, i, part).items():
                    scores.setdefault(attack, ([], []))[kind].append(found)
    return {attack: told_apart(np.concatenate(one), np.concatenate(other)) for attack, (one, other) in scores.items()}


def sentences(found: Mapping[str, Any]) -> list[str]:
    """What an audit means, for a person."""
    read = [each["rebuilt"] for each in found["rounds"] if not each["noise"]]
    if not any(each["layers"] for each in read):
        first = "No layer that clients send sees rows themselves, so nothing could be read from it directly."
    else:
        rows, of = max(each["rows"] for each in read), read[0]["of"]
        first = f"A server that only looks reads {rows:,} of {of:,} rows from a round without noise."
    best = max(found["model"].values(), key=lambda told: told["auc"])
    low, high = best["auc_interval"]
    tells = "tells members from others" if low > 0.5 else "does not tell members from others"
    second = (
        f"Who may ask the model for probabilities {tells}: AUC {best['auc']:.3f} ({low:.3f} to {high:.3f}; 0.5 is a "
        f"guess), and finds {best['found']:.1%} of them at 1 % false alarms."
    )
    third = "An attack that fails here proves nothing: these are known attacks, not all; only ε bounds every one."
    return [first, second, third]
