"""Normalisation by name."""

from torch import nn

CHANNELS_PER_GROUP = 8


class BatchNorm2d(nn.BatchNorm2d):
    """Without the batch counter, which nothing reads: every tensor of the state is then one that can be averaged."""

    def __init__(self, channels: int):
        super().__init__(channels)
        self.register_buffer("num_batches_tracked", None)


def normalisation(name: str, channels: int) -> nn.Module:
    if name == "group":
        return nn.GroupNorm(max(1, channels // CHANNELS_PER_GROUP), channels)
    if name == "batch":
        return BatchNorm2d(channels)
    return nn.Identity()
