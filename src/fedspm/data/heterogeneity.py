"""Dual heterogeneity, as the paper constructs it, on any set of images: label, covariate and concept shift."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from fedspm.base.randomness import numpy_generator
from fedspm.data.catalog.cache import rows_of
from fedspm.data.federation import Federation
from fedspm.data.part import Part, Truth
from fedspm.data.partition import draw_mixing, partition_by_class
from fedspm.data.shifts import client_offset, shift_component

SHOWN = 16  # clients in the picture of one image under all shifts


@dataclass(frozen=True)
class Heterogeneity:
    clients: int = 8
    true_components: int = 2
    alpha_inter: float = 1.0
    alpha_intra: float = 2.0
    test_fraction: float = 0.3
    colour: float = 0.3
    brightness: float = 0.5
    inversion: bool = True  # component 1 is the negative of the image
    permutation: bool = True  # every (client, component) has label names of its own
    inverted_channels: str = "all"  # or "green"


CHANNELS = {"all": (0, 1, 2), "green": (1,)}
PIECE = 1 << 20  # values at a time


def impose(images: np.ndarray, labels: np.ndarray, names: list[str], how: Heterogeneity, seed: int) -> Federation:
    """A federation from uint8 images (n, height, width) or (n, height, width, 3), in three channels, x ∈ [0, 1]."""
    mixing = draw_mixing(how.clients, how.true_components, how.alpha_intra, seed)
    naming = _naming(how, len(names), seed) if how.permutation else None
    train, test, train_truth, test_truth = [], [], [], []
    for i, share in enumerate(partition_by_class(labels, how.clients, how.alpha_inter, seed)):
        random = numpy_generator(seed, "client", i)
        rows = random.permutation(share)
        component = torch.from_numpy(random.choice(how.true_components, size=len(rows), p=mixing[i]))
        x = _pixels(images, rows, component, i, how)
        y = torch.from_numpy(labels[rows].astype(np.int64))
        if naming is not None:
            y = naming[i, component, y]
        held = round(how.test_fraction * len(rows))
        train.append(Part(x[held:], y[held:]))
        test.append(Part(x[:held], y[:held]))
        train_truth.append(component[held:])
        test_truth.append(component[:held])
    truth = Truth(tuple(train_truth), tuple(test_truth), torch.from_numpy(mixing), shifted(images[0], how), naming)
    clients = tuple(f"client-{i}" for i in range(how.clients))
    return Federation(clients, np.asarray(names), tuple(train), tuple(test), truth).checked()


def shifted(image: np.ndarray, how: Heterogeneity) -> Tensor:
    """One image as every component and the first sixteen clients show it: (components, clients, 3, height, width)."""
    component = torch.arange(how.true_components)
    same = np.zeros(how.true_components, dtype=np.int64)
    return torch.stack([_pixels(image[None], same, component, i, how) for i in range(min(how.clients, SHOWN))], dim=1)


def own_name(client: str, label: object, means: object | None) -> str:
    """A label in words where every client has names of its own: whose it is, and what it stands for if it is known."""
    return f"{client}'s own name: {label}" if means is None else f"{client}'s name for {means}: {label}"


def _naming(how: Heterogeneity, classes: int, seed: int) -> Tensor:
    """Concept shift: σ_ic, a random permutation of the classes for every client and component, so that y → σ_ic(y)."""
    drawn = [
        [numpy_generator(seed, "permutation", i, c).permutation(classes) for c in range(how.true_components)]
        for i in range(how.clients)
    ]
    return torch.from_numpy(np.asarray(drawn, dtype=np.int64))


def _pixels(images: np.ndarray, rows: np.ndarray, component: Tensor, client: int, how: Heterogeneity) -> Tensor:
    x = as_pixels(images, rows)
    _, channels, height, width = x.shape
    offset = client_offset(client, (channels, height, width), how.colour, how.brightness)
    together = max(1, PIECE // (channels * height * width))
    for part, of in zip(x.split(together), component.split(together), strict=True):
        for c in of.unique().tolist():
            shown = c if how.inversion else c & ~1
            mine = of == c
            part[mine] = shift_component(part[mine], shown, CHANNELS[how.inverted_channels])
        part.add_(offset).clamp_(0, 1)
    return x


def as_pixels(images: np.ndarray, rows: np.ndarray) -> Tensor:
    """Rows of uint8 images as (n, 3, height, width) in [0, 1], without a second copy of more than a few of them."""
    height, width = images.shape[1:3]
    together = max(1, PIECE // (3 * height * width))
    x = torch.empty(len(rows), 3, height, width, memory_format=torch.channels_last)
    for start in range(0, len(rows), together):
        grey_or_rgb = torch.from_numpy(rows_of(images, rows[start : start + together]))
        part = grey_or_rgb[:, None] if grey_or_rgb.ndim == 3 else grey_or_rgb.permute(0, 3, 1, 2)
        x[start : start + together].copy_(part).div_(255)
    return x
