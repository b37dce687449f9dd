"""What methods with hidden components have in common: their state, and how the E-step is taken."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.replies import Combined, Mean, PerClient
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.mixture.e_step import EvidenceCache, all_evidence
from fedspm.mixture.first_responsibilities import FirstResponsibilities, report_tau

# What is written below each of these functions is when a step is asked for, in docs/what-leaves.md.


def in_one_exchange(algorithm: Algorithm) -> bool:
    """If `wire.exchanges` is 1."""
    return algorithm.settings.wire.exchanges == 1


def in_two_exchanges(algorithm: Algorithm) -> bool:
    """If `wire.exchanges` is 2."""
    return not in_one_exchange(algorithm)


class MixtureAlgorithm(FirstResponsibilities):
    """A method whose clients hold responsibilities of hidden components."""

    bookkeeping = Algorithm.bookkeeping | {"tau", "view", "responsibilities", "evidence"}

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

    def components_of(self, private: Tensors) -> Int[Tensor, " n"] | None:
        return private["responsibilities"].argmax(1) if "responsibilities" in private else None

    def mixing_of(self, private: Tensors) -> Float[Tensor, " c"] | None:
        return private.get("mixing")

    # -- the E-step --------------------------------------------------------------------------------------------------

    def refreshed(self, client: Client, shared: Tensors, evidence: Tensors) -> Tensors:
        """Cached evidence, with whatever no batch could record on its way; by default there is no such part."""
        return evidence


@runtime_checkable
class EMSteps(Protocol):
    """What the E-step and the one-exchange round need of a method."""

    settings: Settings

    def held(self, round: int) -> bool: ...

    def evidence(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Tensors:
        """What some rows of a client say of its components, in log space, by part of the posterior: (n, C) each."""

    def refreshed(self, client: Client, shared: Tensors, evidence: Tensors) -> Tensors: ...

    def posterior(self, mixing: Float[Tensor, " c"], evidence: Tensors) -> Float[Tensor, "n c"]:
        """Responsibilities, from a client's mixing weights and its rows' evidence."""

    def expect(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]: ...

    def maximise(self, client: Client, shared: Tensors, tau: Tensor) -> tuple[Mean, Tensors]: ...


def e_step(method: EMSteps, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
    """Responsibilities w of all rows, which stay in the private state, and τ, which leaves. Those that k-means gave are
    kept for the first rounds."""
    private, em = dict(client.private), method.settings.em
    if method.settings.components == 1:
        private["responsibilities"] = torch.ones(client.n, 1, device=client.x.device)
    elif not method.held(client.round):
        cached = EvidenceCache.copy_of(private).tables
        if cached:
            evidence = method.refreshed(client, shared, cached)
        else:
            evidence = all_evidence(client, lambda x, y: method.evidence(client, shared, x, y))
        private["responsibilities"] = method.posterior(private["mixing"], evidence)
        if em.e_step == "incremental":
            private |= EvidenceCache(evidence).private()
    return report_tau(client, private["responsibilities"]), private


def both_steps(method: EMSteps, client: Client, shared: Tensors) -> tuple[Combined, Tensors]:
    """E-step and M-step at once, with the client's own fresh τ and the others' last one."""
    rows, private = method.expect(client, shared)
    tau = shared["tau"].clone()
    tau[client.index] = rows.rows[client.name]["tau"]
    update, private = method.maximise(replace(client, private=private), shared, tau)
    return Combined(update, rows), private
