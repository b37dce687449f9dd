"""The paper's tables and figures as calls: train what is missing, write the results, return what was reached."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any

from fedspm.base.errors import DamagedFile, FedSPMError
from fedspm.base.files import explained, write_atomically
from fedspm.base.layers import merged
from fedspm.experiments.cell import Cell
from fedspm.experiments.comparison import slowest_first
from fedspm.experiments.coverage import missing, other_settings, reductions
from fedspm.experiments.grid import Unfinished, run_grid
from fedspm.experiments.grid_progress import SILENT, Progress
from fedspm.experiments.plan import EXPERIMENTS, RESULTS, Plan, Selection, load_plan, plan_cells
from fedspm.experiments.records import Records
from fedspm.experiments.results import Reached, write_results
from fedspm.report.data_plots import ALPHAS, plot_data
from fedspm.runs.config import resolve


@dataclass(frozen=True)
class ExperimentResult:
    """What an experiment has reached so far; the same stands in `folder`/README.md."""

    plan: Plan
    folder: Path
    reached: Reached  # the rows of every panel that has any
    reductions: Sequence[str]  # where less was trained than the plan says
    missing: Sequence[str]  # what nobody has trained


@dataclass(frozen=True)
class ExperimentStatus:
    """How many trainings of an experiment are done; `problem` says why that is not known."""

    name: str
    plan: Plan
    done: int = 0
    reduced: bool = False
    problem: str | None = None


def run_experiment(
    name: str,
    *,
    seeds: Sequence[int] | None = None,
    methods: Sequence[str] | None = None,
    panels: Sequence[str] | None = None,
    rounds: int | None = None,
    settings: Mapping[str, Any] | None = None,
    out: Path | str = RESULTS,
    jobs: int | None = None,
    progress: Progress = SILENT,
    command: str | None = None,
) -> ExperimentResult:
    """Train what is not done of an experiment, and write its tables and figures into `out`/NAME.

    Without `seeds`, `methods` and `panels` the whole of it is trained. `rounds` takes the first rounds of the schedule;
    `settings` are laid over the plan's. Raises Unfinished, with the result so far, if a training fails or is
    interrupted; the same call continues. `command` is what run folders say made them.
    """
    selection = Selection(seeds, methods, panels, rounds, settings or {})
    return run_plan(load_plan(name), selection, Path(out), jobs=jobs, progress=progress, command=command)


def run_experiments(
    selection: Selection,
    *,
    out: Path | str = RESULTS,
    jobs: int | None = None,
    progress: Progress = SILENT,
    command: str | None = None,
) -> Iterator[ExperimentResult]:
    """All experiments one after the other, yielding each result; what is refused is refused before anything is trained.

    An experiment that fails stops no other; at the end an error names those that are not finished.
    """
    plans = [load_plan(name) for name in EXPERIMENTS]
    for option, wanted, known in (
        ("--methods", selection.rows, {row for plan in plans for row in plan.rows}),
        ("--panels", selection.panels, {panel.name for plan in plans for panel in plan.panels}),
    ):
        if unknown := {*(wanted or ())} - known:
            raise FedSPMError(f"{option} {', '.join(sorted(unknown))}: no experiment has it")
    todo = [(plan, within) for plan in plans if (within := selection.within(plan))]
    for plan, within in todo:
        with suppress(DamagedFile):  # said when its turn comes
            select_cells(plan, within, Path(out), lambda _: None)
    failed = []
    for plan, within in todo:
        try:
            yield run_plan(plan, within, Path(out), jobs=jobs, progress=progress, command=command)
        except FedSPMError as error:
            if isinstance(error, Unfinished):
                if error.interrupted:
                    raise
                yield error.result
            progress.say(f"{plan.name}: {error}")
            failed.append(plan.name)
    if failed:
        raise FedSPMError(f"not finished: {', '.join(failed)}; the same command goes on")


def run_plan(
    plan: Plan, selection: Selection, out: Path, *, jobs: int | None, progress: Progress, command: str | None
) -> ExperimentResult:
    """Train what is selected of a plan and not done."""
    cells, todo, records = select_cells(plan, selection, out, progress.say)
    progress.say(f"{plan.name}: {plan.title}; {len(cells) - len(todo)} of {len(cells)} trainings are known")
    folder, resuming = out / plan.name, selection.command(plan, out)
    _require_writable(folder)

    def write() -> ExperimentResult:
        with records.lock:  # another grid may write the same files
            records.take(todo, plan)
            reached = write_results(plan, records, folder, resuming)
        return ExperimentResult(plan, folder, reached, reductions(plan, records), missing(plan, records))

    return run_grid(todo, slowest_first(todo), write, jobs=jobs, command=command or resuming, progress=progress)


def select_cells(
    plan: Plan, selection: Selection, out: Path, say: Callable[[str], None]
) -> tuple[Sequence[Cell], Sequence[Cell], Records]:
    """The trainings that are selected, those of them that are not done, and all that is known of the plan; what does
    not fit together is refused."""
    cells = plan_cells(plan, selection, out / plan.name)
    records = Records(out / plan.name / "cells.jsonl")
    others = []
    for name in (name for name in EXPERIMENTS if name != plan.name):
        try:
            others.append(Records(out / name / "cells.jsonl"))
        except DamagedFile as error:
            say(f"nothing is borrowed from {name}: {error}")
    whole = plan_cells(plan, replace(selection, seeds=None, rows=None, panels=None), out / plan.name)
    records.borrow([*whole, *cells], others)
    records.refuse_other_data(cells)
    return cells, [cell for cell in cells if cell not in records], records


def list_experiments(out: Path | str = RESULTS) -> list[ExperimentStatus]:
    """How far every experiment is in this folder."""
    found = []
    for name in EXPERIMENTS:
        plan = load_plan(name)
        try:
            records = Records(Path(out) / name / "cells.jsonl")
        except DamagedFile as error:
            found.append(ExperimentStatus(name, plan, problem=str(error)))
            continue
        done = len(records.lines.keys() & plan.keys())
        found.append(ExperimentStatus(name, plan, done, bool(other_settings(plan, records))))
    return found


def draw_shifts(settings: Mapping[str, Any], folder: Path, command: str) -> list[Path]:
    """The three pictures of the constructed heterogeneity, and a page with them; nothing is trained."""
    config = resolve(merged({"data": {"name": "fashion-mnist"}}, settings))
    written = plot_data(config, ALPHAS, ALPHAS, folder)
    title = f"# The constructed heterogeneity\n\n`{command}`: {config.data.title}, {config.data.clients} clients.\n\n"
    write_atomically(folder / "README.md", title + "".join(f"![{each.stem}]({each.name})\n\n" for each in written))
    return written


def _require_writable(folder: Path) -> None:
    """Better now than after the first training."""
    with explained(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with TemporaryFile(dir=folder):
            pass
