"""The command line, as a person would call it."""

import subprocess
import sys
import time

import httpx
import pytest


def fedspm(*arguments, check=True, **options):
    done = subprocess.run(
        [sys.executable, "-m", "fedspm", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    if check:
        assert done.returncode == 0, done.stderr + done.stdout
    return done


PATIENCE = 600  # seconds: matters only if something hangs; on a busy machine whatever is waited for just comes later


def wait(happened):
    """Until something is true; a server that comes up slowly does not answer meanwhile."""
    until = time.monotonic() + PATIENCE
    while time.monotonic() < until:
        try:
            if happened():
                return
        except httpx.HTTPError:
            pass
        time.sleep(0.02)
    pytest.fail(f"it did not happen within {PATIENCE} s")
