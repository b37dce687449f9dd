"""What scikit-learn makes of the same rows: every client alone, all rows pooled, and pooled with the client as a
feature. The yardstick that a federation has to be held against; pooling needs all rows on one machine."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from fedspm.base.errors import FedSPMError
from fedspm.data.federation import Federation
from fedspm.data.part import Part
from fedspm.federated.metrics import scores

Rows = Literal["alone", "pooled", "pooled, with the client as a feature"]
ROWS: tuple[Rows, ...] = ("alone", "pooled", "pooled, with the client as a feature")
FEW = 2_000  # rows up to which boosting looks at every value; with more it looks at 255 bins, which is quick


def _logistic_regression(rows: int, seed: int) -> Any:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    return _pipeline(StandardScaler(), LogisticRegression(max_iter=1000))


def _random_forest(rows: int, seed: int) -> Any:
    from sklearn.ensemble import RandomForestClassifier

    return _pipeline(RandomForestClassifier(random_state=seed))


def _gradient_boosting(rows: int, seed: int) -> Any:
    from sklearn.ensemble import GradientBoostingClassifier, HistGradientBoostingClassifier

    if rows > FEW:
        return HistGradientBoostingClassifier(random_state=seed)
    return _pipeline(GradientBoostingClassifier(random_state=seed))


def _pipeline(*steps: Any) -> Any:
    """Missing values become medians first, with a column that says so."""
    from sklearn.impute import SimpleImputer
    from sklearn.pipeline import make_pipeline

    return make_pipeline(SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True), *steps)


LEARNERS: dict[str, Callable[[int, int], Any]] = {
    "logistic regression": _logistic_regression,
    "random forest": _random_forest,
    "gradient boosting": _gradient_boosting,
}


@dataclass(frozen=True)
class Baseline:
    """What one learner said of all test rows, clients in order."""

    learner: str
    rows: Rows
    names: tuple[str, ...]
    counts: tuple[int, ...]  # test rows of each client
    y: Tensor
    probabilities: Tensor

    @property
    def title(self) -> str:
        return f"{self.learner}, {'each client alone' if self.rows == 'alone' else self.rows}"

    @property
    def right(self) -> Tensor:
        """Which rows it labels right."""
        return self.probabilities.argmax(1) == self.y

    def metrics(self) -> dict[str, Any]:
        """Accuracy and AUROC, of all rows and by client, in the form of `evaluate`."""
        pieces = zip(self.names, self.y.split(self.counts), self.probabilities.split(self.counts), strict=True)
        clients = {name: _measured(y, p) for name, y, p in pieces if len(y)}
        return {**_measured(self.y, self.probabilities), "clients": clients}


def _measured(y: Tensor, p: Tensor) -> dict[str, Any]:
    found = scores(y, p.argmax(1), p, confusion=False)
    return {"accuracy": float((p.argmax(1) == y).double().mean()), "auroc": found["auroc"], "scores": found}


def require_vectors(federation: Federation) -> None:
    if len(federation.shape) != 1:
        raise FedSPMError(
            f"scikit-learn's learners take vectors, these rows have shape {federation.shape}; compare with FedAvg and "
            "with --algorithms local, which trains the same network at each client alone"
        )
    if not any(map(len, federation.test or ())):
        raise FedSPMError("this federation has no test rows to compare on; give test= or set a larger test_fraction")


def baselines(
    federation: Federation, learners: Sequence[str] = tuple(LEARNERS), rows: Sequence[Rows] = ROWS, seed: int = 0
) -> list[Baseline]:
    """Every learner on every choice of rows, trained on the training rows and asked of the test rows."""
    require_vectors(federation)
    return [_baseline(federation, learner, each, seed) for each in rows for learner in learners]


def _baseline(federation: Federation, learner: str, rows: Rows, seed: int) -> Baseline:
    classes, tests = len(federation.classes), federation.test or ()
    if rows == "alone":
        said = [
            _learn(learner, part.x.numpy(), part.y.numpy(), seed, classes)(test.x.numpy())
            for part, test in zip(federation.train, tests, strict=True)
        ]
    else:
        marked = rows != "pooled"
        x = np.concatenate([_marked(part, i, federation, marked) for i, part in enumerate(federation.train)])
        y = np.concatenate([part.y.numpy() for part in federation.train])
        model = _learn(learner, x, y, seed, classes)
        said = [model(_marked(test, i, federation, marked)) for i, test in enumerate(tests)]
    return Baseline(
        learner,
        rows,
        federation.names,
        tuple(map(len, tests)),
        torch.cat([test.y for test in tests]),
        torch.from_numpy(np.concatenate(said)),
    )


def _marked(part: Part, client: int, federation: Federation, marked: bool) -> np.ndarray:
    """Rows, with one column per client that says whose they are if they are to be marked."""
    x: np.ndarray = part.x.numpy()
    if not marked:
        return x
    whose = np.zeros((len(x), len(federation.names)), dtype=x.dtype)
    whose[:, client] = 1
    return np.concatenate([x, whose], axis=1)


def _learn(learner: str, x: np.ndarray, y: np.ndarray, seed: int, classes: int) -> Callable[[np.ndarray], np.ndarray]:
    """x ↦ (n, K) probabilities; rows of one class only teach to say that class."""
    known = np.unique(y)
    model = LEARNERS[learner](len(x), seed).fit(x, y) if len(known) > 1 else None

    def predict(queries: np.ndarray) -> np.ndarray:
        found = np.zeros((len(queries), classes))
        if len(queries):
            found[:, known] = 1.0 if model is None else model.predict_proba(queries)
        return found

    return predict
