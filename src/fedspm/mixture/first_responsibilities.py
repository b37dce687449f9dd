"""Where the responsibilities of a method with hidden components start (`em.start`), and how long they are kept.

`kmeans` takes the best separated clusters of one view of the rows. `judged` proposes clusters in several views, none of
them made for a data set, and lets labels decide: those with which linear heads explain most of the labels of held-out
rows, or a single one where no clusters explain noticeably more (`mixture.label_judge`). `true` and `hold = "ever"` are
controls: what would a perfect start be worth, and what does EM add to a start?
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.base.errors import FedSPMError, Refused
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm, without_noise
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.steps import step
from fedspm.federated.uploads import Count, Products, Shares, Squares, Sum, Upload
from fedspm.mixture import kmeans_init, label_judge
from fedspm.mixture.e_step import report_tau
from fedspm.mixture.row_groups import group_means, row_groups
from fedspm.nn.sgd import chunks

TAU: dict[str, Upload] = {"tau": Shares()}  # τ_ic = Σ_j w_ijc
VIEW = "view."  # how what k-means sees of the rows is named in a client's private state
LABELS = "view.labels"  # what heads see of them
GROUPS = "view.groups"  # which of them stay together
DESCRIBED, AVERAGES, TEXTURES = range(3)


@dataclass(frozen=True)
class Clusters:
    """Centres in a view of the rows, and how well they were separated before they moved last."""

    view: int
    centres: Float[Tensor, "clusters f"]
    separation: float = -math.inf

    def single(self) -> "Clusters":
        """All rows together."""
        return Clusters(self.view, torch.zeros_like(self.centres[:1]))

    def arguments(self) -> Tensors:
        """As steps are told of them."""
        return {"centres": self.centres, "view": torch.tensor(self.view)}


# What is written below each of these functions is when a step is asked for, in docs/what-leaves.md.


def starts_with_clusters(algorithm: Algorithm) -> bool:
    """If `em.start` is `kmeans` or `judged` and `privacy.noise` is not set."""
    return algorithm.settings.em.start in ("kmeans", "judged") and without_noise(algorithm)


def starts_with_the_truth(algorithm: Algorithm) -> bool:
    """If `em.start` is `true`."""
    return algorithm.settings.em.start == "true"


def finds_centres(algorithm: Algorithm) -> bool:
    """If `em.start` is `kmeans` or `judged`, `components` is above 1 and `privacy.noise` is not set."""
    return starts_with_clusters(algorithm) and algorithm.settings.components > 1


def judges_clusters(algorithm: Algorithm) -> bool:
    """If `em.start` is `judged`, `components` is above 1 and `privacy.noise` is not set."""
    return finds_centres(algorithm) and algorithm.settings.em.start == "judged"


def views(algorithm: Algorithm) -> list[int]:
    """What k-means looks at: one view, or with `judged` and images two."""
    if algorithm.settings.em.start == "kmeans":
        return [DESCRIBED]
    return [AVERAGES, TEXTURES] if len(algorithm.task.shape) == 3 else [AVERAGES]


def number_of_views(algorithm: Algorithm) -> int:
    """Once for each view of the rows: one, or two of images with `em.start` = `judged`."""
    return len(views(algorithm))


def most_iterations(algorithm: Algorithm) -> int:
    """At most 12 + 10 (C − 1) times for each view of the rows."""
    return kmeans_init.most_iterations(algorithm.settings.components) * number_of_views(algorithm)


def judgements(algorithm: Algorithm) -> int:
    """Once for a single cluster, and C − 1 times for each view of the rows."""
    return 1 + (algorithm.settings.components - 1) * number_of_views(algorithm)


def named(algorithm: Algorithm, view: Tensor) -> str:
    """Where a client keeps a view; one that this run does not use is refused."""
    if int(view) not in views(algorithm):
        raise Refused(f"view {int(view)}: a start of this run looks at {', '.join(map(str, views(algorithm)))}")
    return f"{VIEW}{int(view)}"


class FirstResponsibilities(Algorithm):
    """A method whose clients begin with responsibilities of hidden components."""

    def first_tau(self, shared: Tensors, exchange: Exchange) -> Float[Tensor, "m c"]:
        """τ before round 0: spread evenly, or of the first responsibilities of clusters, which stay at the clients."""
        components = self.settings.components
        if starts_with_the_truth(self):
            return exchange(self.take_truth, shared).stack("tau", self.task.names)
        if not starts_with_clusters(self):
            return torch.tensor(self.task.counts)[:, None].expand(-1, components) / components
        clusters = Clusters(DESCRIBED, torch.zeros(1, 0))  # of one component there is nothing to find
        if judges_clusters(self):
            clusters = self.best_judged(shared, exchange)
        elif finds_centres(self):
            clusters = self.best_separated(shared, exchange)
        found = exchange(self.init_responsibilities, shared, **clusters.arguments())
        return found.stack("tau", self.task.names)

    def best_separated(self, shared: Tensors, exchange: Exchange) -> Clusters:
        """The number of clusters with the largest Calinski–Harabasz index; a single one if none can be shown."""
        found = self.proposed(shared, exchange, DESCRIBED)
        best = max(found, key=lambda each: each.separation)
        return best if best.separation > -math.inf else best.single()

    def best_judged(self, shared: Tensors, exchange: Exchange) -> Clusters:
        """The clusters that explain most of the labels of held-out rows; more of them only if they explain more."""

        def explained(clusters: Clusters) -> float:
            sums = exchange(self.judge, shared, **clusters.arguments()).totals()
            return label_judge.explained(sums["error"], sums["total"])

        found = [each for view in views(self) for each in self.proposed(shared, exchange, view)]
        best = found[0].single()
        highest = explained(best)
        for number in range(2, self.settings.components + 1):
            shares = {explained(each): each for each in found if len(each.centres) == number}
            margin = label_judge.MARGIN ** (number - len(best.centres))
            if (most := max(shares)) > max(margin * highest, 0):
                best, highest = shares[most], most
        return best

    def proposed(self, shared: Tensors, exchange: Exchange, view: int) -> list[Clusters]:
        """2 to C clusters of a view, along the one of its first principal axes along which two separate best."""
        moments = exchange(self.moments, shared, view=torch.tensor(view)).totals()
        scatter = moments["products"] / moments["count"].clamp_min(1)

        def clustered(number: int, axis: int, iterations: int) -> Clusters:
            clusters = Clusters(view, kmeans_init.first_centres(scatter, number, axis))
            for _ in range(iterations):
                sums = exchange(self.cluster, shared, **clusters.arguments()).totals()
                centres = kmeans_init.moved(clusters.centres, sums["count"], sums["sum"])
                shown = sums["count"].sum() > sum(self.task.counts) / 2  # or most rows are in clusters too small
                index = kmeans_init.separation(sums["count"], sums["sum"], sums["square"]) if shown else -math.inf
                clusters = Clusters(view, centres, index)
            return clusters

        axes = range(min(kmeans_init.AXES, len(scatter)))
        axis = max(axes, key=lambda candidate: clustered(2, candidate, kmeans_init.GLANCES).separation)
        return [clustered(number, axis, kmeans_init.ITERATIONS) for number in range(2, self.settings.components + 1)]

    @step(when="start", used=finds_centres, times=number_of_views, uploads={"count": Count(), "products": Products()})
    def moments(self, client: Client, shared: Tensors, view: Tensor) -> tuple[Mean, Tensors]:
        """Count and products of features around the client's own mean. `kmeans`: a 7 × 7 average of an image, and for
        colours correlations of channels. `judged`: the average, and energies of random filters."""
        name, features = named(self, view), self.seen(client, shared, int(view))
        features -= features.mean(0)
        shown = (features if client.n >= self.settings.min_count else features[:0]).double()
        count = torch.tensor(float(len(shown)), dtype=torch.float64)
        private = client.private | {name: features}
        if self.settings.privacy.withhold_rows and GROUPS not in private:
            private[GROUPS] = row_groups(client.x, self.settings.min_count)
        return Mean(1, count=count, products=shown.T @ shown), private

    def seen(self, client: Client, shared: Tensors, view: int) -> Float[Tensor, "n f"]:
        """One view of all rows of a client."""
        pieces = (self.standardise(shared, x) for x in chunks(client.x))
        if view == DESCRIBED:
            known = client.x.nanmean if client.x.isnan().any() else client.x.mean
            mean = self.standardise(shared, known(0, keepdim=True))
            return torch.cat([kmeans_init.described(x, mean).cpu() for x in pieces])
        look = kmeans_init.coarse if view == AVERAGES else kmeans_init.textures
        return torch.cat([look(x).cpu() for x in pieces])

    @step(
        when="start",
        used=finds_centres,
        times=most_iterations,
        uploads={"count": Count(), "sum": Sum(), "square": Squares()},
    )
    def cluster(self, client: Client, shared: Tensors, centres: Tensor, view: Tensor) -> tuple[Mean, Tensors]:
        """Count and sum of each cluster of these features, and one sum of squares, around the client's own offset. With
        `privacy.withhold_rows`, rows come in groups of at least `min_count`."""
        features = client.private[named(self, view)]
        label, offset = self.placed(client.private, centres, view)
        sums = kmeans_init.cluster_sums(features - offset, label, len(centres), self.settings.min_count)
        return Mean(1, **dict(zip(("count", "sum", "square"), sums, strict=True))), client.private

    def placed(self, private: Tensors, centres: Tensor, view: Tensor) -> tuple[Int[Tensor, " n"], Float[Tensor, " f"]]:
        """The cluster of every row as sums know it, and the client's own offset."""
        features = private[named(self, view)]
        if GROUPS in private:
            features = group_means(features, private[GROUPS])
        return kmeans_init.place(features, centres.cpu())

    @step(when="start", used=judges_clusters, times=judgements, uploads={"error": Sum(), "total": Sum()})
    def judge(self, client: Client, shared: Tensors, centres: Tensor, view: Tensor) -> tuple[Mean, Tensors]:
        """Squared error of the labels of all rows, each under a linear head of its cluster that was fitted to other
        rows, for five penalties; and of the client's shares of classes."""
        private = dict(client.private)
        if LABELS not in private:
            pieces = [label_judge.responses(self.standardise(shared, x)).cpu() for x in chunks(client.x)]
            seen = [private[f"{VIEW}{each}"] for each in views(self)]
            private[LABELS] = label_judge.own_units(torch.cat([*seen, torch.cat(pieces)], 1))
        label, _ = self.placed(private, centres, view)
        error, total = label_judge.held_out_errors(private[LABELS], client.y.cpu(), self.task.classes, label)
        shown = float(client.n >= self.settings.min_count)
        return Mean(1, error=error * shown, total=total * shown), private

    @step(when="start", used=starts_with_clusters, uploads=TAU)
    def init_responsibilities(
        self, client: Client, shared: Tensors, centres: Tensor, view: Tensor
    ) -> tuple[PerClient, Tensors]:
        """First responsibilities, nearly all of a row to its cluster; their sums τ leave."""
        private = {name: value for name, value in client.private.items() if not name.startswith(VIEW)}
        label = torch.zeros(client.n, dtype=torch.long)
        if len(centres) > 1:
            label, _ = kmeans_init.place(client.private[named(self, view)], centres.cpu())
        return self.begun(client, private, label)

    @step(when="start", used=starts_with_the_truth, uploads=TAU, in_process_only=True, truth=True)
    def take_truth(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """First responsibilities from the components that data were constructed with; their sums τ leave."""
        if client.component is None:
            raise FedSPMError('em.start = "true": nobody knows the hidden components of these data; take another start')
        if (most := int(client.component.max()) + 1) > self.settings.components:
            raise FedSPMError(f'em.start = "true": the data have {most} components; set components = {most} or more')
        return self.begun(client, client.private, client.component)

    def begun(self, client: Client, private: Tensors, label: Int[Tensor, " n"]) -> tuple[PerClient, Tensors]:
        """τ and the private state of a client whose rows are in these clusters."""
        w = kmeans_init.softened(label, self.settings.components).to(client.x.device)
        return report_tau(client, w), private | {"responsibilities": w, "mixing": w.mean(0)}

    def held(self, round: int) -> bool:
        """Are the responsibilities in this round still the first ones?"""
        hold = self.settings.em.hold
        if not (starts_with_clusters(self) or starts_with_the_truth(self)):
            return False
        return hold == "ever" or round < max(1, min(hold, self.schedule // 2))
