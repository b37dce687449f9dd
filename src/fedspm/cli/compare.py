"""fedspm compare | choose | tune: grids of trainings."""

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspm.base.errors import FedSPMError
from fedspm.cli.app import app
from fedspm.cli.grids import grid_options, showing_what_is_finished
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
    parse_names,
    parse_numbers,
)
from fedspm.cli.output import say
from fedspm.report.terminal import console, plain_table

if TYPE_CHECKING:
    from fedspm.experiments import Choice, Comparison, Tuning


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
    baselines: Annotated[
        bool,
        typer.Option(
            "--baselines",
            help="Should I federate? Also learn each client alone and pooled rows with scikit-learn; all is then "
            "local,fedavg,feddrm,fedspm-1x.",
        ),
    ] = False,
    set_: Set = None,
) -> None:
    """Train methods on the same data from the same start, and write the table that compares them."""
    from fedspm.experiments import compare as run_comparison

    options = {
        "data.name": data,
        "data.clients": clients,
        "components": components,
        "preset": preset,
        "rounds": rounds,
        "horizon": horizon,
        "eval_every": eval_every,
    }
    with showing_what_is_finished(partial(_show_comparison, out)):
        known = run_comparison(
            None if algorithms == "all" else _rows(algorithms),
            layers(config, options, set_),
            out=out,
            baselines=baselines,
            **grid_options(seeds, jobs),
        )
        _show_comparison(out, known)


def _rows(text: str) -> list[str]:
    advice = "write different names with commas between them (compare also takes all)"
    rows = parse_names("--algorithms", text, advice)
    if len(set(rows)) < len(rows):
        raise FedSPMError(f"--algorithms {text!r}: {advice}")
    return rows


def _show_comparison(out: Path, known: "Comparison") -> None:
    from fedspm.experiments.tables import COSTS, PLAIN, REACHED, accuracy_rows, cost_rows, difference_rows

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
    if known.rows:
        from fedspm.experiments.federate import HEADINGS, table

        title = "\nshould I federate? accuracy at home, of the system, and AUROC at home, in per cent"
        console.print(plain_table(HEADINGS, table(known.rows), title))
        for sentence in known.sentences:
            say(f"· {sentence}")
        say(f"by client {out}/federate.md")
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
    from fedspm.experiments import choose_components

    options = {
        "algorithm": algorithm,
        "data.name": data,
        "data.clients": clients,
        "preset": preset,
        "rounds": rounds,
        "eval_every": eval_every,
    }
    with showing_what_is_finished(partial(_show_choice, out)):
        choice = choose_components(
            parse_numbers("--components", components),
            layers(config, options, set_),
            out=out,
            **grid_options(seeds, jobs),
        )
        _show_choice(out, choice)


def _show_choice(out: Path, choice: "Choice") -> None:
    from fedspm.experiments.select_components import HEADINGS

    if choice.rows:
        title = "\nmean of log P(client, label | x) over held-out rows"
        console.print(plain_table(HEADINGS, choice.rows, title))
        say(f"best      C = {choice.best}")
        say(f"picture   {out}/components.png, components.svg")


@app.command()
def tune(
    config: ConfigFile = None,
    algorithms: Annotated[
        str, typer.Option(help="Names with commas; fedspm-1x and fedspm-cx name the variants.")
    ] = "fedavg,feddrm,fedspm-1x",
    try_: Annotated[
        list[str] | None,
        typer.Option(
            "--try",
            metavar="KEY=VALUES",
            help="A setting and what to try: router.steps=15,30 or a range, router.learning_rate=0.003..0.03. "
            "Repeatable. (default: learning rates)",
        ),
    ] = None,
    search: Annotated[str, typer.Option(help="grid: every combination; random; tpe: Optuna's.")] = "grid",
    trials: Annotated[int | None, typer.Option(min=1, help="Trials of each method. (default: 12; grid: all)")] = None,
    metric: Annotated[str, typer.Option(help="system, average or routing: the accuracy that decides.")] = "system",
    data: DataSet = None,
    clients: Clients = None,
    components: Components = None,
    preset: Preset = None,
    rounds: Rounds = None,
    horizon: Horizon = None,
    seeds: Annotated[str, typer.Option(help="Seeds with commas, from 100 up: lower ones are for reporting.")] = "100",
    eval_every: EvalEvery = None,
    jobs: Jobs = None,
    out: Annotated[Path, typer.Option(help="Folder of the tables and of all runs; goes on where it stopped.")] = Path(
        "runs/tune"
    ),
    set_: Set = None,
) -> None:
    """Choose settings on validation rows, with the same budget for every method; test rows are not looked at."""
    from fedspm.experiments import tune as run_tuning
    from fedspm.experiments.tuning.space import USUAL, parse_space

    options = {
        "data.name": data,
        "data.clients": clients,
        "components": components,
        "preset": preset,
        "rounds": rounds,
        "horizon": horizon,
        "eval_every": eval_every,
    }
    with showing_what_is_finished(partial(_show_tuning, out)):
        tuning = run_tuning(
            _rows(algorithms),
            layers(config, options, set_),
            parse_space(try_) if try_ else USUAL,
            search=search,
            trials=trials,
            metric=metric,
            out=out,
            **grid_options(seeds, jobs),
        )
        _show_tuning(out, tuning)


def _show_tuning(out: Path, tuning: "Tuning") -> None:
    from fedspm.experiments.tuning.page import HEADINGS, trial_rows

    for row in tuning.spaces:
        if outcomes := tuning.of(row):
            title = f"\n{row}: {tuning.metric} accuracy on validation rows in per cent"
            console.print(plain_table(HEADINGS, trial_rows(outcomes), title))
            if edge := tuning.at_the_edge(row):
                say(f"at the edge of what was tried: {', '.join(edge)}")
    if tuning.failed:
        say(f"failed    {tuning.failed}")
    if tuning.outcomes:
        say(f"chosen    {out}/chosen.toml")
        say(f"tables    {out}/tuning.md")
