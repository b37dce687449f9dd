"""What methods with hidden components share: the E-step around their posterior, exact or incremental.

The exact E-step sends all local rows through the encoders. The incremental one sends none: it keeps what each row said
of its components (`evidence`, a table a part of eq. 7) when a local step last had it in a batch.
"""

from abc import abstractmethod
from collections.abc import Mapping
from dataclasses import replace
from typing import ClassVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.federated.algorithm import Exchange
from fedspm.federated.client import Client
from fedspm.federated.replies import Combined, Mean, PerClient
from fedspm.federated.steps import Asked
from fedspm.mixture.start import ComponentStart
from fedspm.nn.sgd import chunks

EVIDENCE = "evidence."  # how the tables are named in a client's private state
MIXING_FLOOR = 0.05  # a component that is nearly empty takes steps at most 20 times as large as printed


class ComponentAlgorithm(ComponentStart):
    has_components = True
    leaves: ClassVar[Mapping[str, frozenset[str]]] = {**ComponentStart.leaves, "expect": frozenset({"tau"})}
    bookkeeping = ComponentStart.bookkeeping | {"evidence"}

    def shapes(self) -> dict[str, torch.Size]:
        return super().shapes() | {"tau": torch.Size((self.task.clients, self.settings.components))}

    def init_private(self, client: Client) -> Tensors:
        return {"mixing": torch.full((self.settings.components,), 1 / self.settings.components)}

    def asks(self) -> dict[str, Asked]:
        """Of a round either its two exchanges or the one for both."""
        unused = {"expect", "maximise"} if self.settings.wire.exchanges == 1 else {"advance"}
        return {step: asked for step, asked in super().asks().items() if step not in unused}

    def em_round(self, shared: Tensors, exchange: Exchange) -> tuple[Tensors, Float[Tensor, "m c"]]:
        """The averaged update and τ: in two exchanges as printed, or in one with the others' τ of the round before."""
        if self.settings.wire.exchanges == 1:
            answer = exchange(self.advance, shared)
            return answer.mean.result(), answer.rows.stack("tau", self.task.names, shared["tau"])
        tau = exchange(self.expect, shared).stack("tau", self.task.names, shared["tau"])
        return exchange(self.maximise, shared, tau=tau).result(), tau

    @abstractmethod
    def maximise(self, client: Client, shared: Tensors, tau: Float[Tensor, "m c"]) -> tuple[Mean, Tensors]:
        """M-step, from everybody's τ."""

    def advance(self, client: Client, shared: Tensors) -> tuple[Combined, Tensors]:
        """E-step and M-step at once, with the client's own fresh τ and the others' last one."""
        rows, private = self.expect(client, shared)
        tau = shared["tau"].clone()
        tau[client.index] = rows.rows[client.name]["tau"]
        update, private = self.maximise(replace(client, private=private), shared, tau)
        return Combined(update, rows), private

    @abstractmethod
    def evidence(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Tensors:
        """What some rows of a client say of its components, in log space, by part of the posterior: (n, C) each."""

    @abstractmethod
    def posterior(self, mixing: Float[Tensor, " c"], evidence: Tensors) -> Float[Tensor, "n c"]:
        """Responsibilities, from a client's mixing weights and its rows' evidence."""

    def expect(self, client: Client, shared: Tensors) -> tuple[PerClient, Tensors]:
        """E-step over all local rows; those that k-means gave are kept for the first rounds."""
        private = dict(client.private)
        if self.settings.components == 1:
            private["responsibilities"] = torch.ones(client.n, 1, device=client.x.device)
        elif not self.held(client.round):
            kept = evidence_of(private)
            evidence = self.refreshed(client, shared, kept) if kept else self.all_evidence(client, shared)
            private["responsibilities"] = self.posterior(private["mixing"], evidence)
            if self.settings.em.e_step == "incremental":
                private |= as_private(evidence)
        return self.report_tau(client, private["responsibilities"]), private

    def refreshed(self, client: Client, shared: Tensors, evidence: Tensors) -> Tensors:
        """The kept evidence, with what no batch can note on its way; by default there is no such part."""
        return evidence

    @torch.no_grad()
    def all_evidence(self, client: Client, shared: Tensors) -> Tensors:
        rows = zip(chunks(client.x), chunks(client.y), strict=True)
        pieces = [self.evidence(client, shared, x, y) for x, y in rows]
        return {part: torch.cat([piece[part] for piece in pieces]) for part in pieces[0]}

    def row_scale(self, mixing: Float[Tensor, "*m c"]) -> Float[Tensor, "*m c"] | None:
        """A component's head and tilt get a π share of the gradient; divided by π, C equal components step like one."""
        return 1 / mixing.clamp_min(MIXING_FLOOR) if self.settings.em.scaled_steps else None

    def head_scale(self, mixing: Float[Tensor, " c"]) -> Tensors | None:
        step = self.row_scale(mixing)
        return None if step is None else {"head.weight": step[:, None, None], "head.bias": step[:, None]}


def evidence_of(private: Tensors) -> Tensors:
    """The tables of the incremental E-step by part; none with the exact one."""
    return {name.removeprefix(EVIDENCE): table for name, table in private.items() if name.startswith(EVIDENCE)}


def as_private(evidence: Tensors | None) -> Tensors:
    return {EVIDENCE + part: table for part, table in (evidence or {}).items()}


def notebook(private: Tensors) -> Tensors | None:
    """A copy of the tables, for the batches of an M-step to note in; None with the exact E-step."""
    return {part: table.clone() for part, table in evidence_of(private).items()} or None


def note(evidence: Tensors | None, part: str, row: Int[Tensor, " b"], said: Float[Tensor, "b c"]) -> None:
    """What a batch says, where tables are kept."""
    if evidence and part in evidence:
        evidence[part][row] = said.detach()
