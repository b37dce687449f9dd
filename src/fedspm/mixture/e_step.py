"""The E-step of a client: what its rows say of its components, exactly or from what was seen on the way."""

from collections.abc import Callable
from dataclasses import replace
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.replies import Combined, Mean, PerClient
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.mixture.heads import with_trained_heads
from fedspm.nn.sgd import chunks

PREFIX = "evidence."  # how the tables are named in a client's private state


class EvidenceCache:
    """What the rows last said of their components, in log space, by part of the posterior (label, ratio): (n, C) each.

    The incremental E-step keeps it. An M-step records what its batches say on their way, and the next E-step needs no
    pass over the rows. With the exact E-step there are no tables, and nothing is recorded.
    """

    def __init__(self, tables: Tensors):
        self.tables = tables

    @classmethod
    def copy_of(cls, private: Tensors) -> "EvidenceCache":
        """The tables of a client's private state, to be written to; without any always the same empty cache, so that
        the objectives of clients that have none are equal (`nn.vmap_solver`)."""
        tables = {
            name.removeprefix(PREFIX): table.clone() for name, table in private.items() if name.startswith(PREFIX)
        }
        return cls(tables) if tables else NO_CACHE

    def record(self, part: str, row: Int[Tensor, " b"], said: Float[Tensor, "b c"]) -> None:
        """What a batch says of its rows, where tables are kept."""
        if part in self.tables:
            self.tables[part][row] = said.detach()

    def private(self) -> Tensors:
        """As tensors of the client's private state."""
        return {PREFIX + part: table for part, table in self.tables.items()}


NO_CACHE = EvidenceCache({})
AUDITED = 64  # rows of a client that are looked at again in a round with the incremental E-step


@torch.no_grad()
def audit(
    client: Client,
    responsibilities: Float[Tensor, "n c"],
    of_rows: Callable[[Tensor, Tensor], Tensors],
    posterior: Callable[[Tensors], Float[Tensor, "b c"]],
) -> Float[Tensor, ""]:
    """An estimate of max_c |τ_c − exact τ_c| / n_i, from rows that are drawn at random and looked at again. These are
    not used for anything else, so that it is an estimate for all rows."""
    row = torch.randperm(client.n, generator=client.generator("audit"))[:AUDITED].to(client.y.device)
    exact = posterior(of_rows(client.x[row], client.y[row]))
    return (responsibilities[row] - exact).mean(0).abs().max()


@torch.no_grad()
def all_evidence(client: Client, of_rows: Callable[[Tensor, Tensor], Tensors]) -> Tensors:
    """What all rows of a client say of its components, by part; `of_rows` answers for some of them."""
    pieces = [of_rows(x, y) for x, y in zip(chunks(client.x), chunks(client.y), strict=True)]
    return {part: torch.cat([piece[part] for piece in pieces]) for part in pieces[0]}


def report_tau(client: Client, responsibilities: Float[Tensor, "n c"]) -> PerClient:
    """τ_ic = Σ_j w_ijc, the only thing that the server learns of the responsibilities."""
    return PerClient.of(client.name, tau=responsibilities.cpu().double().sum(0).float())


def incremental(settings: Settings, task: Task) -> bool:
    """Where a pass over all rows is half of a round, as it is for images, and where it is asked for."""
    return settings.em.e_step == "incremental" or (settings.em.e_step == "auto" and len(task.shape) > 1)


@runtime_checkable
class EMSteps(Protocol):
    """What the E-step and the one-exchange round need of a method."""

    settings: Settings
    task: Task

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
    client = replace(client, private=with_trained_heads(client.private))
    private = dict(client.private)
    if method.settings.components == 1:
        private["responsibilities"] = torch.ones(client.n, 1, device=client.x.device)
    elif not method.held(client.round):
        cached = EvidenceCache.copy_of(private).tables
        if cached:
            evidence = method.refreshed(client, shared, cached)
        else:
            evidence = all_evidence(client, lambda x, y: method.evidence(client, shared, x, y))
        private["responsibilities"] = w = method.posterior(private["mixing"], evidence)
        if incremental(method.settings, method.task):
            private |= EvidenceCache(evidence).private()
            private["audit"] = audit(
                client,
                w,
                lambda x, y: method.evidence(client, shared, x, y),
                lambda found: method.posterior(private["mixing"], found),
            )
    return report_tau(client, private["responsibilities"]), private


def both_steps(method: EMSteps, client: Client, shared: Tensors) -> tuple[Combined, Tensors]:
    """E-step and M-step at once, with the client's own fresh τ and the others' last one."""
    rows, private = method.expect(client, shared)
    tau = shared["tau"].clone()
    tau[client.index] = rows.rows[client.name]["tau"]
    update, private = method.maximise(replace(client, private=private), shared, tau)
    return Combined(update, rows), private
