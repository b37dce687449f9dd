"""fedspm evaluate | diagnose | route: look at a run."""

from pathlib import Path
from typing import Annotated

import typer

from fedspm.base.printable import printable_json
from fedspm.cli.app import app
from fedspm.cli.options import Allow, AsJson, RunFolder
from fedspm.cli.output import say, show_results
from fedspm.report.terminal import console, plain_table


@app.command()
def evaluate(run: RunFolder, as_json: AsJson = False) -> None:
    """Print the last metrics of a run."""
    from fedspm.runs.folder import Run

    opened = Run.open(run)
    metrics = opened.last_metrics()
    if as_json:
        print(printable_json(metrics))
    else:
        show_results(metrics, f"{run}, round {metrics['round']}, accuracy on {opened.config.data.tested_on}")


@app.command()
def diagnose(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders trained with --diagnose-every.")],
    out: Annotated[Path | None, typer.Option(help="Picture, svg or png. (default: convergence.svg in the run)")] = None,
    as_json: AsJson = False,
) -> None:
    """Gradient norms and bridge errors along training, as the paper's momentum figure shows them."""
    from fedspm.report.diagnosis import BRIDGE, accumulation, bridge_records, bridge_rows, bridges, write_picture
    from fedspm.runs.folder import Run

    opened = [Run.open(run) for run in runs]
    found = bridges(opened)
    if as_json:
        for record in bridge_records(found):
            print(printable_json(record))
    else:
        console.print(plain_table(BRIDGE, bridge_rows(found), "after the last diagnosed round"))
        for each in opened:
            say(accumulation(each))
    picture = write_picture(found, out or runs[0] / "convergence.svg")
    if not as_json:
        say(f"picture   {picture}")


@app.command()
def route(
    run: RunFolder,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Image files; or tables (.csv, .parquet, .npz) of vectors.")
    ],
    as_json: AsJson = False,
    allow: Allow = None,
) -> None:
    """Route images or vectors to the client they resemble most, and predict there."""
    from fedspm.runs.folder import Run
    from fedspm.training.predict import answer, read_queries

    opened = Run.open(run, allow or ())
    queries = read_queries(opened, files)
    for query, reply in zip(queries, answer(opened, queries), strict=True):
        if as_json:
            print(printable_json({**query.name, **reply}))
        else:
            sure, near = max(reply["probabilities"].values()), max(reply["posterior"].values())
            say(f"{query}: {reply['prediction']} ({sure:.2f}), answered by {reply['client']} ({near:.2f})")
