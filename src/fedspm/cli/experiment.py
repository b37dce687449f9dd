"""fedspm experiment: the paper's tables and figures, trained and written by one command each."""

from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated

import typer

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.cli.app import app
from fedspm.cli.compare import grid
from fedspm.cli.options import Jobs, Set
from fedspm.cli.output import as_typed, say
from fedspm.report.terminal import console, plain_table

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from fedspm.experiments import Narrowed, Plan
    from fedspm.experiments.grid import Cell
    from fedspm.experiments.records import Records
    from fedspm.experiments.results import Reached

SHIFTS = "shifts"  # pictures only
RESULTS = Path("results")


@app.command()
def experiment(
    name: Annotated[str, typer.Argument(metavar="list|NAME|all", help="What to run; `list` says what there is.")],
    seeds: Annotated[str | None, typer.Option(help="Seeds with commas. (default: the paper's)")] = None,
    methods: Annotated[str | None, typer.Option(help="Rows with commas. (default: all of the experiment)")] = None,
    panels: Annotated[str | None, typer.Option(help="Panels with commas. (default: all of the experiment)")] = None,
    rounds: Annotated[int | None, typer.Option(min=1, help="Only the first rounds of the schedule.")] = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="Folder of all results.")] = RESULTS,
    set_: Set = None,
) -> None:
    """Re-run a table or a figure of the paper; what is done is not trained again."""
    from fedspm.base.layers import parse_assignments
    from fedspm.experiments import EXPERIMENTS, Narrowed, load_plan
    from fedspm.experiments.comparison import numbers

    if name == "list":
        _list(out)
        return
    wanted = Narrowed(
        seeds=None if seeds is None else numbers("--seeds", seeds),
        rows=_names("--methods", methods),
        panels=_names("--panels", panels),
        rounds=rounds,
        settings=parse_assignments(set_ or []),
        options=[
            *(["--rounds", str(rounds)] if rounds else []),
            *(["--out", str(out)] if out != RESULTS else []),
            *(part for each in set_ or [] for part in ("--set", each)),
        ],
    )
    plans = [load_plan(each) for each in (EXPERIMENTS if name == "all" else [name]) if each != SHIFTS]
    if name == "all":
        _run_all(plans, wanted, out, jobs)
    elif plans:
        _run(plans[0], wanted, out, jobs)
    if name in (SHIFTS, "all"):
        _draw_shifts(wanted, out / SHIFTS)


def _run_all(plans: "Sequence[Plan]", wanted: "Narrowed", out: Path, jobs: int | None) -> None:
    """One after the other; what is refused is refused before anything is trained, and a failure stops no other."""
    if unknown := {*(wanted.rows or ())} - {row for plan in plans for row in plan.rows}:
        raise FedSPMError(f"--methods {', '.join(sorted(unknown))}: no experiment has it")
    if unknown := {*(wanted.panels or ())} - {panel.name for plan in plans for panel in plan.panels}:
        raise FedSPMError(f"--panels {', '.join(sorted(unknown))}: no experiment has it")
    todo = [(plan, narrowed) for plan in plans if (narrowed := wanted.known_to(plan))]
    for plan, narrowed in todo:
        with suppress(DamagedFile):  # said when its turn comes
            _wanted(plan, narrowed, out, lambda _: None)
    failures = []
    for plan, narrowed in todo:
        try:
            _run(plan, narrowed, out, jobs)
        except FedSPMError as error:
            say(f"{plan.name}: {error}")
            failures.append(plan.name)
    if failures:
        raise FedSPMError(f"not finished: {', '.join(failures)}; the same command goes on")


def _wanted(
    plan: "Plan", wanted: "Narrowed", out: Path, tell: "Callable[[str], None]"
) -> "tuple[Sequence[Cell], Sequence[Cell], Records]":
    """The trainings that are asked for, those of them that are not done, and all that is known of the plan; what does
    not fit together is refused."""
    from fedspm.experiments import EXPERIMENTS
    from fedspm.experiments.plan import plan_cells
    from fedspm.experiments.records import Records

    cells = plan_cells(plan, wanted, out / plan.name)
    records = Records(out / plan.name / "cells.jsonl")
    others = []
    for name in (name for name in EXPERIMENTS if name != plan.name):
        try:
            others.append(Records(out / name / "cells.jsonl"))
        except DamagedFile as error:
            tell(f"nothing is borrowed from {name}: {error}")
    whole = plan_cells(plan, replace(wanted, seeds=None, rows=None, panels=None), out / plan.name)
    records.borrow([*whole, *cells], others)
    records.refuse_other_data(cells)
    return cells, [cell for cell in cells if cell not in records], records


def _run(plan: "Plan", wanted: "Narrowed", out: Path, jobs: int | None) -> None:
    from fedspm.experiments.comparison import slowest_first
    from fedspm.experiments.coverage import missing, named_seeds, reductions
    from fedspm.experiments.results import write_results
    from fedspm.experiments.tables import PLAIN, REACHED, accuracy_rows

    cells, todo, records = _wanted(plan, wanted, out, say)
    say(f"{plan.name}: {plan.title}; {len(cells) - len(todo)} of {len(cells)} trainings are known")
    folder = out / plan.name
    _require_folder(folder)

    def write(_: str) -> "Reached":
        with records.lock:  # another grid may write the same files
            records.take(todo, plan)
            return write_results(plan, records, folder, wanted.command(plan))

    with grid(todo, slowest_first(todo), jobs, write) as reached:
        for panel, rows in reached.items():
            title = f"\n{plan.panel(panel).title}, {named_seeds(rows[0].curves)}: accuracy in per cent"
            console.print(plain_table(REACHED, accuracy_rows(rows, PLAIN), title))
        if reached and (less := reductions(plan, records)):
            say(f"reduced   {'; '.join(less)}")
        if reached and missing(plan, records):
            say(f"not run   listed in {folder}/README.md")
        if reached:
            say(f"results   {folder}/README.md")


def _require_folder(folder: Path) -> None:
    """Better now than after the first training."""
    from fedspm.base.files import explained

    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass


def _draw_shifts(wanted: "Narrowed", folder: Path) -> None:
    """The three pictures of the constructed heterogeneity; nothing is trained."""
    from fedspm.base.files import write_atomically
    from fedspm.base.layers import merged
    from fedspm.report.data_plots import ALPHAS, plot_data
    from fedspm.runs.config import resolve

    config = resolve(merged({"data": {"name": "fashion-mnist"}}, wanted.settings))
    written = plot_data(config, ALPHAS, ALPHAS, folder)
    title = (
        f"# The constructed heterogeneity\n\n`{as_typed()}`: {config.data.title}, {config.data.clients} clients.\n\n"
    )
    write_atomically(folder / "README.md", title + "".join(f"![{each.stem}]({each.name})\n\n" for each in written))
    say(f"pictures  {folder}/README.md")


def _list(out: Path) -> None:
    from fedspm.experiments import EXPERIMENTS, load_plan
    from fedspm.experiments.coverage import other_settings
    from fedspm.experiments.records import Records

    say(f"{SHIFTS:11} {'':25} One image under all shifts, labels and mixing weights of every client (appendix)")
    for name in EXPERIMENTS:
        plan = load_plan(name)
        try:
            records = Records(out / name / "cells.jsonl")
        except DamagedFile as error:
            say(f"{name:11} {error}")
            continue
        done = f"{len(records.lines.keys() & plan.keys())} of {len(plan.keys())} done"
        if other_settings(plan, records):
            done += ", reduced"
        say(f"{name:11} {done:25} {plan.title} ({plan.source or 'ours'})")


def _names(option: str, text: str | None) -> list[str] | None:
    if text is None:
        return None
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise FedSPMError(f"{option} {text!r}: write names with commas between them; `fedspm experiment list` helps")
    return names
