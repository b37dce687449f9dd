"""Small tables that everybody can have, divided among sites: what `fedspm bench tables` compares on."""

from collections.abc import Callable

import numpy as np

from fedspm.data.federation import Federation
from fedspm.runs.config import resolve

Rows = tuple[np.ndarray, np.ndarray]
HEART = "heart disease"
TEST = 0.3  # of the rows of every site


def scikit_learn(name: str, sites: int) -> Callable[[int], Federation]:
    """A data set of scikit-learn, divided along its second principal axis into sites of equal size."""

    def federation(seed: int) -> Federation:
        from sklearn import datasets

        x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
        y = y if name != "diabetes" else (y > np.median(y)).astype(int)  # how far it advanced: above the median or not
        centred = (x - x.mean(0)) / np.where(x.std(0) > 0, x.std(0), 1)
        along = centred @ np.linalg.svd(centred, full_matrices=False)[2][1]
        parts = np.array_split(np.argsort(along, kind="stable"), sites)
        return Federation.from_arrays(
            {f"site-{i}": (x[rows], y[rows]) for i, rows in enumerate(parts)}, test_fraction=TEST, seed=seed
        )

    return federation


def groups(seed: int) -> Federation:
    """README's example: two hidden groups at each of two sites; what makes the one ill keeps the other well."""
    random = np.random.default_rng((seed, 1))

    def site(n: int, shift: float) -> Rows:
        group, x = random.integers(0, 2, n), random.normal(size=(n, 6))
        y = ((x[:, 1:].sum(1) > 0) ^ (group == 1)).astype(int)
        return np.c_[x[:, 0] + 4 * group, x[:, 1:]] + shift, y

    train = {"north": site(400, 0.0), "south": site(300, 1.5)}
    return Federation.from_arrays(train, {"north": site(200, 0.0), "south": site(200, 1.5)}, seed=seed)


def xor(seed: int) -> Federation:
    """Four sites, two hidden groups each; the rule is the sign of one column, turned round by group and by site."""
    random = np.random.default_rng((seed, 2))

    def site(n: int, i: int) -> Rows:
        group, x = random.integers(0, 2, n), random.normal(size=(n, 6))
        y = ((x[:, 1] > 0) ^ (group == 1) ^ bool(i % 2)).astype(int)
        return np.c_[x[:, 0] + 4 * group, x[:, 1:]] + 1.5 * i, y

    sizes = {f"site-{i}": n for i, n in enumerate((150, 180, 200, 220))}
    train = {name: site(n, i) for i, (name, n) in enumerate(sizes.items())}
    return Federation.from_arrays(train, {name: site(200, i) for i, name in enumerate(sizes)}, seed=seed)


def heart(seed: int) -> Federation:
    """UCI heart disease, four hospitals, all 920 rows with their missing values."""
    return resolve({"data": {"name": "heart-disease", "test_fraction": TEST}, "seed": seed}).federation()


TABLES: dict[str, Callable[[int], Federation]] = {
    "hidden groups": groups,
    "wine": scikit_learn("wine", 3),
    "four-site XOR": xor,
    "breast cancer": scikit_learn("breast_cancer", 4),
    "iris": scikit_learn("iris", 3),
    "diabetes": scikit_learn("diabetes", 4),
    HEART: heart,
    "digits": scikit_learn("digits", 3),
}
HIDDEN = ("hidden groups", "four-site XOR")  # opposite rules in hidden groups
