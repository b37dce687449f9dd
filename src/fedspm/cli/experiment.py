"""fedspm experiment: the paper's tables and figures, trained and written by one command each."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspm.cli.app import app
from fedspm.cli.compare import grid
from fedspm.cli.options import Jobs, Set
from fedspm.cli.speaking import as_typed, say
from fedspm.terminal import console, plain_table

if TYPE_CHECKING:
    from fedspm.experiments import Narrowed, Plan
    from fedspm.experiments.results import Reached

SHIFTS = "shifts"  # pictures only


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(metavar="list|NAME|all", help="What to run; `list` says what there is.")],
    seeds: Annotated[str | None, typer.Option(help="Seeds with commas. (default: the paper's)")] = None,
    methods: Annotated[str | None, typer.Option(help="Rows with commas. (default: all of the experiment)")] = None,
    panels: Annotated[str | None, typer.Option(help="Panels with commas. (default: all of the experiment)")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Only the first rounds of the schedule.")] = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="Folder of all results.")] = Path("results"),
    set_: Set = None,
) -> None:
    """Re-run a table or a figure of the paper; what is done is not trained again."""
    from fedspm.comparison import numbers
    from fedspm.experiments import EXPERIMENTS, Narrowed, load_plan
    from fedspm.nested import parse_assignments

    if name == "list":
        _list(out)
        return
    wanted = Narrowed(
        seeds=numbers("--seeds", seeds) if seeds else None,
        rows=_names(methods),
        panels=_names(panels),
        rounds=rounds,
        settings=parse_assignments(set_ or []),
    )
    if name in (SHIFTS, "all"):
        _draw_shifts(wanted, out / SHIFTS)
    for each in EXPERIMENTS if name == "all" else [name]:
        if each != SHIFTS:
            _run(load_plan(each), wanted, out / each, jobs)


def _run(plan: "Plan", wanted: "Narrowed", folder: Path, jobs: int | None) -> None:
    from fedspm.comparison import slowest_first
    from fedspm.experiments import EXPERIMENTS
    from fedspm.experiments.plan import plan_cells
    from fedspm.experiments.records import Records
    from fedspm.experiments.results import missing, reductions, write_results
    from fedspm.tables import PLAIN, REACHED, accuracy_rows

    cells = plan_cells(plan, wanted, folder)
    records = Records(folder / "cells.jsonl")
    others = [folder.parent / name / "cells.jsonl" for name in EXPERIMENTS if name != plan.name]
    records.borrow(cells, [Records(path) for path in others])
    todo = [cell for cell in cells if cell not in records]
    say(f"{plan.name}: {plan.title}; {len(cells) - len(todo)} of {len(cells)} trainings are in {records.path}")

    def write(command: str) -> "Reached":
        records.take(todo, plan)
        return write_results(plan, records, folder, command)

    with grid(todo, slowest_first(todo), jobs, write) as reached:
        for panel, rows in reached.items():
            title = f"\n{plan.panel(panel).title}: accuracy in per cent"
            console.print(plain_table(REACHED, accuracy_rows(rows, PLAIN), title))
        if less := reductions(plan, records):
            say(f"reduced   {'; '.join(less)}")
        if absent := missing(plan, records):
            say(f"not run   {len(absent)} groups of trainings: see {folder}/README.md")
        if reached:
            say(f"results   {folder}/README.md")


def _draw_shifts(wanted: "Narrowed", folder: Path) -> None:
    """The three pictures of the constructed heterogeneity; nothing is trained."""
    from fedspm.config import resolve
    from fedspm.files import write_atomically
    from fedspm.nested import merged
    from fedspm.plot import ALPHAS, plot_data

    config = resolve(merged({"data": {"name": "fashion-mnist"}}, wanted.settings))
    written = plot_data(config, ALPHAS, ALPHAS, folder)
    title = (
        f"# The constructed heterogeneity\n\n`{as_typed()}`: {config.data.title}, {config.data.clients} clients.\n\n"
    )
    write_atomically(folder / "README.md", title + "".join(f"![{each.stem}]({each.name})\n\n" for each in written))
    say(f"pictures  {folder}/README.md")


def _list(out: Path) -> None:
    from fedspm.experiments import EXPERIMENTS, load_plan
    from fedspm.experiments.records import Records
    from fedspm.experiments.results import reductions

    say(f"{SHIFTS:11} {'':25} One image under all shifts, labels and mixing weights of every client (appendix)")
    for name in EXPERIMENTS:
        plan = load_plan(name)
        records = Records(out / name / "cells.jsonl")
        done = f"{len(records.lines.keys() & plan.keys())} of {len(plan.keys())} done"
        if reductions(plan, records):
            done += ", reduced"
        say(f"{name:11} {done:25} {plan.title} ({plan.source})")


def _names(text: str | None) -> list[str] | None:
    return [part.strip() for part in text.split(",") if part.strip()] if text else None
