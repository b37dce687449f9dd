"""FedAdam (FedOpt): FedAvg, with Adam at the server (Reddi et al. 2021).

Δ = Σ_i ρ_i w_i − w,   m ← β₁ m + (1 − β₁) Δ,   v ← β₂ v + (1 − β₂) Δ²,   w ← w + η m / (√v + τ)

m and v are the server's own: they are in checkpoints, and no client is sent them.
"""

import torch
from pydantic import Field

from fedspm.algorithms.fedavg import FedAvg
from fedspm.base.schema import Strict
from fedspm.base.tensors import Tensors
from fedspm.federated.exchange import Exchange


class FedAdam(FedAvg):
    server_only = frozenset({"adam"})

    class Options(Strict):
        server_rate: float = Field(0.01, gt=0, description="η, the server's learning rate")
        beta1: float = Field(0.9, ge=0, lt=1, description="β₁, decay of the mean of changes")
        beta2: float = Field(0.99, ge=0, lt=1, description="β₂, decay of the mean of squared changes")
        tau: float = Field(1e-3, gt=0, description="τ, below which a step is no longer enlarged")

    def start(self, exchange: Exchange) -> Tensors:
        shared = super().start(exchange)
        stepped = {name: value for name, value in self.weights(shared).items() if self.steps_on(name)}
        return shared | {
            f"adam.{moment}.{name}": torch.zeros_like(value) for moment in "mv" for name, value in stepped.items()
        }

    def steps_on(self, name: str) -> bool:
        """Running statistics are averaged, and what is frozen stays."""
        return name not in self.predictor.fixed

    def server_round(self, shared: Tensors, exchange: Exchange) -> Tensors:
        mean = exchange(self.update, shared).result()
        state = shared | mean
        for name in filter(self.steps_on, mean):
            change = mean[name] - shared[name]
            m = torch.lerp(change, shared[f"adam.m.{name}"], self.options.beta1)
            v = torch.lerp(change.square(), shared[f"adam.v.{name}"], self.options.beta2)
            step = self.options.server_rate * m / (v.sqrt() + self.options.tau)
            state |= {name: shared[name] + step, f"adam.m.{name}": m, f"adam.v.{name}": v}
        return state
