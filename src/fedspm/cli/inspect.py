"""fedspm evaluate | diagnose | route: look at a run."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedspm.cli.app import app
from fedspm.cli.options import AllowEncoder, AsJson, RunFolder
from fedspm.cli.output import say, show_results
from fedspm.report.terminal import console, plain_table


@app.command()
def evaluate(run: RunFolder, as_json: AsJson = False) -> None:
    """Print the last metrics of a run."""
    from fedspm.runs.folder import Run

    opened = Run.open(run)
    metrics = opened.last_metrics()
    if as_json:
        print(json.dumps(metrics, ensure_ascii=False))
    else:
        show_results(metrics, f"{run}, round {metrics['round']}, accuracy on {opened.config.data.tested_on}")


@app.command()
def diagnose(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders trained with --diagnose-every.")],
    out: Annotated[Path | None, typer.Option(help="Picture, svg or png. (default: convergence.svg in the run)")] = None,
    as_json: AsJson = False,
) -> None:
    """Gradient norms and bridge errors along training, as the paper's momentum figure shows them."""
    from fedspm.report import diagnosis
    from fedspm.runs.folder import Run

    opened = [Run.open(run) for run in runs]
    found = diagnosis.bridges(opened)
    if as_json:
        for record in diagnosis.bridge_records(found):
            print(json.dumps(record, ensure_ascii=False))
    else:
        if rows := diagnosis.headline_rows(opened):
            console.print(plain_table(diagnosis.HEADLINE, rows, "at normalised γ, over the rounds that all runs have"))
        title = "the paper's bridge errors at γ as trained, after the last diagnosed round"
        console.print(plain_table(diagnosis.BRIDGE, diagnosis.bridge_rows(found), title))
        for each in opened:
            say(diagnosis.accumulation(each))
    picture = diagnosis.write_picture(found, out or runs[0] / "convergence.svg")
    if not as_json:
        say(f"picture   {picture}")


@app.command()
def route(
    run: RunFolder,
    files: Annotated[
        list[Path], typer.Argument(metavar="FILE...", help="Image files; or tables (.csv, .parquet, .npz) of vectors.")
    ],
    as_json: AsJson = False,
    allow_encoder: AllowEncoder = None,
) -> None:
    """Route images or vectors to the client they resemble most, and predict there."""
    from fedspm.runs.folder import Run
    from fedspm.training.predict import answer, read_queries

    opened = Run.open(run, allow_encoder or ())
    queries = read_queries(opened, files)
    for query, reply in zip(queries, answer(opened, queries), strict=True):
        if as_json:
            print(json.dumps({**query.name, **reply}, ensure_ascii=False))
        else:
            sure, near = max(reply["probabilities"].values()), max(reply["posterior"].values())
            say(f"{query}: {reply['prediction']} ({sure:.2f}), answered by {reply['client']} ({near:.2f})")
