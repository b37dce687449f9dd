"""Flat dicts of tensors with dotted names: a checkpoint, a message and a state as they stand."""

import hashlib
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


def tensors_digest(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of names, types, shapes and values: by which frozen tensors are known."""
    found = hashlib.sha256()
    for name, value in sorted(plain(tensors).items()):
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.flatten().view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    return found.hexdigest()
