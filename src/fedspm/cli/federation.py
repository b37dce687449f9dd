"""fedspm federation demo | certificates | key | register | site | preview | ledger | train | resume: runs across
machines."""

import json
import signal
import sys
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from fedspm.base.errors import FedSPMError
from fedspm.base.printable import printable_json
from fedspm.cli.app import app
from fedspm.cli.options import Allow, AsJson, Set, layers
from fedspm.cli.output import say, show_results
from fedspm.report.terminal import console, counted, plain_table

if TYPE_CHECKING:
    from fedspm.runs.folder import Run

federation = typer.Typer(no_args_is_help=True, help="Train across machines on Flower: docs/deploy.md.")
app.add_typer(federation, name="federation")

SuperLink = Annotated[str, typer.Option(help="Address of the SuperLink, host:port.")]
RootCertificates = Annotated[
    Path | None, typer.Option(help="The operator's ca.crt. Without it the connection is not encrypted.")
]


@federation.callback()
def require_flower() -> None:
    try:
        import flwr  # noqa: F401
    except ImportError as error:
        raise FedSPMError("Flower is not installed; pip install 'fedspm[flower]'") from error


@federation.command()
def demo(
    sites: Annotated[int, typer.Option(min=2, help="Number of sites.")] = 3,
    rounds: Annotated[int, typer.Option(min=1, help="Rounds to train.")] = 3,
    out: Annotated[Path, typer.Option(help="Folder for everything.")] = Path("runs/federation-demo"),
    set_: Set = None,
) -> None:
    """Server and sites as separate processes on this machine, with TLS and keys; a training; everything stopped."""
    from fedspm.deploy.demo import run_federation
    from fedspm.runs.config import resolve

    options = {"data.clients": sites, "rounds": rounds, "eval_every": 1}
    config = resolve(layers(None, options, set_))
    with console.status("reading the data"):
        data = config.federation()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that the processes it started are stopped then as well
    _show(run_federation(config, out, federation=data, say=say))


@federation.command()
def certificates(
    folder: Annotated[Path, typer.Argument(help="Folder for ca.crt, server.pem and server.key.")],
    host: Annotated[list[str], typer.Option(help="Name or address by which sites reach the server. Repeatable.")],
) -> None:
    """The operator: make the server's certificate, and the ca.crt that every site gets."""
    from fedspm.deploy.keys import make_certificates

    make_certificates(folder, host)
    say(f"give every site {folder / 'ca.crt'}; keep {folder / 'server.key'} to yourself")


@federation.command()
def key(path: Annotated[Path, typer.Argument(help="File for the private key.")]) -> None:
    """A site: make its key pair."""
    from fedspm.deploy.keys import make_key

    say(f"send {make_key(path)} to the server's operator; keep {path} to yourself")


@federation.command()
def register(
    public: Annotated[Path, typer.Argument(help="A site's public key.")],
    name: Annotated[str, typer.Option(help="The site's name.")],
    superlink: SuperLink,
    root_certificates: RootCertificates = None,
) -> None:
    """The operator: let a site in."""
    from fedspm.deploy.launch import register_site

    register_site(public, name, superlink, root_certificates)
    say(f"{name} may connect")


@federation.command()
def site(
    config: Annotated[Path, typer.Argument(metavar="SITE.toml", help="This site's configuration.")],
    superlink: SuperLink,
    root_certificates: RootCertificates = None,
    key: Annotated[Path | None, typer.Option(help="This site's private key.")] = None,
    port: Annotated[int | None, typer.Option(help="A free port on this machine. (default: any)")] = None,
) -> None:
    """A site: take part, until stopped. Rows and private state stay here."""
    from fedspm.base.files import require_files
    from fedspm.base.ports import free_port
    from fedspm.engines.flower.environment import FLOWER, be_quiet

    be_quiet(FLOWER)  # before Flower is imported
    from fedspm.deploy.node import run_node

    require_files(root_certificates, key)
    run_node(config, superlink, root_certificates, key, port or free_port())


@federation.command()
def preview(
    site: Annotated[Path, typer.Argument(metavar="SITE.toml", help="This site's configuration.")],
    config: Annotated[Path, typer.Argument(metavar="RUN.toml", help="Configuration of the run, from its operator.")],
    set_: Set = None,
    as_json: AsJson = False,
) -> None:
    """A site: what a run would take from here, and whether SITE.toml allows it. Nothing is sent; exit code 1 if not."""
    from fedspm.deploy.preview import WHEN
    from fedspm.deploy.preview import preview as look
    from fedspm.engines.flower.contract import SiteConfig
    from fedspm.runs.config import resolve

    found = look(SiteConfig.read(site), resolve(layers(config, {"engine": "flower"}, set_)))
    if as_json:
        print(printable_json(found.to_dict()))
    else:
        rows, meanings = [], dict[str, str]()
        for each in found.steps:
            first = [each.step, WHEN[each.when], f"{each.times:,}"]
            for tensor, (numbers, meaning) in each.by_kind().items() or {"nothing": (0, "")}.items():
                rows.append([*first, tensor, f"{numbers:,}", "yes" if each.noised else "no" if numbers else ""])
                first = ["", "", ""]
                meanings[tensor] = meaning
        headings = ("step", "when", "replies", "tensors", "numbers each", "noised")
        console.print(plain_table(headings, rows, f"what would leave site {found.site}"))
        for meaning in dict.fromkeys(filter(None, meanings.values())):
            say(f"{', '.join(name for name in meanings if meanings[name] == meaning)}: {meaning}")
        say(f"{found.bytes:,} bytes in the whole run, if no round is repeated")
        own, after = (
            f"ε = {value:.4g}" if value is not None else "no ε" for value in (found.epsilon, found.epsilon_after)
        )
        say(f"this run: {own}; all runs of this site together, after it: {after} (δ = {found.delta:g})")
        for why in found.refused:
            say(f"refused: {why}")
        if not found.refused:
            say("this site would take part")
    if found.refused:
        raise typer.Exit(1)


@federation.command()
def ledger(
    site: Annotated[Path, typer.Argument(metavar="SITE.toml", help="This site's configuration.")],
    as_json: AsJson = False,
) -> None:
    """A site: what has left it, by run and step, from its ledger, whose chain is checked."""
    from fedspm.engines.flower.contract import SiteConfig
    from fedspm.engines.flower.ledger import Ledger, epsilon_spent, rounds_answered, what_left

    config = SiteConfig.read(site)
    entries = Ledger(config.state).entries()
    left, spent = what_left(entries), epsilon_spent(entries, config.delta)
    if as_json:
        about = {"site": config.name, "lines": len(entries), "rounds": rounds_answered(entries)}
        print(json.dumps(about | {"epsilon": spent, "delta": config.delta, "left": [asdict(each) for each in left]}))
        return
    rows = [
        [
            each.run,
            each.step,
            f"{each.answers:,}",
            f"{each.bytes:,}",
            f"{each.noised:,}",
            str(each.kept_back),
            each.last,
        ]
        for each in left
    ]
    headings = ("run", "step", "answers", "bytes", "noised vectors", "kept back", "last")
    console.print(plain_table(headings, rows, f"what has left site {config.name}"))
    say(f"{counted(len(entries), 'line')}, each with the hash of the one before: the chain holds")
    say(f"rounds in all runs: {rounds_answered(entries):,} of max_rounds = {config.max_rounds:,}")
    if spent is None:
        say("ε: something left without noise, so none holds")
    else:
        limit = "" if config.max_epsilon is None else f", of max_epsilon = {config.max_epsilon:g}"
        say(f"ε of all runs together: {spent:.4g} at δ = {config.delta:g}{limit}")


@federation.command()
def train(
    config: Annotated[Path, typer.Argument(metavar="CONFIG.toml", help="Configuration with sites.names.")],
    superlink: SuperLink,
    out: Annotated[Path, typer.Option(help="Run folder, on the SuperLink's machine.")],
    root_certificates: RootCertificates = None,
    set_: Set = None,
) -> None:
    """The operator: train with the sites that are connected."""
    from fedspm.deploy.launch import train_across_sites
    from fedspm.runs.config import resolve

    settings = resolve(layers(config, {"engine": "flower"}, set_))
    _show(train_across_sites(settings, out, superlink, root_certificates, say))


@federation.command()
def resume(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run across sites.")],
    superlink: SuperLink,
    root_certificates: RootCertificates = None,
    allow: Allow = None,
) -> None:
    """The operator: go on after the last complete round, on the same SuperLink or on a new one."""
    from fedspm.deploy.launch import resume_across_sites

    _show(resume_across_sites(run, superlink, root_certificates, say, allow or ()))


def _show(run: "Run") -> None:
    metrics = run.last_metrics()
    show_results(metrics, f"\nafter {counted(metrics['round'], 'round')}, counted at the sites")
    say(f"run       {run.path}")
