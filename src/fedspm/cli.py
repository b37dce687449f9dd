"""The command line: fedspm train | resume | evaluate | route | bench."""

import json
import shlex
import shutil
import sys
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from fedspm.errors import FedSPMError
from fedspm.terminal import console, errors, results_table, watching
from fedspm.version import __version__

if TYPE_CHECKING:
    from fedspm.data.federation import Federation
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


@app.command()
def train(
    config: Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Configuration file.")] = None,
    data: Annotated[str | None, typer.Option(help="fashion-sample or fashion-mnist. (default: fashion-sample)")] = None,
    clients: Annotated[int | None, typer.Option(help="Number of clients. (default: 8)")] = None,
    components: Annotated[int | None, typer.Option(help="Components a client, C. (default: 3)")] = None,
    variant: Annotated[
        str | None, typer.Option(help="1x: components share their encoders; cx: one each. (default: 1x)")
    ] = None,
    preset: Annotated[
        str | None, typer.Option(help="default: measured best; paper: as printed. (default: default)")
    ] = None,
    rounds: Annotated[int | None, typer.Option(help="Rounds to train. (default: 200)")] = None,
    horizon: Annotated[int | None, typer.Option(help="Length of the annealing schedule. (default: the rounds)")] = None,
    alpha_inter: Annotated[
        float | None, typer.Option(help="Dirichlet concentration of classes over clients. (default: 1.0)")
    ] = None,
    alpha_intra: Annotated[
        float | None, typer.Option(help="Dirichlet concentration of the true mixing weights. (default: 2.0)")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="Everything random is derived from it. (default: 0)")] = None,
    eval_every: Annotated[
        int | None, typer.Option(help="Rounds between evaluations, each with a checkpoint. (default: 10)")
    ] = None,
    workers: Annotated[str | None, typer.Option(help="Clients trained at a time. (default: auto, one a core)")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps. (default: auto)")] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="fedspm, feddrm, fedgmm, fedem, cluster-fl, ditto, fedbabu, fedavg-ft, fedprox or fedavg. "
            "(default: fedspm)"
        ),
    ] = None,
    tensorboard: Annotated[
        bool | None, typer.Option("--tensorboard", help="Also write TensorBoard files. (default: no)")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Run folder. (default: runs/DATA-ALGORITHM-VARIANT-seedSEED)")
    ] = None,
    set_: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, e.g. --set router.steps=20. Repeatable."),
    ] = None,
) -> None:
    """Train, evaluate and write a run folder with a report."""
    from fedspm.config import dotted, load_config, parse_assignments, resolve

    options: dict[str, Any] = {
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
        "tensorboard": tensorboard,
    }
    given = dotted({key: value for key, value in options.items() if value is not None})
    settings = resolve(load_config(config) if config else {}, given, parse_assignments(set_ or []))
    folder = out or Path("runs") / f"{settings.data.name}-{settings.algorithm}-{settings.variant}-seed{settings.seed}"

    from fedspm.algorithms import algorithm_named
    from fedspm.engines.local import choose_device
    from fedspm.runs import Run, manifest, refuse_existing, task_of

    refuse_existing(folder)
    choose_device(settings.device)
    with console.status("reading the data"):
        federation = settings.federation()
    method = algorithm_named(settings.algorithm)(settings, task_of(federation))
    command = shlex.join(["fedspm", *sys.argv[1:]])
    run = Run.create(folder, settings, manifest(federation, method, command))
    _describe(run)
    _train(run, federation)


@app.command()
def resume(run: RunFolder) -> None:
    """Go on with a run that was stopped or killed; the result is the same as without the stop."""
    from fedspm.runs import Run

    opened = Run.open(run)
    opened.sweep()
    opened.metrics()  # damage is better found now than at the next evaluation
    checkpoint = opened.latest() if opened.has_checkpoint() else None  # killed before round 0: start anew
    with console.status("reading the data"):
        federation = opened.federation()
    if checkpoint:
        _say(f"{run}: going on after round {checkpoint.round} of {opened.config.rounds}")
    _train(opened, federation, checkpoint)


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
    data: Annotated[str, typer.Option(help="Data set.")] = "fashion-mnist",
    repeats: Annotated[int, typer.Option(help="Repeats; medians are reported.")] = 5,
    as_json: AsJson = False,
) -> None:
    """Measure, alternating both sides in one run."""
    if what != "round":
        raise FedSPMError(f"there is no benchmark {what!r}; known is: round")
    from fedspm.bench import bench_round, round_table

    result = bench_round(data, repeats)
    if as_json:
        print(json.dumps(result))
    else:
        console.print(round_table(result))


def _say(text: str) -> None:
    """A line that may hold paths: no markup in it, and no line breaks but its own."""
    console.print(text, markup=False, soft_wrap=True)


def _describe(run: "Run") -> None:
    manifest, config = run.manifest, run.config
    clients, rows, components = len(manifest["clients"]), sum(manifest["counts"]), manifest["components"]
    _say(
        f"{config.algorithm} on {config.data.name}: {clients} clients, {rows:,} training rows, "
        f"{components} component{'s' if components > 1 else ''} a client ({config.variant})"
    )
    for role, size in manifest["encoders"].items():
        _say(f"  {role:9} {size['parameters']:>9,} parameters {size['multiply_adds']:>11,} multiply-adds a row")


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
    _say(f"try next  {_program()} route {run.path} {samples}/*.png")
    _say(f"          {_program()} train --data fashion-mnist     (all 70,000 images)")


def _program() -> str:
    """How this program was called: `.venv/bin/fedspm` where no environment is active."""
    return "fedspm" if shutil.which("fedspm") or not sys.argv[0].endswith("fedspm") else sys.argv[0]


if __name__ == "__main__":
    main()
