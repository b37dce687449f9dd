"""The router's encoder for images: a light convolutional network (LeCun et al. 1998).

No normalisation by default: brightness and colour are what tells clients apart.
"""

import torch
from torch import Tensor, nn
from torch.nn.functional import max_pool2d

SMALLEST = 7  # pixels a side: a smaller image is nothing after a stride and two poolings


class CNN(nn.Module):
    def __init__(self, shape: tuple[int, ...], dimension: int, widths: tuple[int, int] = (16, 32)):
        super().__init__()
        self.conv1 = nn.Conv2d(shape[0], widths[0], 3, stride=2, padding=1)
        self.conv2 = nn.Conv2d(widths[0], widths[1], 3, padding=1)
        with torch.no_grad():
            flat = self._features(torch.zeros(1, *shape)).shape[1]
        self.project = nn.Linear(flat, dimension)

    def _features(self, x: Tensor) -> Tensor:
        hidden = max_pool2d(torch.relu_(self.conv1(x)), 2)
        return max_pool2d(torch.relu_(self.conv2(hidden)), 2).flatten(1)

    def forward(self, x: Tensor) -> Tensor:
        projected: Tensor = self.project(self._features(x))
        return projected
