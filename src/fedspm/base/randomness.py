"""Randomness derived from names, never from a global generator.

The same key gives the same stream in any process, on any engine, before and after a crash.
"""

import hashlib

import numpy as np
import torch

Key = str | int


def seed_of(*key: Key) -> int:
    """A 63-bit seed from a key such as (seed, client name, round, step)."""
    return int.from_bytes(_digest(*key)[:8], "big") >> 1


def _digest(*key: Key) -> bytes:
    parts = (f"str:{part}" if isinstance(part, str) else f"int:{int(part)}" for part in key)
    return hashlib.sha256("\x1f".join(parts).encode()).digest()


def numpy_generator(*key: Key) -> np.random.Generator:
    return np.random.default_rng(seed_of(*key))


def secret_generator(*key: Key) -> np.random.Generator:
    """A stream with a key of 128 bits: whoever does not know a part of the key cannot try them all."""
    return np.random.Generator(np.random.Philox(key=int.from_bytes(_digest(*key)[:16], "big")))


def torch_generator(*key: Key) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*key))
