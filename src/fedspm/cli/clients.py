"""fedspm onboard | remove: a client comes to a trained run, or leaves it."""

import os
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer
from rich.text import Text

from fedspm.base.files import as_file_name
from fedspm.cli.app import app
from fedspm.cli.options import Allow, RunFolder
from fedspm.cli.output import allowing, as_typed, program, say
from fedspm.report.terminal import console, results_table

if TYPE_CHECKING:
    from fedspm.runs.folder import Run

Out = Annotated[Path | None, typer.Option(help="Folder of the new run. (default: RUN-with-NAME or RUN-without-NAME)")]


@app.command()
def onboard(
    run: RunFolder,
    name: Annotated[str, typer.Option(help="What the newcomer is called.")],
    data: Annotated[Path, typer.Option(help="Its rows, in any form that `fedspm data check` takes.")],
    sketch: Annotated[
        bool, typer.Option("--sketch", help="Ask no other client; use the sketch that training wrote of their rows.")
    ] = False,
    out: Out = None,
    allow: Allow = None,
) -> None:
    """Take in a client without training anew: its head, mixing weights and tilt, with all that is shared fixed."""
    from fedspm.runs.folder import Run
    from fedspm.training.membership import onboard

    folder = out or _beside(run, f"with-{name}")
    with console.status(Text(f"fitting {name}")):  # plain: a name may look like markup
        done = onboard(Run.open(run, allow or ()), name, data, folder, as_typed(), by_sketch=sketch)
    how = "from the sketch" if sketch else f"the others sent {done.sent:,} bytes together"
    say(f"{name} learnt from {done.rows:,} rows; {how}")
    if done.misfit is None:
        say("  how far γ is from its exact normaliser is not known: the other clients' rows are not here")
    else:
        say(f"  γ is within {done.misfit:.2g} of its exact normaliser")
    _show(done.run)


@app.command()
def remove(
    run: RunFolder,
    name: Annotated[str, typer.Option(help="The client that leaves.")],
    out: Out = None,
    allow: Allow = None,
) -> None:
    """Let a client go: its tilt, its head and its share of the prior; nothing else changes."""
    from fedspm.runs.folder import Run
    from fedspm.training.membership import remove

    folder = out or _beside(run, f"without-{name}")
    _show(remove(Run.open(run, allow or ()), name, folder, as_typed()))


def _beside(run: Path, what: str) -> Path:
    """Also of a run that is given as `.`"""
    return Path(os.path.normpath(run / "..")) / f"{run.resolve().name}-{as_file_name(what)}"


def _show(run: "Run") -> None:
    if run.has_rows:
        from fedspm.report.html import write_report

        metrics = run.last_metrics()
        write_report(run, run.model(), run.federation())
        title = f"\n{len(run.task.names)} clients, accuracy on {run.config.data.tested_on}"
        console.print(results_table(metrics, title))
    say(f"run       {run.path}")
    say(f"try next  {program()} export {quote(str(run.path))} --out BUNDLE{allowing(run)}")
