"""How a process that computes uses memory and cores."""

import ctypes
import os
import sys
from concurrent.futures import ThreadPoolExecutor

import torch


def cores() -> int:
    """Cores that this process may use: a batch system or `taskset` may leave it some of the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


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
