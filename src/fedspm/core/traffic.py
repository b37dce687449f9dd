"""How many bytes a round sends, whatever engine carries them."""

from dataclasses import dataclass, field

from torch import Tensor

from fedspm.core.replies import Reply, Tensors


@dataclass
class Traffic:
    """Bytes of one round, over all clients.

    A tensor that clients already got in this round is not sent again: FedSPM's second exchange carries only τ.
    """

    down: int = 0  # from the server to clients
    up: int = 0  # from clients to the server
    _sent: dict[str, Tensor] = field(default_factory=dict, repr=False)

    def send(self, tensors: Tensors, clients: int) -> None:
        new = {name: tensor for name, tensor in tensors.items() if self._sent.get(name) is not tensor}
        self._sent |= new
        self.down += clients * sum(tensor.nbytes for tensor in new.values())

    def receive(self, reply: Reply) -> None:
        self.up += reply.nbytes
