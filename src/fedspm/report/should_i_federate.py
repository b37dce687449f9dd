"""Should I federate? What a trained federation is worth beside scikit-learn on the same rows, in a table and sentences.

Differences are paired by test row, of one training; `fedspm compare --baselines` pairs them by seed, and trains the
same network at each client alone, FedAvg and FedDRM as well.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fedspm.data.federation import Federation
from fedspm.federated.evaluation import Model, predictions
from fedspm.training.baselines import Baseline, baselines

QUICK = 10_000_000  # values × classes up to which a report trains baselines at all
QUICK_BOOSTING = 300_000  # … and gradient boosting, which is the slowest
SHOWN = ("logistic regression", "gradient boosting")  # a forest seldom changes the verdict, and takes time
COMPARE = "fedspm compare --baselines"
Figure = tuple[float, float | None]  # a mean and the half width of its 95 % interval, None of one seed


@dataclass(frozen=True)
class Answer:
    """The table (title, all rows, one column per client) and what follows from it; sentences alone if there is none."""

    sentences: list[str]
    names: tuple[str, ...] = ()
    rows: tuple[tuple[str, list[float | None]], ...] = ()


def should_i_federate(model: Model, federation: Federation, seed: int = 0) -> Answer:
    """Of one trained model, on its test rows; quick, or it says why it is not there."""
    if len(federation.shape) != 1:
        sentence = (
            f"Learners of scikit-learn take vectors, not images; `{COMPARE}` trains the same network at each client"
        )
        return Answer([f"{sentence} alone, FedAvg and FedDRM for comparison."])
    size = sum(federation.counts) * federation.shape[0] * len(federation.classes)
    if size > QUICK:
        return Answer([f"Too many rows to train others beside it in passing; `{COMPARE}` does."])
    learners = [name for name in SHOWN if name != "gradient boosting" or size <= QUICK_BOOSTING]
    others = baselines(federation, learners, seed=seed)
    said = [each for each in predictions(model, federation) if each is not None]
    own, system = (torch.cat([getattr(each, key) == each.y for each in said]) for key in ("own", "system"))
    name = type(model.algorithm).__name__
    sentences = _sentences(name, own, system, others, model.algorithm.routes)
    if len(learners) < len(SHOWN):
        sentences.append(f"Gradient boosting would take long on these rows and is left to `{COMPARE}`.")
    rows = [(f"{name}, each client's own answers", own), (f"{name}, the system's answers", system)]
    rows += [(other.title, other.right) for other in others]
    counts = [len(part) for part in federation.test or ()]
    return Answer(sentences, federation.names, tuple((title, _by_client(right, counts)) for title, right in rows))


def _by_client(right: Tensor, counts: list[int]) -> list[float | None]:
    clients = [_share(piece) if len(piece) else None for piece in right.split(counts)]
    return [_share(right), *clients]


def _share(right: Tensor) -> float:
    return float(right.double().mean())


def _sentences(name: str, own: Tensor, system: Tensor, others: list[Baseline], routes: bool) -> list[str]:
    alone = max((other for other in others if other.rows == "alone"), key=lambda other: _share(other.right))
    pooled = max((other for other in others if other.rows != "alone"), key=lambda other: _share(other.right))
    blind = max((other for other in others if other.rows == "pooled"), key=lambda other: _share(other.right))
    found = [
        f"Federation: with its own part of {name} a client is right on {_share(own):.1%} of its test rows, with the "
        f"best learner on its rows alone ({alone.learner}) on {_share(alone.right):.1%}: "
        + verdict(row_difference(own, alone.right), "federation pays here", "here each client is better off alone"),
        f"Pooling: {pooled.title} would be right on {_share(pooled.right):.1%}, if all rows might lie on one machine: "
        + verdict(
            row_difference(own, pooled.right), "the federation is ahead of it", "not pooling costs something here"
        ),
    ]
    if routes:
        found.append(
            f"Routing: where nobody says whose a row is, the system is right on {_share(system):.1%}, {blind.title} on "
            f"{_share(blind.right):.1%}: "
            + verdict(row_difference(system, blind.right), "routing pays here", "one model for all would do better")
        )
    found.append(
        f"Intervals of 95 % are over the {len(own):,} test rows of this one training, and the best of several others "
        f"is flattered by having been chosen on them. `{COMPARE}` pairs by seed, and says what the mixture brings."
    )
    return found


def row_difference(these: Tensor, those: Tensor) -> Figure:
    """Mean of the differences row by row, and the half width of its 95 % interval (normal)."""
    difference = these.double() - those.double()
    half = 1.96 * float(difference.std()) / math.sqrt(len(difference)) if len(difference) > 1 else None
    return float(difference.mean()), half


def verdict(found: Figure, better: str, worse: str) -> str:
    """The difference in points with its interval, and what it says: better, worse, or nothing that can be told."""
    mean, half = found
    if half is None:
        return f"{100 * mean:+.1f} points, of one seed only: nothing can be told."
    text = f"{100 * mean:+.1f} ± {100 * half:.1f} points: "
    if mean > half:
        return f"{text}{better}."
    if mean < -half:
        return f"{text}{worse}."
    return f"{text}no difference can be told."


def as_section(answer: Answer) -> dict[str, Any]:
    """For the template of the report."""
    rows = [(title, [_text(value) for value in values]) for title, values in answer.rows]
    return {"names": answer.names, "rows": rows, "sentences": answer.sentences}


def _text(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
