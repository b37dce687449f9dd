"""Was a row among those that a client trained on? Scores of rows, and how well they tell members from others.

- `loss`: log P_i(y | x) of the client's own model: what it has learnt by heart it is surer of (Yeom et al. 2018).
- `likelihood ratio`: the same, less the mean of the other clients' models: rows that are easy for everybody are told
  apart from rows that this client knows (Carlini et al. 2022, with the other clients in place of shadow models).
- `update`: how much more the parameters that one client sent make of a row than those that it got: what a server sees
  in one round. Where a method routes it is log P(i | x), for which no private state is needed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from scipy.stats import rankdata
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.data.part import Part
from fedspm.federated.algorithm import Algorithm

RESAMPLES = 200  # of the bootstrap
FALSE_ALARMS = 0.01  # share of rows that are wrongly called members, at which the share of members found is told


@dataclass(frozen=True)
class Told:
    """How well scores tell members from others, each with an interval of 95 %."""

    members: int
    others: int
    auc: float
    auc_interval: tuple[float, float]
    found: float  # share of the members found, at 1 % false alarms
    found_interval: tuple[float, float]


def told_apart(members: np.ndarray, others: np.ndarray, seed: int = 0) -> Told:
    """AUC and the share of members found at 1 % false alarms; intervals by resampling members and others."""
    draw = np.random.default_rng([seed, 29])
    again = [_measures(draw.choice(members, len(members)), draw.choice(others, len(others))) for _ in range(RESAMPLES)]
    auc, found = _measures(members, others)
    low, high = np.quantile(again, [0.025, 0.975], axis=0)
    return Told(len(members), len(others), auc, (float(low[0]), float(high[0])), found, (float(low[1]), float(high[1])))


def _measures(members: np.ndarray, others: np.ndarray) -> tuple[float, float]:
    """P(member's score > other's) + ½ P(equal), and P(member's score above all but 1 % of the others')"""
    n, m = len(members), len(others)
    ranks = rankdata(np.concatenate([members, others]))[:n]
    threshold = np.sort(others)[m - 1 - int(FALSE_ALARMS * m)]  # which at most 1 % of the others are above
    return float((ranks.sum() - n * (n + 1) / 2) / (n * m)), float((members > threshold).mean())


@torch.no_grad()
def model_scores(
    algorithm: Algorithm, shared: Tensors, privates: Sequence[Tensors], client: int, part: Part
) -> dict[str, np.ndarray]:
    """`loss` and `likelihood ratio` of rows, under a client's own model and the others'."""
    embedding = algorithm.embed(shared, part.x)

    def log_label(i: int) -> Tensor:
        return _of_label(algorithm.local_probabilities(i, privates[i], shared, embedding), part.y)

    own = log_label(client)
    others = torch.stack([log_label(i) for i in range(len(privates)) if i != client])
    return {"loss": own.numpy(), "likelihood ratio": (own - others.mean(0)).numpy()}


@torch.no_grad()
def update_scores(
    algorithm: Algorithm, before: Tensors, after: Tensors, private: Tensors, client: int, part: Part
) -> np.ndarray:
    """`update` of rows: of what a client got, and of what it sent back."""

    def score(shared: Tensors) -> Tensor:
        embedding = algorithm.embed(shared, part.x)
        routed = algorithm.log_scores(shared, embedding)
        if routed is not None:
            return torch.log_softmax(routed, 1)[:, client]
        return _of_label(algorithm.local_probabilities(client, private, shared, embedding), part.y)

    return (score(before | after) - score(before)).numpy()


def _of_label(probabilities: Tensor, y: Tensor) -> Tensor:
    return probabilities.double().clamp_min(1e-300).log().gather(1, y[:, None])[:, 0]
