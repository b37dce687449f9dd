"""A client that comes after training: its head, mixing weights and tilt, while everything that is shared stays.

Of Q̃₂ only the newcomer's row moves. Over its own rows (w: their responsibilities) and the others',

    Q̃₂(γ, ξ) = Σ_jc w_jc (γ_c + ξ_cᵀ h_c(x_j)) − Σ log(D(x) + Σ_c τ_c exp(γ_c + ξ_cᵀ h_c(x)))

with D = Σ_i'c τ_i'c exp(γ_i'c + ξ_i'cᵀ h_c) of those that were there before and whose rows are in the sum: a client
with fewer than `min_count` says nothing, and is in neither. It is concave, and where it is largest

    γ_c = −log Σ r(x) exp(ξ_cᵀ h_c(x)),    r = 1 / (D + Σ_c τ_c exp(γ_c + ξ_cᵀ h_c)),

the normaliser under the baseline G. In the scale of these r the components of all clients have mass 1 on average, so
that the newcomer's γ can be compared with the others'. Without the others' rows γ would grow for ever.

What the others' rows say is a value and its gradient, C (d + 1) + 1 sums: from the sites themselves, step by step, or
from a sketch of the baseline, which they write once.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Exchange
from fedspm.federated.client import Client
from fedspm.federated.replies import Mean, PerClient
from fedspm.mixture import em, kmeans_init
from fedspm.mixture.density_ratio import DensityRatios
from fedspm.mixture.model import HEAD, TILT, Features, initial_head, log_likelihood, log_ratio
from fedspm.nn.encoder import Encoder
from fedspm.nn.sgd import Batch, chunks, minimise

ROUNDS = 10  # of EM at the newcomer
STEPS = 200  # SGD steps on its head in each
LOOKS = 25  # iterations of L-BFGS on its tilt in each
RIDGE = 2e-4  # on ξᵀh, for a newcomer that h tells apart from everybody: its ξ would grow for ever
NORMALISER = ("tilt.gamma",)  # what moves when ξ stays
CLUSTERS = 64  # of a client's rows in the sketch, at most

Pull = Callable[[Tensors], Tensors]  # the newcomer's tilt and log τ → value and gradient of the others' part of −Q̃₂
Whose = Bool[Tensor, " m"]  # which of the clients


@dataclass(frozen=True)
class Others:
    """With whom a newcomer is compared: who they are, and what their rows say."""

    here: Whose
    pull: Pull


def pull(
    tilt: Tensors, features: Features, log_total: Float[Tensor, " n"], weight: Float[Tensor, " n"]
) -> dict[str, Tensor]:
    """Σ weight · log(D + Σ_c τ_c exp(γ_c + ξ_cᵀ h_c)) over some rows, and its gradient by γ and ξ"""
    features = features.double()
    score = log_ratio(tilt["tilt.xi"], tilt["tilt.gamma"], features) + tilt["log_tau"]
    total = torch.logaddexp(log_total.double(), torch.logsumexp(score, dim=1))
    share = (score - total[:, None]).exp() * weight[:, None]
    moment = torch.einsum("nc,ncd->cd", share, features.expand(-1, share.shape[1], -1))
    return {"value": (weight * total).sum(), "gamma": share.sum(0), "xi": moment}


@dataclass(frozen=True)
class Sketch:
    """The baseline in few points: for clusters of every client's rows in h, their count, mean and Σ r, r = 1 / D."""

    count: Float[Tensor, "m b"]
    mass: Float[Tensor, "m b"]
    centre: Float[Tensor, "m b e d"]

    @property
    def here(self) -> Whose:
        return self.count.sum(1) > 0

    def others(self) -> Others:
        return Others(self.here, self.pull)

    def pull(self, tilt: Tensors) -> Tensors:
        """As all rows would; D of a cluster is the harmonic mean over its rows, count / mass."""
        shown = self.count > 0
        count, mass = self.count[shown], self.mass[shown]
        return pull(tilt, self.centre[shown], (count / mass).log(), count)

    def moved(self, before: Tensors, after: Tensors) -> "Sketch":
        """When clients come or go D changes, and r with it."""
        change = log_total(before, self.centre.flatten(0, 1)) - log_total(after, self.centre.flatten(0, 1))
        return replace(self, mass=torch.where(self.mass > 0, self.mass * change.view_as(self.mass).exp(), 0.0))

    def joined(self, other: "Sketch") -> "Sketch":
        return Sketch(*(torch.cat([value, getattr(other, name)]) for name, value in vars(self).items()))

    def without(self, client: int) -> "Sketch":
        kept = [i for i in range(len(self.count)) if i != client]
        return Sketch(*(value[kept] for value in vars(self).values()))


def log_total(shared: Tensors, features: Features) -> Float[Tensor, " n"]:
    """log D(x) = logΣ_i'c τ_i'c exp(γ_i'c + ξ_i'cᵀ h_c(x))"""
    tables = {name: shared[name].cpu().to(features.dtype) for name in (*TILT, "tau")}
    ratio = log_ratio(tables["tilt.xi"], tables["tilt.gamma"], features)
    return torch.logsumexp((ratio + tables["tau"].log()).flatten(1), dim=1)


def among(shared: Tensors, here: Whose) -> Tensors:
    """What is shared, as if these clients alone were there: the others have no τ."""
    return shared | {"tau": shared["tau"] * here.to(shared["tau"])[:, None]}


class Newcomers(DensityRatios):
    predictor: Encoder
    leaves: ClassVar[Mapping[str, frozenset[str]]] = {
        **DensityRatios.leaves,
        "attend": frozenset(),
        "pull": frozenset({"value", "gamma", "xi"}),
        "summarise": frozenset({"count", "mass", "sum"}),
    }
    after = frozenset({"attend", "pull", "summarise"})
    at_home = frozenset({"attend", "pull"})

    # -- the server's side -------------------------------------------------------------------------------------------

    def sketch(self, shared: Tensors, exchange: Exchange) -> Sketch:
        """Of everybody's rows; a client that does not answer is not in it."""
        sketch = self.sketched(exchange(self.summarise, shared), self.task.names)
        return sketch.moved(among(shared, self.counted()), among(shared, sketch.here))

    def sketched(self, replies: PerClient, names: Sequence[str]) -> Sketch:
        count, mass, total = (
            replies.stack(name, names, empty.expand(len(names), *empty.shape))
            for name, empty in zip(("count", "mass", "sum"), self._nothing(), strict=True)
        )
        centre = total / count.clamp_min(1)[..., None]
        return Sketch(count, mass, centre.unflatten(2, (self.router.copies, -1)))

    def counted(self) -> Whose:
        """Those with enough rows for sums over them to leave."""
        return torch.tensor(self.task.counts) >= self.settings.min_count

    def everybody(self, shared: Tensors, exchange: Exchange) -> Others:
        """The others' part of −Q̃₂ from the sites themselves, one exchange per step."""
        exchange(self.attend, shared)

        def asked(tilt: Tensors) -> Tensors:
            xi, gamma, log_tau = tilt["tilt.xi"], tilt["tilt.gamma"], tilt["log_tau"]
            return exchange(self.pull, shared, xi=xi, gamma=gamma, log_tau=log_tau).totals()

        return Others(self.counted(), asked)

    # -- at a client that was there before ---------------------------------------------------------------------------

    def attend(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """Keep h and log D of all rows at hand for the exchanges that follow."""
        features = self.all_features(self.router, shared, client.x)
        total = log_total(among(shared, self.counted()), features)
        return PerClient.of(client.name), client.private | {"h": features, "log_total": total}

    def pull(self, client: Client, shared: Tensors, xi: Tensor, gamma: Tensor, log_tau: Tensor) -> tuple[Mean, Tensors]:
        """What this client's rows say of the newcomer's tilt, from at least `min_count` of them."""
        shown = client.n if client.n >= self.settings.min_count else 0
        features, total = client.private["h"][:shown], client.private["log_total"][:shown]
        tilt = {"tilt.xi": xi.cpu(), "tilt.gamma": gamma.cpu(), "log_tau": log_tau.cpu()}
        return Mean(1, **pull(tilt, features, total, torch.ones_like(total).double())), client.private

    def summarise(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        return self.summary(client, among(shared, self.counted())), client.private

    def summary(self, client: Client, shared: Tensors) -> PerClient:
        """k-means of h: count, Σ h and Σ r of clusters with at least `min_count` rows each, padded with zeros."""
        features = self.all_features(self.router, shared, client.x)
        count, mass, total = self._nothing()
        if client.n >= self.settings.min_count:
            flat = features.flatten(1).double()
            label = kmeans_init.grouped(flat, CLUSTERS, self.settings.min_count, client.generator("sketch"))
            count += torch.bincount(label, minlength=CLUSTERS)
            total.index_add_(0, label, flat)
            mass.index_add_(0, label, (-log_total(shared, features.double())).exp())
        return PerClient.of(client.name, count=count, mass=mass, sum=total)

    def _nothing(self) -> tuple[Tensor, Tensor, Tensor]:
        """Count, Σ r and Σ h of no cluster"""
        total = torch.zeros(CLUSTERS, self.router.copies * self.router.dimension, dtype=torch.float64)
        return total.new_zeros(CLUSTERS), total.new_zeros(CLUSTERS), total

    @torch.no_grad()
    def all_features(self, encoder: Encoder, shared: Tensors, x: Tensor) -> Features:
        """What an encoder says of all rows; on the CPU, where sums are taken in double precision."""
        return torch.cat([encoder(shared, self.standardise(shared, piece)).cpu() for piece in chunks(x)])

    # -- at the newcomer ---------------------------------------------------------------------------------------------

    def admit(self, client: Client, shared: Tensors, others: Others) -> tuple[Tensors, Tensors]:
        """EM over the newcomer's own parameters: its rows of γ, ξ and τ, and its private state.

        Components mean the same for everybody, so its first responsibilities are those that the other clients'
        components would take for its rows.
        """
        g, h = (self.all_features(encoder, shared, client.x) for encoder in (self.predictor, self.router))
        total = log_total(among(shared, others.here), h)
        ratio = log_ratio(shared["tilt.xi"], shared["tilt.gamma"], h) + shared["tau"].log()
        responsibilities = torch.softmax(torch.logsumexp(ratio, dim=1), dim=1)
        mixing = responsibilities.mean(0)
        head = initial_head(self.settings.components, self.task.classes, g.shape[2], client.generator("head"))
        row = {name: shared[name].double().mean(0) for name in TILT}
        for number in range(ROUNDS):
            if number:
                label = em.of_label(log_likelihood(head["head.weight"], head["head.bias"], g), client.y)
                own = log_ratio(row["tilt.xi"].float(), row["tilt.gamma"].float(), h)
                responsibilities = self.posterior(mixing, {"ratio": own, "label": label})
            tau = responsibilities.double().sum(0)
            mixing = em.mixing_weights(tau, client.n).float()
            head = self.fitted_head(replace(client, round=number, x=g), head, responsibilities, mixing)
            row = self.fitted_tilt(row, tau, responsibilities, h, total, others.pull)
        row = self.fitted_tilt(row, tau, responsibilities, h, total, others.pull, NORMALISER)
        private = head | {"mixing": mixing, "responsibilities": responsibilities}
        return {name: value.float() for name, value in (row | {"tau": tau}).items()}, private

    def misfit(self, client: Client, shared: Tensors, row: Tensors, private: Tensors, others: Others) -> float:
        """By how much γ is off the exact normaliser of its ξ, at most over components: what a sketch costs"""
        h = self.all_features(self.router, shared, client.x)
        tilt = {name: row[name].double() for name in TILT}
        tau, w = row["tau"].double(), private["responsibilities"]
        exact = self.fitted_tilt(tilt, tau, w, h, log_total(among(shared, others.here), h), others.pull, NORMALISER)
        return float((tilt["tilt.gamma"] - exact["tilt.gamma"]).abs().max())

    def fitted_head(self, client: Client, head: Tensors, responsibilities: Tensor, mixing: Tensor) -> Tensors:
        """α, β by ascent on Q₁; the client's x are its features g already"""

        def objective(moving: Tensors, batch: Batch) -> Tensor:
            likelihood = log_likelihood(moving["head.weight"], moving["head.bias"], batch.x)
            return em.supervised_loss(batch.extra["responsibilities"], em.of_label(likelihood, batch.y))

        block = self.settings.predictor
        return minimise(
            {name: head[name] for name in HEAD},
            objective,
            client.batches("supervised", block.batch_size, STEPS, responsibilities=responsibilities),
            learning_rate=self.learning_rate("predictor") * (1 - client.round / ROUNDS),
            momentum=block.momentum,
            scale=self.head_scale(mixing),
        )

    def fitted_tilt(
        self,
        row: Tensors,
        tau: Tensor,
        responsibilities: Tensor,
        h: Features,
        total: Tensor,
        others: Pull,
        moves: Sequence[str] = TILT,
    ) -> Tensors:
        """γ, ξ where Q̃₂ is largest, by L-BFGS on its value and gradient; or γ alone, the normaliser of a given ξ"""
        weight = responsibilities.double()
        every = h.double().expand(-1, weight.shape[1], -1)
        target = torch.einsum("nc,ncd->cd", weight, every)
        ridge = RIDGE * every.square().mean()
        moving = {name: row[name].clone() for name in TILT}
        xi, gamma = moving["tilt.xi"], moving["tilt.gamma"]
        search = torch.optim.LBFGS(
            [moving[name] for name in moves],
            max_iter=LOOKS,
            history_size=LOOKS,
            tolerance_change=1e-12,
            line_search_fn="strong_wolfe",
        )

        @torch.no_grad()
        def loss() -> float:
            tilt = moving | {"log_tau": tau.log()}
            parts = [pull(tilt, h, total, torch.ones_like(total).double()), others(tilt)]
            whole = {name: parts[0][name] + parts[1][name] for name in parts[0]}
            xi.grad = (whole["xi"] - target) / len(h) + ridge * xi
            gamma.grad = (whole["gamma"] - tau) / len(h)
            own = (target * xi).sum() + (tau * gamma).sum()
            return float((whole["value"] - own) / len(h) + ridge / 2 * xi.square().sum())

        search.step(loss)
        return {name: value.detach() for name, value in moving.items()}
