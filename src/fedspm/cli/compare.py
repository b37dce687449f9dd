"""fedspm compare | choose: grids of trainings."""

from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspm.base.errors import FedSPMError
from fedspm.cli.app import app
from fedspm.cli.options import (
    Clients,
    Components,
    ConfigFile,
    DataSet,
    EvalEvery,
    Horizon,
    Jobs,
    Preset,
    Rounds,
    Set,
    layers,
)
from fedspm.cli.output import INTERRUPTED, as_typed, counted, say
from fedspm.report.terminal import console, plain_table

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fedspm.experiments.grid import Cell


@app.command()
def compare(
    config: ConfigFile = None,
    algorithms: Annotated[
        str, typer.Option(help="all, or names with commas; fedspm-1x and fedspm-cx name the variants.")
    ] = "all",
    data: DataSet = None,
    clients: Clients = None,
    components: Components = None,
    preset: Preset = None,
    rounds: Rounds = None,
    horizon: Horizon = None,
    seeds: Annotated[str, typer.Option(help="Seeds with commas: data, partition and first weights.")] = "0",
    eval_every: EvalEvery = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="Folder of the tables and of all runs; goes on where it stopped.")] = Path(
        "runs/compare"
    ),
    set_: Set = None,
) -> None:
    """Train methods on the same data from the same start, and write the table that compares them."""
    from fedspm.experiments.comparison import comparison_cells, slowest_first
    from fedspm.experiments.tables import (
        COSTS,
        PLAIN,
        REACHED,
        accuracy_rows,
        cost_rows,
        difference_rows,
        write_comparison,
    )

    options = {
        "data.name": data,
        "data.clients": clients,
        "components": components,
        "preset": preset,
        "rounds": rounds,
        "horizon": horizon,
        "eval_every": eval_every,
    }
    cells = comparison_cells(layers(config, options, set_), algorithms, seeds, out)
    with grid(cells, slowest_first(cells), jobs, lambda command: write_comparison(out, cells, command)) as known:
        methods = known.methods
        if not methods:
            return
        title = "\naccuracy in per cent, mean ± standard deviation over seeds"
        console.print(plain_table(REACHED, accuracy_rows(methods, PLAIN), title))
        if len(methods) > 1:
            title = "\ndifference to the best, paired by seed, 95 % interval"
            console.print(plain_table(REACHED, difference_rows(methods, PLAIN), title))
        title = "\nparameters of all and of each client; bytes of a round, all clients"
        console.print(plain_table(COSTS, cost_rows(methods, PLAIN), title))
        if known.missing:
            say(f"not finished: {known.missing}")
        say(f"tables    {out}/table.md, table.csv, table.tex")
        say(f"curves    {out}/curves.png, curves.svg")


@app.command()
def choose(
    config: ConfigFile = None,
    components: Annotated[str, typer.Option(help="Numbers of components to try, with commas.")] = "1,2,3,4,5",
    algorithm: Annotated[str | None, typer.Option(help="fedspm or fedgmm. (default: fedspm)")] = None,
    data: DataSet = None,
    clients: Clients = None,
    preset: Preset = None,
    rounds: Rounds = None,
    seeds: Annotated[str, typer.Option(help="Seeds with commas.")] = "0",
    eval_every: EvalEvery = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="Folder of the table and of all runs; goes on where it stopped.")] = Path(
        "runs/choose"
    ),
    set_: Set = None,
) -> None:
    """How many components? Train each number, and compare the likelihood of rows that were held out."""
    from fedspm.experiments.select_components import BEST, HEADINGS, choice_cells, write_choice

    options = {
        "algorithm": algorithm,
        "data.name": data,
        "data.clients": clients,
        "preset": preset,
        "rounds": rounds,
        "eval_every": eval_every,
    }
    cells = choice_cells(layers(config, options, set_), components, seeds, out)
    with grid(cells, cells, jobs, lambda command: write_choice(out, cells, command)) as rows:
        if rows:
            title = "\nmean of log P(client, label | x) over held-out rows"
            console.print(plain_table(HEADINGS, rows, title))
            say(f"best      C = {next(row[0] for row in rows if BEST in row)}")
            say(f"picture   {out}/components.png, components.svg")


@contextmanager
def grid(
    cells: "Sequence[Cell]", order: "Sequence[Cell]", jobs: int | None, write: "Callable[[str], Any]"
) -> "Iterator[Any]":
    """Train a grid, writing its tables as cells end; hand out what was written; then say what did not end well."""
    from fedspm.base.threads import cores
    from fedspm.experiments.grid_progress import run_shown

    command = as_typed()
    if not cells:
        yield write(command)
        return
    jobs = min(jobs or cores(), len(cells))
    folder = cells[0].folder.parent.parent
    if folder.exists() and not folder.is_dir():
        raise FedSPMError(f"--out {folder} is a file; give a folder")
    with console.status("looking at what is done"):
        done = sum(cell.finished() for cell in cells)
    say(f"{counted(len(cells), 'training')}, {done} of them done, {jobs} at a time: {cells[0].folder.parent}")
    failures, stopped = run_shown(order, jobs, command, lambda: write(command))
    yield write(command)
    if stopped:
        say("stopped; go on with the same command")
        raise typer.Exit(INTERRUPTED)
    if failures:
        raise FedSPMError("; ".join(f"{cell.name}: {problem}" for cell, problem in failures.items()))
