"""Label shift by construction: class-wise Dirichlet partition over clients, Dirichlet mixing weights inside them."""

import numpy as np

from fedspm.errors import FedSPMError
from fedspm.randomness import numpy_generator

MIN_ROWS = 10  # a client with fewer would have no test rows to speak of
ATTEMPTS = 200


def partition_by_class(labels: np.ndarray, clients: int, alpha: float, seed: int) -> list[np.ndarray]:
    """Rows of each client: every class is divided in proportions drawn from Dirichlet(α_inter, …, α_inter).

    Drawn anew, at most 200 times, until every client has ten rows.
    """
    random = numpy_generator(seed, "partition")
    for _ in range(ATTEMPTS):
        shares: list[list[np.ndarray]] = [[] for _ in range(clients)]
        for k in np.unique(labels):
            rows = random.permutation(np.flatnonzero(labels == k))
            cuts = np.cumsum(random.dirichlet(np.full(clients, alpha)))[:-1] * len(rows)
            for share, piece in zip(shares, np.split(rows, cuts.round().astype(int)), strict=True):
                share.append(piece)
        divided = [np.sort(np.concatenate(share)) for share in shares]
        if min(map(len, divided)) >= MIN_ROWS:
            return divided
    raise FedSPMError(
        f"{len(labels)} rows over {clients} clients with alpha_inter = {alpha} left some client with fewer than "
        f"{MIN_ROWS} rows, {ATTEMPTS} times over; use fewer clients, more rows or a larger alpha_inter"
    )


def draw_mixing(clients: int, components: int, alpha: float, seed: int) -> np.ndarray:
    """True mixing weights π_i ~ Dirichlet(α_intra, …, α_intra), one row a client."""
    return numpy_generator(seed, "mixing").dirichlet(np.full(components, alpha), size=clients)
