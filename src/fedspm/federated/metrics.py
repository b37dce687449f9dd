"""Metrics of predictions, as scikit-learn computes them: of one answerer on one set of rows (`scores`).

| key | what | better |
|---|---|---|
| `auroc` | area under the ROC curve; of several classes the mean over one-against-the-rest | high |
| `auprc` | average precision, likewise | high |
| `f1` | F1 of every class that occurs or is predicted, their mean (macro) | high |
| `recall` | by class | high |
| `brier` | mean of Σ_k (p_k − 1{y = k})², halved for two classes | low |
| `log_loss` | mean of −log p_y | low |
| `ece` | Σ_b n_b/n |accuracy_b − confidence_b| over 15 equal bins of the largest probability | low |
| `confusion` | rows by class and by predicted class | |

With two classes AUROC and average precision are of the second one, `classes[1]`, as in scikit-learn. What is not
defined is None, and `undefined` says why: where rows have one class only, nothing can be ranked.
"""

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

BINS = 15
SHOWN = 64  # clients up to which all of the routing confusion is kept
MISTAKES = 200  # … and pairs of clients that are kept beyond
CURVES = 2_000  # clients × classes up to which clients have `scores` of their own
LARGEST = 10_000  # numbers that the confusion matrices of an evaluation may have together


def balanced_accuracy(y: Int[Tensor, " n"], predicted: Int[Tensor, " n"]) -> float:
    """Mean of the recalls of the classes that occur."""
    classes = int(max(y.max(), predicted.max())) + 1
    total = torch.bincount(y, minlength=classes)
    right = torch.bincount(y[y == predicted], minlength=classes)
    return float((right / total)[total > 0].mean())


def scores(
    y: Int[Tensor, " n"], predicted: Int[Tensor, " n"], probabilities: Float[Tensor, "n k"], confusion: bool = True
) -> dict[str, Any]:
    """All metrics of the table above, ready for JSON. `predicted` need not be the likeliest class: votes are not."""
    from sklearn import metrics  # slow to import, and a site does not need it

    labels = np.arange(probabilities.shape[1])
    p = probabilities.double().numpy()
    p /= p.sum(1, keepdims=True)
    truth, said = y.numpy(), predicted.numpy()
    matrix = metrics.confusion_matrix(truth, said, labels=labels)
    rows = matrix.sum(1)
    found: dict[str, Any] = {
        "f1": float(metrics.f1_score(truth, said, average="macro", zero_division=0)),
        "recall": [int(matrix[k, k]) / int(n) if n else None for k, n in enumerate(rows)],
        "brier": brier_score(truth, p),
        "log_loss": float(metrics.log_loss(truth, p, labels=labels)),
        "ece": expected_calibration_error(truth, said, p),
        **_ranking(truth, p),
    }
    return found | ({"confusion": matrix.tolist()} if confusion else {})


def _ranking(truth: np.ndarray, p: np.ndarray) -> dict[str, Any]:
    """AUROC and average precision over the classes that occur; a class that is absent cannot be ranked."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    occurring = np.unique(truth)
    if len(occurring) < 2:
        return {"auroc": None, "auprc": None, "undefined": "AUROC and AUPRC: these rows have one class only"}
    ranked = [1] if p.shape[1] == 2 else occurring.tolist()
    return {
        "auroc": float(np.mean([roc_auc_score(truth == k, p[:, k]) for k in ranked])),
        "auprc": float(np.mean([average_precision_score(truth == k, p[:, k]) for k in ranked])),
    }


def brier_score(truth: np.ndarray, p: np.ndarray) -> float:
    """n⁻¹ Σ_j Σ_k (p_jk − 1{y_j = k})², halved for two classes: then it is (p_1 − y)², as everybody knows it"""
    error = ((p - np.eye(p.shape[1])[truth]) ** 2).sum(1).mean()
    return float(error / 2 if p.shape[1] == 2 else error)


def expected_calibration_error(truth: np.ndarray, said: np.ndarray, p: np.ndarray) -> float:
    """Σ_b n_b/n |accuracy_b − confidence_b|, rows in bins (b/15, (b + 1)/15] of the probability of what was said"""
    confidence = p[np.arange(len(p)), said]
    place = np.clip(np.ceil(confidence * BINS).astype(int) - 1, 0, BINS - 1)
    surplus = np.bincount(place, (said == truth) - confidence, minlength=BINS)
    return float(np.abs(surplus).sum() / len(p))


def component_agreement(pairs: Sequence[tuple[Int[Tensor, " _"], Int[Tensor, " _"]]]) -> dict[str, float]:
    """Purity and adjusted Rand index of components that were found, against the true ones; clients weighted by rows."""
    from sklearn.metrics import adjusted_rand_score

    if not pairs:
        return {}
    n = sum(len(truth) for _, truth in pairs)
    purity = sum(purity_count(component, truth) for component, truth in pairs) / n
    rand = sum(len(truth) * adjusted_rand_score(truth.numpy(), component.numpy()) for component, truth in pairs) / n
    return {"component_purity": purity, "component_rand_index": float(rand)}


def purity_count(component: Int[Tensor, " n"], truth: Int[Tensor, " n"]) -> int:
    """Rows that share their component's commonest true component."""
    commonest = [int(torch.bincount(truth[component == c]).max()) for c in component.unique().tolist()]
    return sum(commonest)


def routing_metrics(routed: Mapping[int, Int[Tensor, " m"]], names: Sequence[str]) -> dict[str, Any]:
    """Routing accuracy, and where the rows of each client went: all counts of up to `SHOWN` clients, with whose square
    they grow, and beyond that the commonest mistakes and the rows of all others."""
    total = sum(int(row.sum()) for row in routed.values())
    accuracy = sum(int(row[i]) for i, row in routed.items()) / max(1, total)
    if (m := len(names)) <= SHOWN:
        confusion = [routed[i].tolist() if i in routed else [0] * m for i in range(m)]
        return {"routing_accuracy": accuracy, "routing_confusion": confusion}
    pairs = ((row, i, j) for i, row in routed.items() for j in row.nonzero()[:, 0].tolist() if j != i)
    wrong = [{"client": names[i], "routed_to": names[j], "rows": int(row[j])} for row, i, j in pairs]
    wrong.sort(key=itemgetter("rows"), reverse=True)
    others = sum(each["rows"] for each in wrong[MISTAKES:])
    return {"routing_accuracy": accuracy, "routing_mistakes": wrong[:MISTAKES], "other_routing_mistakes": others}
