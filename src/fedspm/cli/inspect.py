"""fedspm evaluate | diagnose | route | predict: look at a run, and ask it."""

import json
from pathlib import Path
from typing import Annotated

import typer

from fedspm.base.errors import FedSPMError
from fedspm.cli.app import app
from fedspm.cli.options import AllowEncoder, AsJson, RunFolder
from fedspm.cli.output import say, show_results
from fedspm.report.terminal import console, plain_table

MANY = 1000  # rows that `route` says a line of
SHOWN = 20  # … and `predict`


@app.command()
def evaluate(
    run: RunFolder,
    data: Annotated[
        Path | None,
        typer.Option(help="New rows with labels, in any form that `fedspm data check` takes. (default: none)"),
    ] = None,
    as_json: AsJson = False,
    allow_encoder: AllowEncoder = None,
) -> None:
    """Print the last metrics of a run, or those on new data."""
    from fedspm.runs.folder import Run

    opened = Run.open(run, allow_encoder or ())
    if data is None:
        metrics = opened.last_metrics()
        title = f"{run}, round {metrics['round']}, accuracy on {opened.config.data.tested_on}"
    else:
        from fedspm.training.new_data import evaluate_on

        with console.status("evaluating"):
            metrics, title = evaluate_on(opened, data), f"{run}, accuracy on {data}"
    if as_json:
        print(json.dumps(metrics, ensure_ascii=False))
    else:
        show_results(metrics, title)


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
            print(json.dumps(record, ensure_ascii=False))
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
    allow_encoder: AllowEncoder = None,
) -> None:
    """Route images or vectors to the client they resemble most, and predict there."""
    from fedspm.runs.folder import Run
    from fedspm.training.predict import answer, read_queries

    opened = Run.open(run, allow_encoder or ())
    queries = read_queries(opened, files)
    if len(queries) > MANY and not as_json:
        raise FedSPMError(
            f"{len(queries):,} rows are too many lines; `fedspm predict --out answers.csv` writes a table"
        )
    for query, reply in zip(queries, answer(opened, queries), strict=True):
        if as_json:
            print(json.dumps({**query.name, **reply}, ensure_ascii=False))
        else:
            sure, near = max(reply["probabilities"].values()), max(reply["posterior"].values())
            say(f"{query}: {reply['prediction']} ({sure:.2f}), answered by {reply['client']} ({near:.2f})")


@app.command()
def predict(
    run: RunFolder,
    files: Annotated[
        list[Path],
        typer.Argument(metavar="FILE...", help="Tables (.csv, .parquet, .npz), image files, or folders of images."),
    ],
    out: Annotated[Path | None, typer.Option(help="Table of the answers, .csv or .parquet. (default: none)")] = None,
    client: Annotated[str | None, typer.Option(help="Whose answers. (default: whoever a row is routed to)")] = None,
    allow_encoder: AllowEncoder = None,
) -> None:
    """Answer many rows: a table of answers, and a summary."""
    from fedspm.runs.folder import Run
    from fedspm.training.new_data import predict, write_answers

    with console.status("answering"):
        answers = predict(Run.open(run, allow_encoder or ()), files, client)
    if out is not None:
        write_answers(out, answers)
    if len(answers) <= SHOWN and out is None:
        for j, probabilities in enumerate(answers.probabilities):
            by = "" if answers.client is None else f", answered by {answers.client[j]}"
            row = "" if answers.row[j] is None else f", row {answers.row[j]}"
            say(f"{answers.file[j]}{row}: {answers.prediction[j]} ({probabilities.max():.2f}){by}")
        return
    for line in answers.summary():
        say(line)
    say(f"answers    {out}" if out else "answers    not written: --out answers.csv or answers.parquet")
