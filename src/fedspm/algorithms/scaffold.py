"""SCAFFOLD: control variates take the drift out of local steps (Karimireddy et al. 2020).

Local steps of client i:   y ← y − η (g_i(y) − c_i + c),   K of them, from y = w
Afterwards (option II):    c_i⁺ = c_i − c + (w − y) / (K η)
Server, S the clients that answered, N all:

    w ← w + η_g (mean_S y_i − w),      c ← c + |S| / N · mean_S (c_i⁺ − c_i)

c_i stays at client i; what it sends of it is c + (c_i⁺ − c_i), so that the mean over S is c + mean_S (c_i⁺ − c_i).
"""

import torch
from pydantic import Field
from torch import Tensor

from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.schema import Strict
from fedspm.base.tensors import Tensors
from fedspm.federated.client import Client
from fedspm.federated.exchange import Exchange
from fedspm.federated.replies import Mean
from fedspm.federated.steps import step
from fedspm.federated.uploads import Update
from fedspm.nn.sgd import Batch

CONTROL = "control."


class Scaffold(FedAvg):
    bookkeeping = FedAvg.bookkeeping | {"control"}

    class Options(Strict):
        server_rate: float = Field(1.0, gt=0, description="η_g, the server's step")

    def start(self, exchange: Exchange) -> Tensors:
        shared = super().start(exchange)
        return shared | self.controls(shared)

    def controls(self, state: Tensors) -> Tensors:
        """Zeros for every tensor that is descended."""
        descended = {name: value for name, value in self.weights(state).items() if name not in self.predictor.fixed}
        return {CONTROL + name: torch.zeros_like(value) for name, value in descended.items()}

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        answer = exchange(self.update, shared)
        mean, share = answer.result(), len(answer.answered) / self.task.clients
        stepped = {}
        for name, value in mean.items():
            if name in self.predictor.fixed:
                stepped[name] = value  # running statistics are averaged
            else:
                step = share if name.startswith(CONTROL) else self.options.server_rate
                stepped[name] = torch.lerp(shared[name], value, step)
        return shared | stepped

    @step(uploads={"predictor": Update(), "head": Update(), "control": Update()})
    def update(self, client: Client, shared: Tensors) -> tuple[Mean, Tensors]:
        """Local steps with the drift taken out; of the client's control the change, added to the server's."""
        c = {name: shared[name] for name in shared if name.startswith(CONTROL)}
        own = {name: client.private.get(name, torch.zeros_like(value)) for name, value in c.items()}
        correction = {name.removeprefix(CONTROL): c[name] - own[name] for name in c}
        start, rate = self.weights(shared), self.round_rate("predictor", client.round)

        def loss(w: Tensors, batch: Batch) -> Tensor:
            """Its gradient is g_i − c_i + c."""
            drift = sum((batch.constants[name] * w[name]).sum() for name in batch.constants)
            return self.loss(w, batch, shared) + drift

        moved = self.local_solver(client, "supervised", self.predictor, start, loss, momentum=0.0, constants=correction)
        length = max(self.settings.predictor.steps * rate, 1e-12)
        change = {
            name: (start[inner] - moved[inner]) / length - c[name]
            for name in c
            for inner in [name.removeprefix(CONTROL)]
        }
        private = {name: own[name] + change[name] for name in c}
        return Mean(1, **moved, **{name: c[name] + change[name] for name in c}), client.private | private
