"""fedspm evaluate | diagnose | route | predict | audit: look at a run, and ask it."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedspm.base.errors import FedSPMError
from fedspm.base.printable import printable_json
from fedspm.cli.app import app
from fedspm.cli.options import Allow, AsJson, RunFolder
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
    allow: Allow = None,
) -> None:
    """Print the last metrics of a run, or those on new data."""
    from fedspm.runs.folder import Run

    opened = Run.open(run, allow or ())
    if data is None:
        metrics = opened.last_metrics()
        title = f"{run}, round {metrics['round']}, accuracy on {opened.config.data.tested_on}"
    else:
        from fedspm.training.new_data import evaluate_on

        with console.status("evaluating"):
            metrics, title = evaluate_on(opened, data), f"{run}, accuracy on {data}"
    if as_json:
        print(printable_json(metrics))
    else:
        show_results(metrics, title)


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
            print(printable_json(record))
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
    allow: Allow = None,
) -> None:
    """Route images or vectors to the client they resemble most, and predict there."""
    from fedspm.runs.folder import Run
    from fedspm.training.predict import answer, read_queries

    opened = Run.open(run, allow or ())
    queries = read_queries(opened, files)
    if len(queries) > MANY and not as_json:
        raise FedSPMError(
            f"{len(queries):,} rows are too many lines; `fedspm predict --out answers.csv` writes a table"
        )
    for query, reply in zip(queries, answer(opened, queries), strict=True):
        if as_json:
            print(printable_json({**query.name, **reply}))
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
    allow: Allow = None,
) -> None:
    """Answer many rows: a table of answers, and a summary."""
    from fedspm.runs.folder import Run
    from fedspm.training.new_data import predict, write_answers

    with console.status("answering"):
        answers = predict(Run.open(run, allow or ()), files, client)
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


@app.command()
def audit(
    run: RunFolder,
    noise: Annotated[float, typer.Option(min=0.001, help="privacy.noise to compare with, if the run has none.")] = 1.0,
    as_json: AsJson = False,
    allow: Allow = None,
) -> None:
    """Attack a run: which rows its updates show, and whether its model tells who was trained on."""
    from fedspm.audit.run_audit import audit_run, sentences
    from fedspm.runs.folder import Run

    opened = Run.open(run, allow or ())
    found = audit_run(opened, noise).to_dict()
    if as_json:
        print(printable_json(found))
        return
    rows = []
    for each in found["rounds"]:
        rebuilt, told = each["rebuilt"], each["update"]
        read = f"{rebuilt['rows']:,} of {rebuilt['of']:,}" if rebuilt["layers"] else "no such layer"
        rows.append([f"{each['round']} round", f"{each['noise']:g}", read, *_told(told)])
    own = f"{opened.config.privacy.noise:g}"
    rows += [[f"model, {attack}", own, "", *_told(told)] for attack, told in found["model"].items()]
    headings = ("attack on", "noise", "rows read", "AUC of members", "found")
    console.print(plain_table(headings, rows, f"audit of {run}; members are found at 1 % false alarms"))
    for line in [*found["not_tried"], *sentences(found)]:
        say(line)


def _told(told: dict[str, Any] | None) -> list[str]:
    if told is None:
        return ["", ""]
    auc, found = ("{:.2f} ({:.2f}–{:.2f})".format(told[key], *told[f"{key}_interval"]) for key in ("auc", "found"))
    return [auc, found]
