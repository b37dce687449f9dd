"""What methods with hidden components have in common: where responsibilities start, and when a step is asked for."""

import math
from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm, without_noise
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.settings import Settings
from fedspm.federated.steps import step
from fedspm.federated.task import Task
from fedspm.federated.uploads import Count, Products, Shares, Squares, Sum, Upload
from fedspm.mixture import kmeans_init
from fedspm.mixture.e_step import report_tau
from fedspm.nn.sgd import chunks

TAU: dict[str, Upload] = {"tau": Shares()}  # τ_ic = Σ_j w_ijc


# What is written below each of these functions is when a step is asked for, in docs/what-leaves.md.


def starts_with_kmeans(algorithm: Algorithm) -> bool:
    """If `em.start` is `kmeans` and `privacy.noise` is not set."""
    return algorithm.settings.em.start == "kmeans" and without_noise(algorithm)


def finds_centres(algorithm: Algorithm) -> bool:
    """If `em.start` is `kmeans`, `components` is above 1 and `privacy.noise` is not set."""
    return starts_with_kmeans(algorithm) and algorithm.settings.components > 1


def most_iterations(algorithm: Algorithm) -> int:
    """At most 12 + 10 (C − 1) times."""
    return kmeans_init.most_iterations(algorithm.settings.components)


def in_one_exchange(algorithm: Algorithm) -> bool:
    """If `wire.exchanges` is 1."""
    return algorithm.settings.wire.exchanges == 1


def in_two_exchanges(algorithm: Algorithm) -> bool:
    """If `wire.exchanges` is 2."""
    return not in_one_exchange(algorithm)


class MixtureAlgorithm(Algorithm):
    """A method whose clients hold responsibilities of hidden components."""

    bookkeeping = Algorithm.bookkeeping | {"tau", "coarse", "responsibilities", "evidence", "audit"}

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        for name, n in zip(task.names, task.counts, strict=True):
            if n < settings.components:
                raise FedSPMError(
                    f"client {name!r} has {n} training rows, fewer than the {settings.components} components; "
                    "use fewer components or leave the client out"
                )

    def shapes(self) -> dict[str, torch.Size]:
        return super().shapes() | {"tau": torch.Size((self.task.clients, self.settings.components))}

    def init_private(self, client: Client) -> Tensors:
        return {"mixing": torch.full((self.settings.components,), 1 / self.settings.components)}

    # -- the first responsibilities ----------------------------------------------------------------------------------

    def first_tau(self, shared: Tensors, exchange: Exchange) -> Float[Tensor, "m c"]:
        """τ before round 0: spread evenly, or of the first responsibilities of k-means, which stay at the clients."""
        components = self.settings.components
        if not starts_with_kmeans(self):
            return torch.tensor(self.task.counts)[:, None].expand(-1, components) / components
        centres = self.find_centres(shared, exchange) if components > 1 else torch.zeros(1, 0)  # nothing to find
        return exchange(self.init_responsibilities, shared, centres=centres).stack("tau", self.task.names)

    def find_centres(self, shared: Tensors, exchange: Exchange) -> Float[Tensor, "clusters f"]:
        """The best separated clusters: two along the best of the first principal axes, then up to C along that one."""
        moments = exchange(self.moments, shared).totals()
        scatter = moments["products"] / moments["count"].clamp_min(1)
        best = torch.zeros(1, len(scatter), dtype=scatter.dtype)

        def clustered(clusters: int, axis: int, iterations: int) -> tuple[Tensor, float]:
            centres = kmeans_init.first_centres(scatter, clusters, axis)
            for _ in range(iterations):
                sums = exchange(self.cluster, shared, centres=centres).totals()
                centres = kmeans_init.moved(centres, sums["count"], sums["sum"])
            if sums["count"].sum() <= sum(self.task.counts) / 2:  # most rows are in clusters too small to be shown
                return centres, -math.inf
            return centres, kmeans_init.separation(sums["count"], sums["sum"], sums["square"])

        axes = range(min(kmeans_init.AXES, len(scatter)))
        axis = max(axes, key=lambda candidate: clustered(2, candidate, kmeans_init.GLANCES)[1])
        highest = -math.inf
        for clusters in range(2, self.settings.components + 1):
            centres, separation = clustered(clusters, axis, kmeans_init.ITERATIONS)
            if separation > highest:
                best, highest = centres, separation
        return best

    @step(when="start", used=finds_centres, uploads={"count": Count(), "products": Products()})
    def moments(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Count and products of coarse features (a 7 × 7 average of an image, and for colours correlations of channels)
        around the client's own mean."""
        mean = self.standardise(shared, client.x.mean(0, keepdim=True))
        features = torch.cat([kmeans_init.described(self.standardise(shared, x), mean).cpu() for x in chunks(client.x)])
        features -= features.mean(0)
        shown = (features if client.n >= self.settings.min_count else features[:0]).double()
        count = torch.tensor(float(len(shown)), dtype=torch.float64)
        return Mean(1, count=count, products=shown.T @ shown), client.private | {"coarse": features}

    @step(
        when="start",
        used=finds_centres,
        times=most_iterations,
        uploads={"count": Count(), "sum": Sum(), "square": Squares()},
    )
    def cluster(self, client: Client, shared: Tensors, centres: Tensor) -> tuple[Mean, Tensors]:
        """Count and sum of each cluster of coarse features, and one sum of squares, around the client's own offset."""
        features = client.private["coarse"]
        label, offset = kmeans_init.place(features, centres.cpu())
        sums = kmeans_init.cluster_sums(features - offset, label, len(centres), self.settings.min_count)
        return Mean(1, **dict(zip(("count", "sum", "square"), sums, strict=True))), client.private

    @step(when="start", used=starts_with_kmeans, uploads=TAU)
    def init_responsibilities(self, client: Client, shared: Tensors, centres: Tensor) -> tuple[PerClient, Tensors]:
        """First responsibilities, nearly all of a row to its cluster; their sums τ leave."""
        private = dict(client.private)
        coarse = private.pop("coarse", None)
        label = torch.zeros(client.n, dtype=torch.long)
        if coarse is not None:
            label, _ = kmeans_init.place(coarse, centres.cpu())
        w = kmeans_init.softened(label, self.settings.components).to(client.x.device)
        return report_tau(client, w), private | {"responsibilities": w, "mixing": w.mean(0)}

    def held(self, round: int) -> bool:
        """Are the responsibilities in this round still those of k-means?"""
        return starts_with_kmeans(self) and round < max(1, min(self.settings.em.hold, self.schedule // 2))

    def components_of(self, private: Tensors) -> Int[Tensor, " n"] | None:
        return private["responsibilities"].argmax(1) if "responsibilities" in private else None

    def notes_of(self, private: Tensors) -> dict[str, float]:
        return {"e_step_error": float(private["audit"])} if "audit" in private else {}

    def mixing_of(self, private: Tensors) -> Float[Tensor, " c"] | None:
        return private.get("mixing")

    # -- the E-step --------------------------------------------------------------------------------------------------

    def refreshed(self, client: Client, shared: Tensors, evidence: Tensors) -> Tensors:
        """Cached evidence, with whatever no batch could record on its way; by default there is no such part."""
        return evidence
