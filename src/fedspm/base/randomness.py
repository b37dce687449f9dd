"""Randomness derived from names, never from a global generator.

The same key gives the same stream in any process, on any engine, before and after a crash.
"""

import hashlib

import numpy as np
import torch
from scipy.special import ndtri

Key = str | int


def seed_of(*key: Key) -> int:
    """A 63-bit seed from a key such as (seed, client name, round, step)."""
    return int.from_bytes(_digest(*key)[:8], "big") >> 1


def _digest(*key: Key) -> bytes:
    return hashlib.sha256(_encoded(*key)).digest()


def _encoded(*key: Key) -> bytes:
    parts = (f"str:{part}" if isinstance(part, str) else f"int:{int(part)}" for part in key)
    return "\x1f".join(parts).encode()


def numpy_generator(*key: Key) -> np.random.Generator:
    return np.random.default_rng(seed_of(*key))


def secret_normal(size: int, *key: Key) -> np.ndarray:
    """Draws of N(0, 1) that nobody can tell from others without all parts of the key, however many are seen: SHAKE-256
    of the key is the stream of bits, 54 for a draw (a sign, and a quantile of the lower half of N(0, 1))."""
    words = np.frombuffer(hashlib.shake_256(_encoded(*key)).digest(8 * size), dtype="<u8")
    lower = ndtri(((words >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-54)
    found: np.ndarray = np.where(words & np.uint64(1), lower, -lower)
    return found


def torch_generator(*key: Key) -> torch.Generator:
    return torch.Generator().manual_seed(seed_of(*key))
