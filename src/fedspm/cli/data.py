"""fedspm data check | plot: look at data before training on it."""

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspm.cli.app import app
from fedspm.cli.options import AsJson, Set, layers
from fedspm.cli.speaking import program, say
from fedspm.terminal import console, plain_table

if TYPE_CHECKING:
    from fedspm.data.findings import Findings

data = typer.Typer(no_args_is_help=True, help="Look at data before training on it.")
app.add_typer(data, name="data")
SHOWN_PROBLEMS = 20


@data.command()
def check(
    path: Annotated[str, typer.Argument(metavar="PATH", help="Your own data, or the name of a data set.")],
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Tell what a training would see, and what is wrong; the exit code is 1 if it could not be trained on."""
    from fedspm.config import OWN, resolve
    from fedspm.data.findings import inspect, inspect_draft

    settings = resolve(layers(None, {"data.name": path}, set_))
    with console.status("reading the data"):
        if settings.data.name == OWN:
            findings = inspect_draft(settings.data.own(), settings.data.test_fraction, settings.seed)
        else:
            findings = inspect(settings.federation(), f"the data set {path}, divided over clients")
    if as_json:
        print(json.dumps({"path": path, "trainable": not findings.problems, **asdict(findings)}, ensure_ascii=False))
    else:
        _show(path, findings)
    if findings.problems:
        raise typer.Exit(1)


def _show(path: str, findings: "Findings") -> None:
    say(f"{path}: {findings.form}")
    for remark in findings.remarks:
        say(f"  {remark}")
    if findings.clients:
        rows = sum(client["train"] for client in findings.clients.values())
        tested = sum(client["test"] for client in findings.clients.values())
        what = f"images of {' × '.join(map(str, findings.shape))}" if len(findings.shape) == 3 else "vectors"
        if len(findings.shape) == 1:
            what = f"{findings.shape[0]} features" + (f" ({_few(findings.columns)})" if findings.columns else "")
        say(
            f"  {len(findings.clients)} clients, {len(findings.classes)} classes, {rows:,} training rows, "
            f"{tested:,} test rows, {what}"
        )
        console.print(plain_table(*_label_table(findings), "\ntraining rows of every client and class"))
    for text in findings.warnings:
        console.print(f"warning  {text}", style="yellow", markup=False, soft_wrap=True)
    for text in findings.problems[:SHOWN_PROBLEMS]:
        console.print(f"problem  {text}", style="red", markup=False, soft_wrap=True)
    if (more := len(findings.problems) - SHOWN_PROBLEMS) > 0:
        say(f"problem  … and {more} more; --json lists them all")
    if findings.problems:
        say("it cannot be trained on yet")
    else:
        say(f"ready    {program()} train --data {path}")


def _label_table(findings: "Findings") -> tuple[list[str], list[list[str]]]:
    """A row a client; the commonest classes in columns of their own, as many as the terminal is wide."""
    clients, classes = findings.clients, findings.classes
    total = {label: sum(client["labels"].get(label, 0) for client in clients.values()) for label in classes}
    room = console.width - max(map(len, clients)) - len("┃  ┃ train ┃ test ┃ 99 others ┃ missing ┃") - 4
    fitting: list[Any] = []
    for label in sorted(total, key=lambda label: -total[label]):
        room -= max(4, len(_short(label))) + 3
        if room >= 0:
            fitting.append(label)
    shown = [label for label in classes if label in fitting]
    others = len(classes) - len(shown)
    headings = ["client", "train", "test", *map(_short, shown), *([f"{others} others"] if others else []), "missing"]
    rows = []
    for name, client in clients.items():
        counts = [client["labels"].get(label, 0) for label in shown]
        cells = [f"{count:,}" if count else "–" for count in counts]
        if others:
            cells.append(f"{client['train'] - sum(counts):,}")
        rows.append([name, f"{client['train']:,}", f"{client['test']:,}", *cells, str(len(client["missing"]) or "")])
    return headings, rows


def _short(label: Any) -> str:
    text = str(label)
    return text if len(text) <= 10 else text[:9] + "…"


def _few(names: list[str]) -> str:
    return ", ".join(names[:6]) + (", …" if len(names) > 6 else "")
