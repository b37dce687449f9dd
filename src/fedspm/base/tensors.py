"""Flat dicts of tensors with dotted names: a checkpoint, a message and a state as they stand."""

from collections.abc import Mapping

import torch
from torch import Tensor

Tensors = dict[str, Tensor]  # a flat dict with dotted names: a checkpoint and a message as it stands


def plain(tensors: Mapping[str, Tensor]) -> Tensors:
    """As a file or a message takes them: on the CPU, in one piece, without history."""
    return {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}


def moved(tensors: Mapping[str, Tensor], device: torch.device) -> Tensors:
    """To where networks are computed. Doubles stay on the CPU, where everything that needs them is: MPS has none."""
    return {name: each if each.dtype is torch.float64 else each.to(device) for name, each in tensors.items()}
