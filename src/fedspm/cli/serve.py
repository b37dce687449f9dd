"""fedspm export | serve: from a run to a running system."""

from pathlib import Path
from typing import Annotated

import typer

from fedspm.cli.app import app
from fedspm.cli.options import RunFolder
from fedspm.cli.speaking import program, say
from fedspm.terminal import console

FalseAlarms = Annotated[float, typer.Option(help="Share of known rows that may be called novel.")]


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder for the bundle; a bundle that is there is replaced.")],
    false_alarms: FalseAlarms = 0.05,
) -> None:
    """Write what a router and the node of each client need, in a folder each."""
    from fedspm.runs import Run
    from fedspm.serve.export import export

    with console.status("writing the bundle"):
        done = export(Run.open(run), out, false_alarms)
    say(f"bundle    {out}, version {done.version}: router/ and clients/ with {len(done.clients)} folders")
    if done.false_alarms is None:
        say("novelty   not calibrated: the run folder does not know its data")
    else:
        say(f"novelty   {done.false_alarms:.1%} of held-out rows are called novel (asked for {false_alarms:.1%})")
    say(f"try next  {program()} serve all {run}")
