"""How many cores a process takes for itself."""

import os
import subprocess
import sys

import pytest


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system does not bind processes to cores")
def test_a_process_counts_the_cores_that_it_may_use():
    code = """
import os
one = min(os.sched_getaffinity(0))
os.sched_setaffinity(0, {one})
from fedspm.base.threads import cores
print(cores())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "1"
