"""Flat dicts of tensors with dotted names, in memory and in safetensors files: a checkpoint, a message, a state."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor

from fedspm.base.errors import DamagedFile
from fedspm.base.files import sha256, write_atomically

Tensors = dict[str, Tensor]  # a flat dict with dotted names: a checkpoint and a message as it stands
OTHER_DIGEST = "is damaged: its SHA-256 is not the one that was written down with it"


class TensorFile(NamedTuple):
    """What a safetensors file holds: tensors in the order of their names, and the strings beside them."""

    tensors: Tensors
    metadata: dict[str, str]


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


def tensor_bytes(tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> bytes:
    """The content of a safetensors file."""
    return bytes(save(plain(tensors), metadata))


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str] | None = None) -> None:
    """Write a safetensors file that only its owner may read, whole or not at all."""
    write_atomically(path, tensor_bytes(tensors, metadata), private=True)


def read_tensors(path: Path, digest: str | None = None, *, other_digest: str = OTHER_DIGEST) -> TensorFile:
    """Read a safetensors file, or raise a `DamagedFile` that names it.

    If a SHA-256 is given as `digest`, the file must have it; `other_digest` is what the error says of a file that has
    another. The file is read, not mapped: one that is replaced meanwhile would pull a mapping away.
    """
    try:
        content = path.read_bytes()
        if digest not in (None, sha256(content)):
            raise DamagedFile(f"{path} {other_digest}")
        tensors = load(content)
    except FileNotFoundError as error:
        raise DamagedFile(f"{path} is missing") from error
    except (OSError, safetensors.SafetensorError) as error:
        raise DamagedFile(f"{path} is damaged: {error}") from error
    return TensorFile(dict(sorted(tensors.items())), metadata_of(content))


def metadata_of(content: bytes) -> dict[str, str]:
    """The strings that a safetensors file holds besides its tensors; `content` must be one."""
    length = int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8 : 8 + length]).get("__metadata__", {})
    return found
