"""How many bytes a round sends, whatever engine carries them."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from torch import Tensor

from fedspm.base.tensors import Tensors


@dataclass
class Traffic:
    """Bytes of one round, by client.

    A tensor that clients already got in this round is not sent again: FedSPM's second exchange carries only τ.
    """

    to: Counter[str] = field(default_factory=Counter)  # from the server to a client
    of: Counter[str] = field(default_factory=Counter)  # from a client to the server
    _sent: dict[str, Tensor] = field(default_factory=dict, repr=False)

    @property
    def down(self) -> int:
        return self.to.total()

    @property
    def up(self) -> int:
        return self.of.total()

    def send(self, tensors: Tensors, clients: Iterable[str]) -> None:
        new = {name: tensor for name, tensor in tensors.items() if self._sent.get(name) is not tensor}
        self._sent |= new
        size = sum(tensor.nbytes for tensor in new.values())
        self.to.update(dict.fromkeys(clients, size))

    def receive(self, sizes: Mapping[str, int]) -> None:
        """Bytes of the replies that were used, by client."""
        self.of.update(sizes)

    def metrics(self) -> dict[str, object]:
        each = {name: {"down": self.to[name], "up": self.of[name]} for name in self.to}
        return {"bytes_down": self.down, "bytes_up": self.up, "bytes_of_clients": each}
