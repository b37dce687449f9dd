"""The one verb between a server and its clients. An algorithm says `exchange(step, shared)`; an engine does it."""

from collections.abc import Callable
from typing import Protocol, TypeVar, runtime_checkable

from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.federated.replies import Reply

Answer = TypeVar("Answer", bound=Reply)
ClientStep = Callable[..., tuple[Answer, Tensors]]  # step(client, shared, …) → (reply, the new private state)


@runtime_checkable
class Exchange(Protocol):
    """Runs a client step at every client and merges the replies in client order. Engines implement it."""

    @property
    def round(self) -> int: ...

    def __call__(self, step: "ClientStep[Answer]", shared: Tensors, **arguments: Tensor) -> Answer: ...
