"""The encoder for vectors: two hidden layers."""

import math

from torch import Tensor, nn


class MLP(nn.Module):
    def __init__(self, shape: tuple[int, ...], dimension: int, width: int = 64):
        super().__init__()
        self.flatten = nn.Flatten()
        self.hidden1 = nn.Linear(math.prod(shape), width)
        self.hidden2 = nn.Linear(width, width)
        self.project = nn.Linear(width, dimension)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.hidden1(self.flatten(x)).relu_()
        projected: Tensor = self.project(self.hidden2(hidden).relu_())
        return projected
