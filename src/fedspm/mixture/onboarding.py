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

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Mean, PerClient
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.mixture import em, kmeans_init
from fedspm.mixture.model import HEAD, TILT, Features, initial_head, log_likelihood, log_ratio, of_label
from fedspm.mixture.sketch import Gradient, Others, Sketch, Whose, among, baseline_gradient, log_total
from fedspm.nn.encoder import Encoder
from fedspm.nn.sgd import Batch, chunks

ROUNDS = 10  # of EM at the newcomer
STEPS = 200  # SGD steps on its head in each
LOOKS = 25  # iterations of L-BFGS on its tilt in each
RIDGE = 2e-4  # on ξᵀh, for a newcomer that h tells apart from everybody: its ξ would grow for ever
NORMALISER = ("tilt.gamma",)  # what moves when ξ stays
CLUSTERS = 64  # of a client's rows in the sketch, at most


@runtime_checkable
class RoutingMethod(Protocol):
    """What onboarding needs of a method: its encoders, and the steps that ask those who were there before."""

    settings: Settings
    task: Task
    predictor: Encoder
    router: Encoder

    def standardise(self, shared: Tensors, x: Tensor) -> Tensor: ...

    def learning_rate(self, role: str) -> float: ...

    def posterior(self, mixing: Float[Tensor, " c"], evidence: Tensors) -> Float[Tensor, "n c"]: ...

    def summarise(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]: ...

    def cache_features(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]: ...

    def baseline_gradient(
        self, client: Client, shared: Tensors, xi: Tensor, gamma: Tensor, log_tau: Tensor
    ) -> tuple[Mean, Tensors]: ...


class Onboarding:
    """How a client joins a trained model of `method`."""

    def __init__(self, method: RoutingMethod):
        self.method = method
        self.settings, self.task = method.settings, method.task

    # -- the server's side -------------------------------------------------------------------------------------------

    def sketch(self, shared: Tensors, exchange: Exchange) -> Sketch:
        """Of everybody's rows; a client that does not answer is not in it."""
        sketch = self.sketched(exchange(self.method.summarise, shared), self.task.names)
        return sketch.moved(self.among_counted(shared), among(shared, sketch.here))

    def sketched(self, replies: PerClient, names: Sequence[str]) -> Sketch:
        count, mass, total = (
            replies.stack(name, names, empty.expand(len(names), *empty.shape))
            for name, empty in zip(("count", "mass", "sum"), self._nothing(), strict=True)
        )
        centre = total / count.clamp_min(1)[..., None]
        return Sketch(count, mass, centre.unflatten(2, (self.method.router.copies, -1)))

    def counted(self) -> Whose:
        """Those with enough rows for sums over them to leave."""
        return torch.tensor(self.task.counts) >= self.settings.min_count

    def among_counted(self, shared: Tensors) -> Tensors:
        """What is shared, as if only those were there whose rows are in the sums."""
        return among(shared, self.counted())

    def everybody(self, shared: Tensors, exchange: Exchange) -> Others:
        """The others' part of −Q̃₂ from the sites themselves, one exchange per step."""
        exchange(self.method.cache_features, shared)

        def asked(tilt: Tensors) -> Tensors:
            xi, gamma, log_tau = tilt["tilt.xi"], tilt["tilt.gamma"], tilt["log_tau"]
            return exchange(self.method.baseline_gradient, shared, xi=xi, gamma=gamma, log_tau=log_tau).totals()

        return Others(self.counted(), asked)

    # -- at a client that was there before ---------------------------------------------------------------------------

    def features(self, client: Client, shared: Tensors) -> Tensors:
        """h and log D of all rows of a client."""
        features = self.all_features(self.method.router, shared, client.x)
        return {"h": features, "log_total": log_total(self.among_counted(shared), features)}

    def gradient_at(self, client: Client, tilt: Tensors) -> Tensors:
        """What a client's rows say of the newcomer's tilt, from at least `min_count` of them; `features` came first."""
        shown = client.n if client.n >= self.settings.min_count else 0
        features, total = client.private["h"][:shown], client.private["log_total"][:shown]
        return baseline_gradient(tilt, features, total, torch.ones_like(total).double())

    def summary(self, client: Client, shared: Tensors) -> PerClient:
        """k-means of h: count, Σ h and Σ r of clusters with at least `min_count` rows each, padded with zeros."""
        features = self.all_features(self.method.router, shared, client.x)
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
        total = torch.zeros(CLUSTERS, self.method.router.copies * self.method.router.dimension, dtype=torch.float64)
        return total.new_zeros(CLUSTERS), total.new_zeros(CLUSTERS), total

    @torch.no_grad()
    def all_features(self, encoder: Encoder, shared: Tensors, x: Tensor) -> Features:
        """What an encoder says of all rows; on the CPU, where sums are taken in double precision."""
        return torch.cat([encoder(shared, self.method.standardise(shared, piece)).cpu() for piece in chunks(x)])

    # -- at the newcomer ---------------------------------------------------------------------------------------------

    def admit(self, client: Client, shared: Tensors, others: Others) -> tuple[Tensors, Tensors]:
        """EM over the newcomer's own parameters: its rows of γ, ξ and τ, and its private state.

        Components mean the same for everybody, so its first responsibilities are those that the other clients'
        components would take for its rows.
        """
        g, h = (self.all_features(encoder, shared, client.x) for encoder in (self.method.predictor, self.method.router))
        total = log_total(among(shared, others.here), h)
        ratio = log_ratio(shared["tilt.xi"], shared["tilt.gamma"], h) + shared["tau"].log()
        responsibilities = torch.softmax(torch.logsumexp(ratio, dim=1), dim=1)
        mixing = responsibilities.mean(0)
        head = initial_head(self.settings.components, self.task.classes, g.shape[2], client.generator("head"))
        row = {name: shared[name].double().mean(0) for name in TILT}
        for number in range(ROUNDS):
            if number:
                label = of_label(log_likelihood(head["head.weight"], head["head.bias"], g), client.y)
                own = log_ratio(row["tilt.xi"].float(), row["tilt.gamma"].float(), h)
                responsibilities = self.method.posterior(mixing, {"ratio": own, "label": label})
            tau = responsibilities.double().sum(0)
            mixing = em.mixing_weights(tau, client.n).float()
            head = self.fitted_head(replace(client, round=number, x=g), head, responsibilities, mixing)
            row = self.fitted_tilt(row, tau, responsibilities, h, total, others.gradient)
        row = self.fitted_tilt(row, tau, responsibilities, h, total, others.gradient, NORMALISER)
        private = head | {"mixing": mixing, "responsibilities": responsibilities}
        return {name: value.float() for name, value in (row | {"tau": tau}).items()}, private

    def misfit(self, client: Client, shared: Tensors, row: Tensors, private: Tensors, others: Others) -> float:
        """By how much γ is off the exact normaliser of its ξ, at most over components: what a sketch costs"""
        h = self.all_features(self.method.router, shared, client.x)
        tilt = {name: row[name].double() for name in TILT}
        tau, w = row["tau"].double(), private["responsibilities"]
        exact = self.fitted_tilt(tilt, tau, w, h, log_total(among(shared, others.here), h), others.gradient, NORMALISER)
        return float((tilt["tilt.gamma"] - exact["tilt.gamma"]).abs().max())

    def fitted_head(self, client: Client, head: Tensors, responsibilities: Tensor, mixing: Tensor) -> Tensors:
        """α, β by ascent on Q₁; the client's x are its features g already"""

        def objective(moving: Tensors, batch: Batch) -> Tensor:
            likelihood = log_likelihood(moving["head.weight"], moving["head.bias"], batch.x)
            return em.supervised_loss(batch.extra["responsibilities"], of_label(likelihood, batch.y))

        block = self.settings.predictor
        return client.descend(
            "supervised",
            {name: head[name] for name in HEAD},
            objective,
            client.batches("supervised", block.batch_size, STEPS, responsibilities=responsibilities),
            learning_rate=self.method.learning_rate("predictor") * (1 - client.round / ROUNDS),
            momentum=block.momentum,
            scale=em.head_scale(mixing, self.settings.em.scaled_steps),
        )

    def fitted_tilt(
        self,
        row: Tensors,
        tau: Tensor,
        responsibilities: Tensor,
        h: Features,
        total: Tensor,
        others: Gradient,
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
            parts = [baseline_gradient(tilt, h, total, torch.ones_like(total).double()), others(tilt)]
            whole = {name: parts[0][name] + parts[1][name] for name in parts[0]}
            xi.grad = (whole["xi"] - target) / len(h) + ridge * xi
            gamma.grad = (whole["gamma"] - tau) / len(h)
            own = (target * xi).sum() + (tau * gamma).sum()
            return float((whole["value"] - own) / len(h) + ridge / 2 * xi.square().sum())

        search.step(loss)
        return {name: value.detach() for name, value in moving.items()}


@runtime_checkable
class Onboards(RoutingMethod, Protocol):
    """A method that clients can join after training: FedSPM, FedDRM."""

    onboarding: Onboarding
