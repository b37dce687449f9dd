"""The command line, as a person would call it."""

import subprocess
import sys
import tempfile
import time
from pathlib import Path

import httpx
import pytest

from warm import warm


def fedspm(*arguments, check=True, **options):
    """Forked where that is the same; a process with an environment or an input of its own begins from nothing."""
    words, done = [*map(str, arguments)], None
    if options.keys() <= {"cwd"}:
        with tempfile.TemporaryDirectory() as place:
            done = warm().run(words, options.get("cwd") or Path.cwd(), Path(place))
    if done is None:
        done = subprocess.run(
            [sys.executable, "-m", "fedspm", *words], capture_output=True, text=True, check=False, **options
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
