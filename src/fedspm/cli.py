"""The command line: fedspm train | resume | compare | choose | diagnose | evaluate | route | bench."""

import json
import os
import shlex
import shutil
import sys
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspm.errors import FedSPMError
from fedspm.terminal import console, errors, plain_table, results_table, watching
from fedspm.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from fedspm.data.federation import Federation
    from fedspm.grid import Cell
    from fedspm.runs import Checkpoint, Run

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    help="Routing-enabled federated learning under dual heterogeneity.",
)
INTERRUPTED = 130


def main() -> None:
    """Run a command; errors that a person can act on become one sentence and exit code 1."""
    warnings.showwarning = lambda message, *_, **__: errors.print(f"warning: {message}", style="yellow", markup=False)
    sys.path.insert(0, "")  # encoders of one's own are found in the working directory, as with `python -m`
    try:
        app()
    except FedSPMError as error:
        errors.print(f"fedspm: {error}", style="red", markup=False, soft_wrap=True)
        sys.exit(1)
    except KeyboardInterrupt:
        errors.print("fedspm: interrupted")
        sys.exit(INTERRUPTED)


@app.callback(invoke_without_command=True)
def about(version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False) -> None:
    if version:
        console.print(__version__)
        raise typer.Exit


RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `fedspm train` wrote.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
ConfigFile = Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Configuration file.")]
DataSet = Annotated[str | None, typer.Option(help="fashion-sample or fashion-mnist. (default: fashion-sample)")]
Clients = Annotated[int | None, typer.Option(help="Number of clients. (default: 8)")]
Components = Annotated[int | None, typer.Option(help="Components a client, C. (default: 3)")]
Preset = Annotated[str | None, typer.Option(help="default: measured best; paper: as printed. (default: default)")]
Rounds = Annotated[int | None, typer.Option(help="Rounds to train. (default: 200)")]
Horizon = Annotated[int | None, typer.Option(help="Length of the annealing schedule. (default: the rounds)")]
EvalEvery = Annotated[
    int | None, typer.Option(help="Rounds between evaluations, each with a checkpoint. (default: 10)")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Trainings at a time. (default: one a core)")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, e.g. --set router.steps=20. Repeatable."),
]


@app.command()
def train(
    config: ConfigFile = None,
    data: DataSet = None,
    clients: Clients = None,
    components: Components = None,
    variant: Annotated[
        str | None, typer.Option(help="1x: components share their encoders; cx: one each. (default: 1x)")
    ] = None,
    preset: Preset = None,
    rounds: Rounds = None,
    horizon: Horizon = None,
    alpha_inter: Annotated[
        float | None, typer.Option(help="Dirichlet concentration of classes over clients. (default: 1.0)")
    ] = None,
    alpha_intra: Annotated[
        float | None, typer.Option(help="Dirichlet concentration of the true mixing weights. (default: 2.0)")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random is derived from it. (default: 0)")] = None,
    eval_every: EvalEvery = None,
    workers: Annotated[str | None, typer.Option(help="Clients trained at a time. (default: auto, one a core)")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps. (default: auto)")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="fedspm, feddrm, fedgmm, fedem, cluster-fl, ditto, fedbabu, fedavg-ft, fedprox, fedavg, or one of a "
            "plugin. (default: fedspm)"
        ),
    ] = None,
    diagnose_every: Annotated[
        int | None,
        typer.Option(help="Rounds between diagnoses of convergence, for `fedspm diagnose`. (default: never)"),
    ] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Also write TensorBoard files. (default: no)")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. (default: runs/DATA-ALGORITHM-VARIANT-seedSEED)")
    ] = None,
    set_: Set = None,
) -> None:
    """Train, evaluate and write a run folder with a report."""
    from fedspm.config import resolve
    from fedspm.engines.local import choose_device
    from fedspm.runs import Run

    options = {
        "data.name": data,
        "data.clients": clients,
        "data.alpha_inter": alpha_inter,
        "data.alpha_intra": alpha_intra,
        "components": components,
        "variant": variant,
        "preset": preset,
        "rounds": rounds,
        "horizon": horizon,
        "seed": seed,
        "eval_every": eval_every,
        "workers": workers,
        "device": device,
        "algorithm": algorithm,
        "diagnose_every": diagnose_every,
        "tensorboard": tensorboard,
    }
    settings = resolve(_layers(config, options, set_))
    folder = out or Path("runs") / f"{settings.data.name}-{settings.algorithm}-{settings.variant}-seed{settings.seed}"
    choose_device(settings.device)
    with console.status("reading the data"):
        run, federation = Run.begin(folder, settings, _command())
    _describe(run)
    with run.locked():
        _train(run, federation)


@app.command()
def resume(run: RunFolder) -> None:
    """Go on with a run that was stopped or killed; the result is the same as without the stop."""
    from fedspm.runs import Run

    opened = Run.open(run)
    with opened.locked():
        with console.status("reading the data"):
            checkpoint, federation = opened.go_on()
        if checkpoint:
            _say(f"{run}: going on after round {checkpoint.round} of {opened.config.rounds}")
        _train(opened, federation, checkpoint)


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
    from fedspm.comparison import comparison_cells, slowest_first
    from fedspm.tables import COSTS, PLAIN, REACHED, accuracy_rows, cost_rows, difference_rows, write_comparison

    options = {
        "data.name": data,
        "data.clients": clients,
        "components": components,
        "preset": preset,
        "rounds": rounds,
        "horizon": horizon,
        "eval_every": eval_every,
    }
    cells = comparison_cells(_layers(config, options, set_), algorithms, seeds, out)
    with _grid(cells, slowest_first(cells), jobs, lambda command: write_comparison(out, cells, command)) as known:
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
            _say(f"not finished: {known.missing}")
        _say(f"tables    {out}/table.md, table.csv, table.tex")
        _say(f"curves    {out}/curves.png, curves.svg")


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
    from fedspm.choosing import BEST, HEADINGS, choice_cells, write_choice

    options = {
        "algorithm": algorithm,
        "data.name": data,
        "data.clients": clients,
        "preset": preset,
        "rounds": rounds,
        "eval_every": eval_every,
    }
    cells = choice_cells(_layers(config, options, set_), components, seeds, out)
    with _grid(cells, cells, jobs, lambda command: write_choice(out, cells, command)) as rows:
        if rows:
            title = "\nmean of log P(client, label | x) over held-out rows"
            console.print(plain_table(HEADINGS, rows, title))
            _say(f"best      C = {next(row[0] for row in rows if BEST in row)}")
            _say(f"picture   {out}/components.png, components.svg")


@app.command()
def evaluate(run: RunFolder, as_json: AsJson = False) -> None:
    """Print the last metrics of a run."""
    from fedspm.runs import Run

    metrics = Run.open(run).last_metrics()
    if as_json:
        print(json.dumps(metrics, ensure_ascii=False))
    else:
        console.print(results_table(metrics, f"{run}, round {metrics['round']}"))


@app.command()
def diagnose(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Folders trained with --diagnose-every.")],
    out: Annotated[Path | None, typer.Option(help="Picture, svg or png. (default: convergence.svg in the run)")] = None,
    as_json: AsJson = False,
) -> None:
    """Gradient norms and bridge errors along training, as the paper's momentum figure shows them."""
    from fedspm.diagnose import BRIDGE, accumulation, bridge_rows, bridges, write_picture
    from fedspm.runs import Run

    opened = [Run.open(run) for run in runs]
    found = bridges(opened)
    picture = write_picture(found, out or runs[0] / "convergence.svg")
    rows = bridge_rows(found)
    if as_json:
        for row in rows:
            print(json.dumps(dict(zip(BRIDGE, row, strict=True)), ensure_ascii=False))
    else:
        console.print(plain_table(BRIDGE, rows, "after the last diagnosed round"))
        for each in opened:
            _say(accumulation(each))
        _say(f"picture   {picture}")


@app.command()
def route(
    run: RunFolder,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGE...", help="Image files.")],
    as_json: AsJson = False,
) -> None:
    """Route images to the client they resemble most, and predict there."""
    from fedspm.data.images import read_image
    from fedspm.queries import answer
    from fedspm.runs import Run

    opened = Run.open(run)
    rows = [read_image(path, opened.task.shape) for path in images]
    for path, reply in zip(images, answer(opened, rows), strict=True):
        if as_json:
            print(json.dumps({"image": str(path), **reply}, ensure_ascii=False))
        else:
            sure, near = max(reply["probabilities"].values()), max(reply["posterior"].values())
            _say(f"{path}: {reply['prediction']} ({sure:.2f}), answered by {reply['client']} ({near:.2f})")


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help="round: a round of training against bare tensor work.")],
    algorithm: Annotated[str, typer.Option(help="Whose round.")] = "fedspm",
    variant: Annotated[str, typer.Option(help="1x or cx.")] = "1x",
    data: Annotated[str, typer.Option(help="Data set.")] = "fashion-mnist",
    repeats: Annotated[int, typer.Option(help="Repeats; medians are reported.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure, alternating both sides in one run."""
    if what != "round":
        raise FedSPMError(f"there is no benchmark {what!r}; known is: round")
    from fedspm.bench import bench_round, round_table

    result = bench_round(algorithm, variant, data, repeats)
    if as_json:
        print(json.dumps(result))
    else:
        console.print(round_table(result))


@contextmanager
def _grid(
    cells: "Sequence[Cell]", order: "Sequence[Cell]", jobs: int | None, write: "Callable[[str], Any]"
) -> "Iterator[Any]":
    """Train a grid, writing its tables as cells end; hand out what was written; then say what did not end well."""
    from fedspm.grid import run_shown

    jobs = min(jobs or os.cpu_count() or 1, len(cells))
    folder = cells[0].folder.parent.parent
    if folder.exists() and not folder.is_dir():
        raise FedSPMError(f"--out {folder} is a file; give a folder")
    with console.status("looking at what is done"):
        done = sum(cell.finished() for cell in cells)
    _say(f"{len(cells)} trainings, {done} of them done, {jobs} at a time: {cells[0].folder.parent}")
    command = _command()
    failures, stopped = run_shown(order, jobs, command, lambda: write(command))
    yield write(command)
    if stopped:
        _say("stopped; go on with the same command")
        raise typer.Exit(INTERRUPTED)
    if failures:
        raise FedSPMError("; ".join(f"{cell.name}: {problem}" for cell, problem in failures.items()))


def _layers(config: Path | None, options: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """A configuration file, over it the options, over them `--set`."""
    from fedspm.config import dotted, load_config, merged, parse_assignments

    given = dotted({key: value for key, value in options.items() if value is not None})
    return merged(load_config(config) if config else {}, given, parse_assignments(assignments or []))


def _command() -> str:
    return shlex.join(["fedspm", *sys.argv[1:]])


def _say(text: str) -> None:
    """A line that may hold paths: no markup in it, and no line breaks but its own."""
    console.print(text, markup=False, soft_wrap=True)


def _describe(run: "Run") -> None:
    manifest, config = run.manifest, run.config
    clients, rows, components = len(manifest["clients"]), sum(manifest["counts"]), manifest["components"]
    hidden = f", {components} component{'s' if components > 1 else ''} a client" if run.algorithm().mixes else ""
    _say(f"{config.algorithm} on {config.data.name}: {clients} clients, {rows:,} training rows{hidden}")
    for role, size in manifest["encoders"].items():
        _say(
            f"  {role:9} {size['copies']} × {size['parameters'] // size['copies']:,} parameters, "
            f"{size['multiply_adds']:,} multiply-adds a row"
        )


def _train(run: "Run", federation: "Federation", checkpoint: "Checkpoint | None" = None) -> None:
    from fedspm.report import write_report
    from fedspm.training import train

    config = run.config
    done = checkpoint.round if checkpoint else 0
    with watching(config.rounds, done, run.path / "tensorboard" if config.tensorboard else None) as watcher:
        done = train(config, federation, run.algorithm(), run, watcher, checkpoint)
    if done < config.rounds:
        _say(f"stopped after round {done}; go on with: {_program()} resume {run.path}")
        raise typer.Exit(INTERRUPTED)
    with console.status("writing the report"):
        report, samples = write_report(run, run.model(), federation)
    metrics = run.last_metrics()
    console.print(results_table(metrics, f"\nafter {metrics['round']} rounds, accuracy on test rows"))
    _say(f"report    {report}")
    if run.algorithm().routes:
        _say(f"try next  {_program()} route {run.path} {samples}/*.png")
    if config.data.name == "fashion-sample":
        _say(f"          {_program()} train --data fashion-mnist     (all 70,000 images)")


def _program() -> str:
    """How this program was called: `.venv/bin/fedspm` where no environment is active."""
    return "fedspm" if shutil.which("fedspm") or not sys.argv[0].endswith("fedspm") else sys.argv[0]


if __name__ == "__main__":
    main()
