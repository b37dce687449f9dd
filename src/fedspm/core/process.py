"""How a process that computes uses memory and cores."""

import ctypes
import sys
from concurrent.futures import ThreadPoolExecutor

import torch


def one_core_threads(count: int, name: str) -> ThreadPoolExecutor:
    """Threads that compute on one core each: PyTorch's own threads inside them would only wait for each other."""
    return ThreadPoolExecutor(count, name, initializer=torch.set_num_threads, initargs=(1,))


def keep_freed_memory() -> None:
    """Ask glibc to reuse freed memory instead of handing it back, page fault by page fault: docs/decisions/0002."""
    if sys.platform != "linux":
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return
    trim_threshold, mmap_threshold = -1, -3
    mallopt(mmap_threshold, 1 << 30)
    mallopt(trim_threshold, 1 << 30)
