"""The command line, as a person would call it."""

import subprocess
import sys


def fedspm(*arguments, check=True, **options):
    done = subprocess.run(
        [sys.executable, "-m", "fedspm.cli", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    if check:
        assert done.returncode == 0, done.stderr + done.stdout
    return done
