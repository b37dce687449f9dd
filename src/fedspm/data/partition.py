"""Label shift by construction: class-wise Dirichlet partition over clients, Dirichlet mixing weights inside them."""

import numpy as np

from fedspm.base.errors import FedSPMError
from fedspm.base.randomness import numpy_generator

MIN_ROWS = 10  # a client with fewer would have no test rows to speak of
ATTEMPTS = 200


def partition_by_class(labels: np.ndarray, clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Rows of each client: every class is divided in proportions drawn from Dirichlet(α_inter, …, α_inter).

    Drawn anew, at most 200 times, until every client has ten rows.
    """
    random = numpy_generator(seed, "partition")
    by_class = [np.flatnonzero(labels == k) for k in np.unique(labels)]
    possible = clients * MIN_ROWS <= len(labels)
    for _ in range(ATTEMPTS if possible else 0):
        drawn = []
        for rows in by_class:
            shuffled = random.permutation(rows)
            cuts = np.cumsum(random.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
            drawn.append((shuffled, cuts.round().astype(int)))
        counts = [np.diff(cuts, prepend=0, append=len(rows)) for rows, cuts in drawn]
        if np.sum(counts, axis=0).min() >= MIN_ROWS:
            pieces = zip(*(np.split(rows, cuts) for rows, cuts in drawn), strict=True)
            return [np.sort(np.concatenate(piece)) for piece in pieces]
    raise FedSPMError(
        f"{len(labels)} rows over {clients} clients with alpha_inter = {alpha} leave some client with fewer than "
        f"{MIN_ROWS} rows (drawn at most {ATTEMPTS} times); use fewer clients, more rows or a larger alpha_inter"
    )


def draw_mixing(clients: int, components: int, alpha: float, seed: int) -> np.ndarray:
    """True mixing weights π_i ~ Dirichlet(α_intra, …, α_intra), one row per client."""
    return numpy_generator(seed, "mixing").dirichlet(np.full(components, alpha), size=clients)
