"""The program itself: what every command hangs on, and how errors reach a person."""

import io
import os
import sys
import warnings
from functools import cache
from typing import Annotated

import typer

from fedspm.base.errors import FedSPMError
from fedspm.cli.output import INTERRUPTED
from fedspm.report.terminal import console, errors
from fedspm.version import __version__

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Routing-enabled federated learning under dual heterogeneity.",
)


@cache
def _warn_once(sentence: str) -> None:
    """Data may be read twice; Python's own filter forgets whenever somebody changes the filters."""
    errors.print(f"warning: {sentence}", style="yellow", markup=False, soft_wrap=True)


def main() -> None:
    """Run a command; errors that a person can act on become one sentence and exit code 1."""
    warnings.showwarning = lambda message, *_, **__: _warn_once(str(message))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows no γ shows a question mark
    os.environ["PYTHONSAFEPATH"] = "1"  # nor do processes that are started here import from the working directory
    try:
        app()
    except FedSPMError as error:
        errors.print(f"fedspm: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("fedspm: interrupted")
        sys.exit(INTERRUPTED)


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit
