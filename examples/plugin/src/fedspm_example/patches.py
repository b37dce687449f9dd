"""An encoder: the image cut into patches, each mapped by the same linear layer, then mixed by another."""

from torch import Tensor, nn


class Patches(nn.Module):
    def __init__(self, shape: tuple[int, ...], dimension: int, patch: int = 4, width: int = 16):
        super().__init__()
        channels, height, extent = shape
        self.cut = nn.Conv2d(channels, width, patch, stride=patch)
        self.mix = nn.Linear(width * (height // patch) * (extent // patch), dimension)

    def forward(self, x: Tensor) -> Tensor:
        return self.mix(self.cut(x).relu().flatten(1))
