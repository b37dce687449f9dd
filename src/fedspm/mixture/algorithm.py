"""What methods with hidden components have in common: their state, and when a step is asked for."""

from collections.abc import Mapping

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from fedspm.base.errors import FedSPMError
from fedspm.base.tensors import Tensors
from fedspm.data.readers.draft import leaving_out
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.settings import Settings
from fedspm.federated.task import Task
from fedspm.mixture.first_responsibilities import FirstResponsibilities

# What is written below each of these functions is when a step is asked for, in docs/what-leaves.md.


def in_one_exchange(algorithm: Algorithm) -> bool:
    """If `wire.exchanges` is 1."""
    return algorithm.settings.wire.exchanges == 1


def in_two_exchanges(algorithm: Algorithm) -> bool:
    """If `wire.exchanges` is 2."""
    return not in_one_exchange(algorithm)


class MixtureAlgorithm(FirstResponsibilities):
    """A method whose clients hold responsibilities of hidden components."""

    bookkeeping = Algorithm.bookkeeping | {"tau", "view", "responsibilities", "evidence", "audit"}

    def __init__(self, settings: Settings, task: Task, networks: Mapping[str, nn.Module] | None = None):
        super().__init__(settings, task, networks)
        if few := {name: n for name, n in zip(task.names, task.counts, strict=True) if n < settings.components}:
            said = ", ".join(f"client {name!r} has {n} training rows" for name, n in few.items())
            raise FedSPMError(
                f"{said}, fewer than the {settings.components} components; use fewer components or leave the client "
                f"out ({leaving_out(list(few))})"
            )

    def shapes(self) -> dict[str, torch.Size]:
        return super().shapes() | {"tau": torch.Size((self.task.clients, self.settings.components))}

    def init_private(self, client: Client) -> Tensors:
        return {"mixing": torch.full((self.settings.components,), 1 / self.settings.components)}

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
