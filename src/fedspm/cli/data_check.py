"""fedspm data check | plot: look at data before training on it."""

import shlex
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspm.base.errors import FedSPMError
from fedspm.base.printable import printable_json
from fedspm.cli.data import PIPE, data
from fedspm.cli.options import AsJson, Clients, DataSet, Set, layers
from fedspm.cli.output import program, say
from fedspm.report.terminal import console, plain_table

if TYPE_CHECKING:
    from fedspm.data.check import Findings

ALPHAS = "0.5,1,2"  # those of fedspm.report.data_plots, which takes long to import
WIDEST = 30  # characters of a class name
SHOWN_CLASSES = 30
SHOWN_PROBLEMS = 20


@data.command()
def check(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Your own data, or the name of a data set.")],
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a training would see, and what is wrong; the exit code is 1 if it could not be trained on."""
    from fedspm.runs.check_data import check_data
    from fedspm.runs.config import resolve

    config = resolve(layers(None, {"data.name": path}, set_))
    with console.status("reading the data"):
        findings = check_data(config)
    if as_json:
        print(printable_json({"path": path, "trainable": not findings.problems, **asdict(findings)}))
    else:
        _show(path, findings, set_ or [])
    if findings.problems:
        raise typer.Exit(1)


@data.command()
def plot(
    data: DataSet = None,
    clients: Clients = None,
    alpha_inter: Annotated[str, typer.Option(help="Concentrations of classes over clients, with commas.")] = ALPHAS,
    alpha_intra: Annotated[str, typer.Option(help="Concentrations of the mixing weights, with commas.")] = ALPHAS,
    seed: Annotated[int | None, typer.Option(help="Everything random is derived from it. (default: 0)")] = None,
    out: Annotated[Path, typer.Option(help="Folder of the pictures.")] = Path("pictures"),
    set_: Set = None,
) -> None:
    """Draw the heterogeneity: one image under all shifts, labels and mixing weights of every client."""
    from fedspm.report.data_plots import plot_data
    from fedspm.runs.config import resolve

    settings = resolve(layers(None, {"data.name": data, "data.clients": clients, "seed": seed}, set_))
    for picture in plot_data(settings, _alphas(alpha_inter), _alphas(alpha_intra), out):
        say(f"picture  {picture}")


def _alphas(text: str) -> list[float]:
    try:
        alphas = [float(each) for each in text.split(",")]
    except ValueError as error:
        raise FedSPMError(f"{text!r}: give numbers with commas between them, for instance {ALPHAS}") from error
    if not all(0 < alpha < float("inf") for alpha in alphas):  # nor nan
        raise FedSPMError(f"{text!r}: concentrations are greater than zero, and finite")
    return alphas


def _show(path: str, findings: "Findings", assignments: list[str]) -> None:
    if not console.is_terminal:
        console.width = PIPE
    say(f"{path}: {findings.form}")
    for remark in findings.remarks:
        say(f"  {remark}")
    if findings.clients:
        rows = sum(client["train"] for client in findings.clients.values())
        tested = sum(client["test"] for client in findings.clients.values())
        what = f"images of {' × '.join(map(str, findings.shape))}" if len(findings.shape) == 3 else "vectors"
        if len(findings.shape) == 1:
            what = f"{findings.shape[0]} features" + (f" ({_few(findings.columns)})" if findings.columns else "")
            if findings.columns and len(findings.columns) != findings.shape[0]:
                what = f"{len(findings.columns)} columns ({_few(findings.columns)}) as {findings.shape[0]} features"
        say(
            f"  {len(findings.clients)} clients, {len(findings.classes)} classes, {rows:,} training rows, "
            f"{tested:,} test rows, {what}"
        )
        console.print(plain_table(*_label_table(findings), "\ntraining rows of every client and class"))
    if findings.differences:
        console.print(plain_table(*_differences(findings), "\ncolumns that differ between clients", fold=True))
    for text in list(findings.skipped)[:SHOWN_PROBLEMS]:
        console.print(f"skipped  {text}", style="yellow", soft_wrap=True)
    for text in findings.warnings:
        console.print(f"warning  {text}", style="yellow", soft_wrap=True)
    for text in findings.problems[:SHOWN_PROBLEMS]:
        console.print(f"problem  {text}", style="red", soft_wrap=True)
    if (more := len(findings.problems) - SHOWN_PROBLEMS) > 0:
        say(f"problem  … and {more} more; --json lists them all")
    if findings.problems:
        say("it cannot be trained on yet")
    else:
        options = shlex.join(["--data", path, *(word for each in assignments for word in ("--set", each))])
        say(f"ready    {program()} train {options}")


def _label_table(findings: "Findings") -> tuple[list[str], list[list[str]]]:
    """One column per client and one row per class; where there are too many for the terminal, one row per client."""
    clients, classes = findings.clients, findings.classes
    first = max(len("training rows"), *(len(_short(label)) for label in classes))
    if len(classes) > SHOWN_CLASSES or first + sum(max(5, len(name)) + 3 for name in clients) + 4 > console.width:
        headings = ["client", "training rows", "test rows", "classes", "missing"]
        return headings, [
            [name, f"{c['train']:,}", f"{c['test']:,}", f"{len(c['labels'])}", f"{len(c['missing']) or ''}"]
            for name, c in clients.items()
        ]
    rows = [[_short(k), *(f"{c['labels'].get(k, 0) or '–':}" for c in clients.values())] for k in classes]
    sums = {"training rows": "train", "test rows": "test"}
    rows += [[title, *(f"{client[key]:,}" for client in clients.values())] for title, key in sums.items()]
    return ["class", *clients], rows


def _differences(findings: "Findings") -> tuple[list[str], list[list[str]]]:
    """One row per finding and one column per client; where they are too many for the terminal, one row for each."""
    clients, found = list(findings.clients), findings.differences
    rows = [[each.column, each.what, *(each.clients.get(client, "–") for client in clients)] for each in found]
    table = [["column", "what", *clients], *rows]
    if sum(max(map(len, column)) + 3 for column in zip(*table, strict=True)) + 1 <= console.width:
        return table[0], rows
    first = [[each.column, each.what] if k == 0 else ["", ""] for each in found for k in range(len(each.clients))]
    cells = [[client, text] for each in found for client, text in each.clients.items()]
    return ["column", "what", "client", ""], [[*one, *other] for one, other in zip(first, cells, strict=True)]


def _short(label: Any) -> str:
    text = str(label)
    return text if len(text) <= WIDEST else text[: WIDEST - 1] + "…"


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
