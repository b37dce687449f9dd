"""Where the responsibilities of hidden components start: evenly, or from federated k-means."""

import math
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm, Exchange
from fedspm.federated.client import Client
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.settings import Settings
from fedspm.federated.steps import Asked
from fedspm.federated.task import Task
from fedspm.mixture import kmeans_init
from fedspm.nn.sgd import chunks


class ComponentStart(Algorithm):
    leaves: ClassVar[Mapping[str, frozenset[str]]] = {
        **Algorithm.leaves,
        "moments": frozenset({"count", "products"}),
        "cluster": frozenset({"count", "sum", "square"}),
        "settle": frozenset({"tau"}),
    }
    bookkeeping = Algorithm.bookkeeping | {"tau", "coarse", "responsibilities"}

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        for name, n in zip(task.names, task.counts, strict=True):
            if n < settings.components:
                raise FedSPMError(
                    f"client {name!r} has {n} training rows, fewer than the {settings.components} components; "
                    "use fewer components or leave the client out"
                )

    def held(self, round: int) -> bool:
        """Are the responsibilities in this round still those of k-means?"""
        em = self.settings.em
        return em.start == "kmeans" and round < max(1, min(em.hold, self.settings.schedule // 2))

    def asks(self) -> dict[str, Asked]:
        """Of the start only what `first_tau` uses."""
        known = {step: asked for step, asked in super().asks().items() if step not in ("moments", "cluster", "settle")}
        if self.settings.em.start == "random":
            return known
        if self.settings.components > 1:
            tries = kmeans_init.AXES * kmeans_init.GLANCES + kmeans_init.ITERATIONS * (self.settings.components - 1)
            known |= {"moments": Asked("start"), "cluster": Asked("start", tries)}
        return known | {"settle": Asked("start")}

    def report_tau(self, client: Client, responsibilities: Float[Tensor, "n c"]) -> PerClient:
        """τ_ic = Σ_j w_ijc, the only thing that the server learns of the responsibilities"""
        return PerClient.of(client.name, tau=responsibilities.cpu().double().sum(0).float())

    def first_tau(self, shared: Tensors, exchange: Exchange) -> Float[Tensor, "m c"]:
        """τ before round 0: spread evenly, or of the first responsibilities of k-means, which stay at the clients."""
        components = self.settings.components
        if self.settings.em.start == "random":
            return torch.tensor(self.task.counts)[:, None].expand(-1, components) / components
        centres = self.find_centres(shared, exchange) if components > 1 else torch.zeros(1, 0)  # nothing to find
        return exchange(self.settle, shared, centres=centres).stack("tau", self.task.names)

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

    def moments(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Count and products of the coarse features around the client's own mean."""
        mean = self.standardise(shared, client.x.mean(0, keepdim=True))
        features = torch.cat([kmeans_init.described(self.standardise(shared, x), mean).cpu() for x in chunks(client.x)])
        features -= features.mean(0)
        shown = (features if client.n >= self.settings.min_count else features[:0]).double()
        count = torch.tensor(float(len(shown)), dtype=torch.float64)
        return Mean(1, count=count, products=shown.T @ shown), client.private | {"coarse": features}

    def cluster(self, client: Client, shared: Tensors, centres: Tensor) -> tuple[Mean, Tensors]:
        """Counts, sums and sum of squares of the clusters around the client's own offset."""
        features = client.private["coarse"]
        label, offset = kmeans_init.place(features, centres.cpu())
        sums = kmeans_init.cluster_sums(features - offset, label, len(centres), self.settings.min_count)
        return Mean(1, **dict(zip(("count", "sum", "square"), sums, strict=True))), client.private

    def settle(self, client: Client, shared: Tensors, centres: Tensor) -> tuple[PerClient, Tensors]:
        """First responsibilities: nearly all of a row to its cluster."""
        private = dict(client.private)
        coarse = private.pop("coarse", None)
        label = torch.zeros(client.n, dtype=torch.long)
        if coarse is not None:
            label, _ = kmeans_init.place(coarse, centres.cpu())
        responsibilities = kmeans_init.softened(label, self.settings.components).to(client.x.device)
        mixing = responsibilities.mean(0)
        return self.report_tau(client, responsibilities), private | {
            "responsibilities": responsibilities,
            "mixing": mixing,
        }
