"""fedspm train | resume."""

import warnings
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from fedspm.base.errors import FedSPMError
from fedspm.cli.app import app
from fedspm.cli.options import (
    Allow,
    AlphaInter,
    AlphaIntra,
    Clients,
    Components,
    ConfigFile,
    DataSet,
    EvalEvery,
    Horizon,
    Preset,
    Rounds,
    RunFolder,
    Seed,
    Set,
    layers,
)
from fedspm.cli.output import INTERRUPTED, allowing, as_typed, program, say, show_results
from fedspm.report.terminal import console, counted

if TYPE_CHECKING:
    from fedspm.data.federation import Federation
    from fedspm.runs.checkpoints import Checkpoint
    from fedspm.runs.config import Config
    from fedspm.runs.folder import Run

SHOWN_WARNINGS = 5


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
    alpha_inter: AlphaInter = None,
    alpha_intra: AlphaIntra = None,
    seed: Seed = None,
    eval_every: EvalEvery = None,
    workers: Annotated[str | None, typer.Option(help="Clients trained at a time. (default: auto, one a core)")] = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or mps. (default: auto)")] = None,
    engine: Annotated[
        str | None, typer.Option(help="local, or flower-simulation: Flower and Ray on this machine. (default: local)")
    ] = None,
    algorithm: Annotated[
        str | None,
        typer.Option(
            help="fedspm, feddrm, fedgmm, fedem, cluster-fl, ditto, fedbabu, fedper, fedavg-ft, fedprox, scaffold, "
            "fedadam, fedavg, local, or one of a plugin. (default: fedspm)"
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
    from fedspm.data.settings import OWN
    from fedspm.engines.local import choose_device
    from fedspm.runs.config import resolve
    from fedspm.runs.folder import Run

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
        "engine": engine,
        "algorithm": algorithm,
        "diagnose_every": diagnose_every,
        "tensorboard": tensorboard,
    }
    settings = resolve(layers(config, options, set_))
    if settings.engine == "flower":
        raise FedSPMError("a run across machines is started with `fedspm federation train`: docs/deploy.md")
    folder = out or Path("runs") / f"{settings.data.title}-{settings.algorithm}-{settings.variant}-seed{settings.seed}"
    choose_device(settings.device)
    with console.status("reading the data"):
        run, federation = Run.begin(folder, settings, as_typed())
    _describe(run)
    if settings.data.name == OWN:
        _warn(federation, settings)
    with run.locked():
        _train(run, federation)


@app.command()
def resume(
    run: RunFolder,
    rounds: Annotated[
        int | None, typer.Option(min=1, help="Train up to this round of its schedule (--horizon). (default: as begun)")
    ] = None,
    allow: Allow = None,
) -> None:
    """Go on with a run that was stopped, killed or meant to end here; the result is the same as without the stop."""
    from fedspm.runs.folder import Run

    opened = Run.open(run, allow or ())
    if opened.across_sites:
        raise FedSPMError(
            f"{run} is trained across sites; go on with: {program()} federation resume {quote(str(run))} "
            "--superlink HOST:PORT" + (" (for as many rounds as it began with)" if rounds else "")
        )
    opened.require_allowed()
    with opened.locked():
        with console.status("reading the data"):
            checkpoint, federation = opened.resume()
        if rounds is not None:
            opened.extend(rounds, as_typed())
        if checkpoint:
            say(f"{run}: going on after round {checkpoint.round} of {opened.config.rounds}")
        _train(opened, federation, checkpoint)


def _warn(federation: "Federation", settings: "Config") -> None:
    """What `fedspm data check` would have said."""
    from fedspm.data.check import inspect

    with console.status("looking at the data"):
        found = inspect(federation, "your own data", settings.min_count).warnings
    for text in found[:SHOWN_WARNINGS]:
        warnings.warn(text, stacklevel=2)
    if (more := len(found) - SHOWN_WARNINGS) > 0:
        warnings.warn(f"… and {more} more: {program()} data check {quote(str(settings.data.path))}", stacklevel=2)


def _describe(run: "Run") -> None:
    manifest, config = run.manifest, run.config
    clients, rows, components = len(manifest["clients"]), sum(manifest["counts"]), manifest["components"]
    hidden = (
        f", {components} component{'s' if components > 1 else ''} a client" if run.algorithm().has_components else ""
    )
    say(f"{config.algorithm} on {config.data.title}: {clients} clients, {rows:,} training rows{hidden}")
    for role, size in manifest["encoders"].items():
        say(
            f"  {role:9} {size['copies']} × {size['parameters'] // size['copies']:,} parameters, "
            f"{size['multiply_adds']:,} multiply-adds a row"
        )


def _train(run: "Run", federation: "Federation", checkpoint: "Checkpoint | None" = None) -> None:
    from fedspm.report.html import write_report
    from fedspm.training.callbacks import Callback, Progress, StopOnInterrupt, TensorBoard
    from fedspm.training.loop import train

    config = run.config
    callbacks: list[Callback] = [Progress(console), StopOnInterrupt(console)]
    if config.tensorboard:
        callbacks.append(TensorBoard(run.path / "tensorboard"))
    training = train(config, run.algorithm(), federation, run=run, checkpoint=checkpoint, callbacks=callbacks)
    if not training.finished:
        again = f"{program()} resume {quote(str(run.path))}{allowing(run)}"
        say(f"stopped after round {training.round}; go on with: {again}")
        raise typer.Exit(INTERRUPTED)
    with console.status("writing the report"):
        report, samples = write_report(run, run.model(), federation)
    metrics = run.last_metrics()
    show_results(metrics, f"\nafter {counted(metrics['round'], 'round')}, accuracy on {config.data.tested_on}")
    say(f"report    {report}")
    if run.algorithm().routes:
        what = f"{quote(str(samples.parent))}/{samples.name}"  # which may be a pattern, and is not quoted
        say(f"try next  {program()} route {quote(str(run.path))} {what}{allowing(run)}")
    if config.data.name == "fashion-sample":
        say(f"          {program()} train --data fashion-mnist     (all 70,000 images)")
