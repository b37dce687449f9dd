"""Covariate shift by construction: what a client and a hidden component do to the pixels of an image.

The order is the component's transformation, the client's colour, the client's brightness, clipping to [0, 1].
The eight clients of the paper are the binary combinations of three directions, the bits of the client index:

    bit 0   colour       red up and blue down · or the reverse
    bit 1   brightness   from the top         · from the bottom
    bit 2   brightness   from the left        · from the right

Beyond eight clients the directions repeat with another strength: client i has the directions of i mod 8 and the
strength 1, 1/2, 3/4, 1/4, 7/8, … (one minus the van der Corput sequence at i // 8), so that no two clients are alike.
Components 0 and 1 are the image and its negative; further ones are turned and mirrored as well, see `shift_component`.
"""

import torch
from jaxtyping import Float
from torch import Tensor

Images = Float[Tensor, "n channels height width"]


def shift_component(x: Images, component: int, inverted_channels: tuple[int, ...]) -> Images:
    """Bit 0 of the component inverts, bits 1–2 turn by 180° or mirror, the rest rolls sideways by an eighth each."""
    if component & 1:
        x = x.clone()
        for channel in inverted_channels:
            x[:, channel] = 1 - x[:, channel]
    flips = ((), (2, 3), (3,), (2,))[component >> 1 & 3]
    if flips:
        x = x.flip(flips)
    if roll := component >> 3:
        x = x.roll(roll * max(1, x.shape[3] // 8), 3)
    return x


def strength(client: int) -> float:
    """1 for the first eight clients, then 1/2, 3/4, 1/4, 7/8, 3/8, … for every further eight."""
    corput, base, level = 0.0, 0.5, client // 8
    while level:
        corput, base, level = corput + base * (level & 1), base / 2, level >> 1
    return 1.0 - corput


def directions(client: int) -> str:
    """The client's three directions in words, and their strength where it is not one."""
    words = [("red", "blue")[client & 1], ("top", "bottom")[client >> 1 & 1], ("left", "right")[client >> 2 & 1]]
    return "\n".join(words if client < 8 else [*words, f"× {strength(client):g}"])


def client_offset(client: int, shape: tuple[int, int, int], colour: float, brightness: float) -> Float[Tensor, "c h w"]:
    """What client i adds to every image: colour by channel, and a ramp that falls from the favoured edge and side."""
    channels, height, width = shape
    offset = torch.zeros(shape)
    if channels == 3:
        sign = -1.0 if client & 1 else 1.0
        offset += sign * colour * torch.tensor([1.0, 0.0, -1.0])[:, None, None]
    vertical = torch.linspace(1, 0, height)[:, None]
    horizontal = torch.linspace(1, 0, width)[None, :]
    if client & 2:
        vertical = vertical.flip(0)
    if client & 4:
        horizontal = horizontal.flip(1)
    offset += brightness * vertical + brightness * horizontal - brightness / 2
    return strength(client) * offset
