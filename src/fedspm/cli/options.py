"""Options that several commands share, and how they become one configuration."""

from pathlib import Path
from typing import Annotated, Any

import typer

from fedspm.base.errors import FedSPMError

RunFolder = Annotated[Path, typer.Argument(metavar="RUN", help="Folder that `fedspm train` wrote.")]
Allow = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="Code from outside FedSPM that may run: the name that the folder has for an encoder, an algorithm, a "
        "transform or a data set. Repeatable. (default: none)",
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines instead of a table.")]
ConfigFile = Annotated[Path | None, typer.Argument(metavar="CONFIG.toml", help="Configuration file.")]
DataSet = Annotated[
    str | None,
    typer.Option(
        help="fashion-sample, fashion-mnist, cifar10, cifar100, fed-isic2019, one of a plugin, or the path of your own "
        "data. (default: fashion-sample)"
    ),
]
Clients = Annotated[int | None, typer.Option(help="Number of clients. (default: 8)")]
Components = Annotated[int | None, typer.Option(help="Components a client, C. (default: 3)")]
Preset = Annotated[str | None, typer.Option(help="default: measured best; paper: as printed. (default: default)")]
Rounds = Annotated[int | None, typer.Option(help="Rounds to train. (default: 200; CIFAR and Fed-ISIC2019: 400)")]
Horizon = Annotated[int | None, typer.Option(help="Length of the annealing schedule. (default: the rounds)")]
AlphaInter = Annotated[
    float | None, typer.Option(help="Dirichlet concentration of classes over clients. (default: 1.0)")
]
AlphaIntra = Annotated[
    float | None, typer.Option(help="Dirichlet concentration of the true mixing weights. (default: 2.0)")
]
Seed = Annotated[int | None, typer.Option(help="Everything random is derived from it. (default: 0)")]
EvalEvery = Annotated[
    int | None, typer.Option(help="Rounds between evaluations, each with a checkpoint. (default: 10)")
]
Jobs = Annotated[int | None, typer.Option(min=1, help="Trainings at a time. (default: one a core)")]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, e.g. --set router.steps=20. Repeatable."),
]


def layers(config: Path | None, options: dict[str, Any], assignments: list[str] | None) -> dict[str, Any]:
    """A configuration file, over it the options, over them `--set`."""
    from fedspm.base.layers import dotted, merged, parse_assignments
    from fedspm.runs.config import load_config

    given = dotted({key: value for key, value in options.items() if value is not None})
    return merged(load_config(config) if config else {}, given, parse_assignments(assignments or []))


def parse_numbers(option: str, text: str) -> list[int]:
    """Different whole numbers with commas between them."""
    try:
        found = [int(part) for part in text.split(",")]
    except ValueError:
        found = []
    if not found or len(set(found)) < len(found) or min(found) < 0:
        raise FedSPMError(
            f"{option} {text!r}: write different whole numbers with commas between them, for instance 0,1,2"
        )
    return found


def parse_names(option: str, text: str, advice: str) -> list[str]:
    """Names with commas between them."""
    names = [part.strip() for part in text.split(",") if part.strip()]
    if not names:
        raise FedSPMError(f"{option} {text!r}: {advice}")
    return names
