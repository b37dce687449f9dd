"""How this process deals with the system's memory."""

import ctypes
import sys


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
