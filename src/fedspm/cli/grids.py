"""What `fedspm compare`, `choose` and `experiment` have in common: they show a grid that is not finished, too."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer

from fedspm.cli.options import parse_numbers
from fedspm.cli.output import INTERRUPTED, as_typed, say


def grid_options(seeds: str, jobs: int | None) -> dict[str, Any]:
    """What a command hands to every call that trains a grid."""
    from fedspm.experiments import TerminalProgress

    numbers = parse_numbers("--seeds", seeds)
    return {"seeds": numbers, "jobs": jobs, "progress": TerminalProgress(say), "command": as_typed()}


@contextmanager
def showing_what_is_finished(show: Callable[[Any], None]) -> Iterator[None]:
    """Where trainings failed or were interrupted, show what the others reached, then say so."""
    from fedspm.experiments import Unfinished

    try:
        yield
    except Unfinished as error:
        show(error.result)
        if error.interrupted:
            say(str(error))
            raise typer.Exit(INTERRUPTED) from error
        raise
