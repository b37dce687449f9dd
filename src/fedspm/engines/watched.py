"""An exchange in this process that notes what every client sends, as a server would see it: for audits and previews."""

from collections.abc import Mapping
from dataclasses import dataclass

from torch import Tensor

from fedspm.base.tensors import Tensors
from fedspm.data.part import Part
from fedspm.federated.algorithm import Algorithm
from fedspm.federated.client import Client
from fedspm.federated.exchange import Answer, ClientStep
from fedspm.federated.gate import require_step, take_step
from fedspm.federated.replies import Combined, PerClient, Reply, merge
from fedspm.federated.transforms import decode


@dataclass(frozen=True)
class Watched:
    """What one client has sent in one step."""

    step: str
    client: str
    shared: Tensors  # as the client got it
    sent: Tensors  # as the server reads it: parameters, not changes


class WatchedExchange:
    """Implements `Exchange`, one client after the other. `rows` has the training and test rows of every client."""

    def __init__(
        self,
        algorithm: Algorithm,
        rows: Mapping[str, Mapping[str, Part]],
        privates: Mapping[str, Tensors] | None = None,
        round: int = 0,
    ):
        self.round, self.seen = round, list[Watched]()
        self._algorithm, self._rows = algorithm, rows
        self._privates = dict(privates or {})
        for name in () if privates else algorithm.task.names:
            self._privates[name] = algorithm.init_private(self._client(name, "train"))

    def __call__(self, step: ClientStep[Answer], shared: Tensors, **arguments: Tensor) -> Answer:
        algorithm = self._algorithm
        declared, shared = require_step(algorithm, step.__name__), algorithm.sent(shared)
        merged: Reply | None = None
        for name in algorithm.task.names:
            taken = take_step(step, declared, self._client(name, declared.rows), shared, arguments)
            self._privates[name] = taken.private
            reply = decode(algorithm.transforms, declared, shared, taken.reply)
            self.seen.append(Watched(declared.name, name, shared, tensors_of(reply, name)))
            merged = merge(merged, name, reply)
        return merged  # type: ignore[return-value]

    def _client(self, name: str, rows: str) -> Client:
        part, private = self._rows[name][rows], self._privates.get(name, {})
        index, seed = self._algorithm.task.names.index(name), self._algorithm.settings.seed
        return Client(name, index, part.x, part.y, private, self.round, seed)


def tensors_of(reply: Reply, client: str) -> Tensors:
    """Everything that one client's reply holds."""
    if isinstance(reply, Combined):
        return tensors_of(reply.mean, client) | tensors_of(reply.rows, client)
    return reply.rows.get(client, {}) if isinstance(reply, PerClient) else reply.as_sent()[1]
