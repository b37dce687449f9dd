"""Commands in processes that are forked off one that has imported everything: importing torch takes longer than most
commands do. `run` does what `python -m fedspm` does; what depends on how a process begins is tested with real ones.
"""

import gc
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path
from threading import Lock

IMPORTED = ("polars", "sklearn.metrics", "torch", "matplotlib.backends.backend_agg", "matplotlib.backends.backend_svg")


def environment():
    """What a command may read, without what pytest writes for every test."""
    return {name: value for name, value in os.environ.items() if name != "PYTEST_CURRENT_TEST"}


class Warm:
    """The process that has imported everything: it reads one order per line, and answers with the exit code."""

    def __init__(self):
        self.environment = environment()
        self.process = subprocess.Popen(
            [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        self._lock = Lock()

    def run(self, arguments, folder, place):
        """The command as `subprocess.run` has it; None if it is busy, or the environment is not the one it has."""
        if self.environment != environment() or not self._lock.acquire(blocking=False):
            return None
        try:
            out, err = place / "out", place / "err"
            order = {"arguments": arguments, "folder": str(folder), "out": str(out), "err": str(err)}
            self.process.stdin.write(json.dumps(order) + "\n")
            self.process.stdin.flush()
            code = int(self.process.stdout.readline())
            said = (each.read_text("utf-8") for each in (out, err))
            return subprocess.CompletedProcess(arguments, code, *said)
        finally:
            self._lock.release()


@cache
def warm():
    return Warm()


def begin(order):
    """In a process of its own, which ends with the command."""
    os.chdir(order["folder"])
    for number, name in ((1, order["out"]), (2, order["err"])):
        opened = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(opened, number)
        os.close(opened)
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    sys.argv = [str(Path(sys.modules["fedspm"].__file__).with_name("__main__.py")), *order["arguments"]]
    sys.modules["fedspm.cli"].main()


def serve():
    for name in (*IMPORTED, "fedspm.algorithms", "fedspm.training.loop", "fedspm.cli"):
        __import__(name)
    gc.freeze()
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            begin(json.loads(line))
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)


if __name__ == "__main__":  # processes that a command starts import this file again
    __package__ = "fedspm"  # as help says: python -m fedspm
    del sys.path[0]
    serve()
