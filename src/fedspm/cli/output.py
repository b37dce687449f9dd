"""What a command says: lines with paths in them, how it was called, how to go on."""

import shlex
import shutil
import sys
from typing import TYPE_CHECKING, Any

from fedspm.report.terminal import console, counted, results_table, scores_table

if TYPE_CHECKING:
    from fedspm.runs.folder import Run

INTERRUPTED = 130  # the exit code of a command that was stopped by a person


def say(text: str) -> None:
    """A line that may hold paths: no markup in it, and no line breaks but its own."""
    console.print(text, markup=False, soft_wrap=True)


def show_results(metrics: dict[str, Any], title: str) -> None:
    console.print(results_table(metrics, title))
    if (scores := scores_table(metrics)) is not None:
        console.print(scores)
        if any("undefined" in client.get("scores", {}).get("system", {}) for client in metrics["clients"].values()):
            say("–         the test rows of that client have one class only: there is nothing to rank")
    if "privacy" in metrics:
        from fedspm.federated.accountant import sentence

        say(f"privacy   {sentence(metrics['privacy'])}")
    for client, found in metrics.get("refused", {}).items():
        say(f"refused   {client}, in {counted(found['rounds'], 'round')}; the last time: {found['why']}")


def as_typed() -> str:
    return shlex.join(["fedspm", *sys.argv[1:]])


def program() -> str:
    """How this program was called: `.venv/bin/fedspm` where no environment is active."""
    return "fedspm" if shutil.which("fedspm") or not sys.argv[0].endswith("fedspm") else sys.argv[0]


def allowing(run: "Run") -> str:
    """What is to be typed behind a command so that it runs what the run names from outside this package."""
    return "".join(f" --allow {shlex.quote(name)}" for name in run.config.outside_names)
