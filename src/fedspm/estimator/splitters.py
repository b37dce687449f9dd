"""Ways to divide rows of many sites: folds that every site takes part in, and sites left out one by one."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.model_selection import GroupKFold
from sklearn.utils.validation import column_or_1d

from fedspm.base.errors import FedSPMError
from fedspm.data.federation import Federation
from fedspm.data.part import Part
from fedspm.federated.metrics import balanced_accuracy, scores
from fedspm.nn.sgd import chunks


class SiteKFold(GroupKFold):  # type: ignore[misc]
    """Folds that divide every site alike, and in it every class as far as whole rows allow; `groups` are the sites.

    Other than scikit-learn's splitters by group it keeps no site out of training: the next query comes from a site
    that is known. For sites that are not, use `leave_one_site_out`, or scikit-learn's `LeaveOneGroupOut`.
    """

    def __init__(self, n_splits: int = 5, *, shuffle: bool = False, random_state: int | None = None):
        super().__init__(n_splits=n_splits)
        self.shuffle = shuffle
        self.random_state = random_state

    def _iter_test_indices(self, X: Any, y: Any, groups: Any) -> Iterator[np.ndarray]:
        if groups is None or y is None:
            raise FedSPMError("SiteKFold needs y, and groups with the site of every row")
        sites, labels = column_or_1d(groups), column_or_1d(y)
        folds: list[list[np.ndarray]] = [[] for _ in range(self.n_splits)]
        for site in np.unique(sites):
            rows = np.flatnonzero(sites == site)
            if len(rows) < self.n_splits:
                raise FedSPMError(f"site {site} has {len(rows)} rows, fewer than the {self.n_splits} folds")
            for fold, held in zip(folds, self._of_site(rows, labels[rows]), strict=True):
                fold.append(held)
        for fold in folds:
            yield np.sort(np.concatenate(fold))

    def _of_site(self, rows: np.ndarray, labels: np.ndarray) -> Iterator[np.ndarray]:
        """Rows in the order of their classes, dealt out like cards: classes are even, and no row is left over."""
        order = np.arange(len(rows))
        if self.shuffle:
            order = np.random.default_rng(self.random_state).permutation(order)
        order = order[np.argsort(labels[order], kind="stable")]
        for fold in range(self.n_splits):
            yield rows[order[fold :: self.n_splits]]


def leave_one_site_out(model: Any, federation: Federation) -> dict[str, dict[str, Any]]:
    """For every site, the metrics of a model that was trained without it on all of its rows: what a hospital that never
    took part may expect. `model` is a `FederatedClassifier` with any settings; it is not changed."""
    found = {}
    for i, name in enumerate(federation.names):
        others = federation.without([name])
        fitted = clone(model).fit(others)
        rows = [federation.train[i], *((federation.test[i],) if federation.test else ())]
        part = Part(*(torch.cat([getattr(each, key) for each in rows]) for key in "xy"))
        with torch.no_grad():
            p = torch.cat([fitted.model_.probabilities(fitted.model_.embed(x)).cpu() for x in chunks(part.x)])
        said = p.argmax(1)
        found[name] = {
            "rows": len(part),
            "system_accuracy": float((said == part.y).double().mean()),
            "balanced_accuracy": balanced_accuracy(part.y, said),
            "scores": scores(part.y, said, p),
        }
    return found
