"""What methods with hidden components share: the E-step around their posterior."""

from abc import abstractmethod
from collections.abc import Mapping
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from fedspm.core.local import Client, chunks
from fedspm.core.replies import Rows, Tensors
from fedspm.mixture.start import ComponentStart

MIXING_FLOOR = 0.05  # a component that is nearly empty takes steps at most 20 times as large as printed


class ComponentAlgorithm(ComponentStart):
    mixes = True
    leaves: ClassVar[Mapping[str, frozenset[str]]] = {**ComponentStart.leaves, "expect": frozenset({"tau"})}

    def enrol(self, client: Client) -> Tensors:
        return {"mixing": torch.full((self.settings.components,), 1 / self.settings.components)}

    @abstractmethod
    def posterior(self, client: Client, shared: Tensors, x: Tensor, y: Tensor) -> Float[Tensor, "n c"]:
        """Responsibilities of some rows of a client."""

    def expect(self, client: Client, shared: Tensors) -> tuple[Rows, Tensors]:
        """E-step over all local rows; those that k-means gave are kept for the first rounds."""
        if self.settings.components == 1:
            responsibilities = torch.ones(client.n, 1, device=client.x.device)
        elif self.held(client.round):
            responsibilities = client.private["responsibilities"]
        else:
            with torch.no_grad():
                rows = zip(chunks(client.x), chunks(client.y), strict=True)
                responsibilities = torch.cat([self.posterior(client, shared, x, y) for x, y in rows])
        return self.report_tau(client, responsibilities), client.private | {"responsibilities": responsibilities}

    def row_scale(self, mixing: Float[Tensor, "*m c"]) -> Float[Tensor, "*m c"] | None:
        """A component's head and tilt get a π share of the gradient; divided by π, C equal components step like one."""
        return 1 / mixing.clamp_min(MIXING_FLOOR) if self.settings.em.scaled_steps else None

    def head_scale(self, mixing: Float[Tensor, " c"]) -> Tensors | None:
        step = self.row_scale(mixing)
        return None if step is None else {"head.weight": step[:, None, None], "head.bias": step[:, None]}
