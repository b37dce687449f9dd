"""fedspm experiment: the paper's tables and figures, trained and written by one command each."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspm.cli.app import app
from fedspm.cli.grids import showing_what_is_finished
from fedspm.cli.options import Jobs, Set, parse_names, parse_numbers
from fedspm.cli.output import as_typed, say
from fedspm.report.terminal import console, plain_table

if TYPE_CHECKING:
    from fedspm.experiments import ExperimentResult

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
    from fedspm.experiments import Selection, TerminalProgress, load_plan, run_experiments
    from fedspm.experiments.runner import draw_shifts, run_plan

    if name == "list":
        _list(out)
        return
    selection = Selection(
        seeds=None if seeds is None else parse_numbers("--seeds", seeds),
        rows=_names("--methods", methods),
        panels=_names("--panels", panels),
        rounds=rounds,
        settings=parse_assignments(set_ or []),
    )
    progress, command = TerminalProgress(say), as_typed()
    with showing_what_is_finished(_show):
        if name == "all":
            for result in run_experiments(selection, out=out, jobs=jobs, progress=progress, command=command):
                _show(result)
        elif name != SHIFTS:
            _show(run_plan(load_plan(name), selection, out, jobs=jobs, progress=progress, command=command))
    if name in (SHIFTS, "all"):
        draw_shifts(selection.settings, out / SHIFTS, command)
        say(f"pictures  {out / SHIFTS}/README.md")


def _show(result: "ExperimentResult") -> None:
    from fedspm.experiments.coverage import named_seeds
    from fedspm.experiments.tables import PLAIN, REACHED, accuracy_rows

    for panel, rows in result.reached.items():
        title = f"\n{result.plan.panel(panel).title}, {named_seeds(rows[0].curves)}: accuracy in per cent"
        console.print(plain_table(REACHED, accuracy_rows(rows, PLAIN), title))
    if not result.reached:
        return
    if result.reductions:
        say(f"reduced   {'; '.join(result.reductions)}")
    if result.missing:
        say(f"not run   listed in {result.folder}/README.md")
    say(f"results   {result.folder}/README.md")


def _list(out: Path) -> None:
    from fedspm.experiments import list_experiments

    say(f"{SHIFTS:11} {'':25} One image under all shifts, labels and mixing weights of every client (appendix)")
    for each in list_experiments(out):
        if each.problem:
            say(f"{each.name:11} {each.problem}")
            continue
        done = f"{each.done} of {len(each.plan.keys())} done" + (", reduced" if each.reduced else "")
        say(f"{each.name:11} {done:25} {each.plan.title} ({each.plan.source or 'ours'})")


def _names(option: str, text: str | None) -> list[str] | None:
    return (
        None
        if text is None
        else parse_names(option, text, "write names with commas between them; `fedspm experiment list` helps")
    )
