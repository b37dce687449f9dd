"""fedspm bench: measure, alternating both sides in one run."""

import json
from typing import Annotated

import typer

from fedspm.cli.app import app
from fedspm.cli.options import AsJson
from fedspm.errors import FedSPMError
from fedspm.terminal import console


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
