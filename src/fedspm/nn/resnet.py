"""The predictor's encoder for images: a small residual network (He et al. 2016)."""

from itertools import pairwise

import torch
from torch import Tensor, nn

from fedspm.nn.normalisation import normalisation


class ResidualBlock(nn.Module):
    """Two 3 × 3 convolutions at half the resolution, and a 1 × 1 shortcut around them."""

    def __init__(self, channels_in: int, channels_out: int, normalise: str):
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride=2, padding=1, bias=False)
        self.norm1 = normalisation(normalise, channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.norm2 = normalisation(normalise, channels_out)
        self.shortcut = nn.Conv2d(channels_in, channels_out, 1, stride=2, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        hidden = torch.relu_(self.norm1(self.conv1(x)))
        return torch.relu_(self.norm2(self.conv2(hidden)).add_(self.shortcut(x)))


class ResNet(nn.Module):
    """Its last maps are averaged to a grid, not to a point: where something is tells classes apart early on.

    `grid=1` averages them to a point, as He et al. do.
    """

    def __init__(
        self,
        shape: tuple[int, ...],
        dimension: int,
        normalise: str = "group",
        grid: int = 4,
        widths: tuple[int, ...] = (16, 32, 64),
    ):
        super().__init__()
        self.stem = nn.Conv2d(shape[0], widths[0], 3, stride=2, padding=1, bias=False)
        self.norm = normalisation(normalise, widths[0])
        self.blocks = nn.Sequential(*(ResidualBlock(before, after, normalise) for before, after in pairwise(widths)))
        size = [min(grid, -(-extent // 2 ** len(widths))) for extent in shape[1:]]
        self.pool = nn.AdaptiveAvgPool2d((size[0], size[1]))
        self.project = nn.Linear(widths[-1] * size[0] * size[1], dimension)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.blocks(torch.relu_(self.norm(self.stem(x))))
        if hidden.shape[2:] != self.pool.output_size:
            hidden = self.pool(hidden)
        projected: Tensor = self.project(hidden.flatten(1))
        return projected
