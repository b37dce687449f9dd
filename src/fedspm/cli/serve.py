"""fedspm export | serve: from a run to a running system."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from fedspm.base.errors import FedSPMError
from fedspm.cli.app import app
from fedspm.cli.options import Allow, RunFolder
from fedspm.cli.output import program, say
from fedspm.report.terminal import console

if TYPE_CHECKING:
    from fedspm.data.tables.schema import TableSchema

FalseAlarms = Annotated[float, typer.Option(help="Share of known rows that may be called novel.")]


@app.command()
def export(
    run: RunFolder,
    out: Annotated[Path, typer.Option(help="Folder for the bundle; a bundle that is there is replaced.")],
    false_alarms: FalseAlarms = 0.05,
    site: Annotated[
        Path | None, typer.Option(metavar="SITE.toml", help="At a site: write its own node; RUN is then the run's id.")
    ] = None,
    sign: Annotated[
        Path | None, typer.Option(metavar="KEY", help="Sign the bundle with this private key (Ed25519, PEM).")
    ] = None,
    allow: Allow = None,
) -> None:
    """Write what a router and the node of each client need, in a folder each."""
    if site is not None:
        return _export_site(str(run), site, out, sign)
    from fedspm.runs.folder import Run
    from fedspm.serve.export import export

    opened = Run.open(run, allow or ())
    with console.status("writing the bundle"):
        done = export(opened, out, false_alarms, sign)
    if not done.clients:
        say(f"bundle    {out}, version {done.version}: router/ only, what the nodes need stayed at the sites")
        say(f"          a site writes its own with: fedspm export {opened.id} --site site.toml --out node")
        return None
    say(f"bundle    {out}, version {done.version}: router/ and clients/ with {len(done.clients)} folders")
    if done.false_alarms is None:
        say("novelty   not calibrated: the run folder does not know its data")
    else:
        say(f"novelty   {done.false_alarms:.1%} of held-out rows are called novel (asked for {false_alarms:.1%})")
    say(f"try next  {program()} serve all {quote(str(run))}")


def _export_site(run: str, site: Path, out: Path, sign: Path | None) -> None:
    from fedspm.engines.flower.contract import SiteConfig
    from fedspm.engines.flower.site_store import Store
    from fedspm.serve.export import SiteSnapshot, export_site

    config = SiteConfig.read(site)
    known = sorted(path.parent.name for path in config.state.glob("*/run.json"))
    if run not in known:
        raise FedSPMError(f"this site took part in no run {run!r}; known are: {', '.join(known) or 'none'}")
    store = Store.of(config.state, run)
    shared, turn = store.last_shared()
    kept = SiteSnapshot(run, config.name, store.description(), turn, shared, store.newest())
    version = export_site(kept, out, (*config.encoders, *config.algorithms), sign)
    say(f"node      {out}, version {version} (the router's must be the same), of site {config.name}")
    if turn < (rounds := store.description()["settings"]["rounds"]):
        say(
            f"          after round {turn} of {rounds}: if the run went on without this site, connect it, and let the "
            "server's operator call `fedspm federation resume`, which hands out the last state"
        )
    say(f"try next  {program()} serve node {quote(str(out))}")


TOKEN_LINE = 'alice = "a token of 16 characters or more"'
services = typer.Typer(no_args_is_help=True, help="Answer queries over HTTP: a router and one node per client.")
app.add_typer(services, name="serve")

Host = Annotated[str, typer.Option(help="Address to listen on; beyond loopback only with TLS.")]
Port = Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")]
Certificate = Annotated[Path | None, typer.Option("--tls-cert", help="Certificate (PEM) to serve with.")]
Key = Annotated[Path | None, typer.Option("--tls-key", help="Private key (PEM) of the certificate.")]
Secret = Annotated[Path | None, typer.Option(help="File with the secret that router and nodes share.")]
Tokens = Annotated[Path | None, typer.Option(help='TOML file of callers: name = "token". (default: everybody)')]
Deadline = Annotated[float, typer.Option(min=0.1, help="Seconds that an answer may take, fallbacks included.")]
Rate = Annotated[float, typer.Option(min=0.01, help="Requests a second and caller.")]
Batch = Annotated[int, typer.Option(min=1, help="Rows that a request may have.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(metavar="NAME", help="Name or address, besides --host, under which callers know it. Repeatable."),
]
AllowOrigin = Annotated[
    list[str] | None,
    typer.Option(metavar="URL", help="Origin of the page where a proxy has it under another address. Repeatable."),
]
Trust = Annotated[
    Path | None,
    typer.Option(metavar="KEY.pub", help="Serve only bundles that were signed with this key. (default: any)"),
]
Megabytes = Annotated[int, typer.Option("--max-megabytes", min=1, help="Size that a request may have.")]


@services.command()
def node(
    folder: Annotated[Path, typer.Argument(metavar="BUNDLE/clients/NAME", help="Folder of one client.")],
    host: Host = "127.0.0.1",
    port: Port = 8001,
    secret: Secret = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    allow_host: AllowHost = None,
    allow: Allow = None,
    trust: Trust = None,
) -> None:
    """Answer for one client. Only the router talks to a node."""
    with _extra():
        from fedspm.serve.http.auth import read_secret
        from fedspm.serve.http.listen import Listen
        from fedspm.serve.node import node_app
        from fedspm.serve.processes import log_to_stderr, serve
        from fedspm.serve.signature import read_trusted_key
    listen = Listen(host, port, tls_cert, tls_key, tuple(allow_host or ())).checked(secret is not None, "--secret")
    shared = read_secret(secret) if secret else None
    log_to_stderr()
    app = node_app(folder, shared, allow or (), read_trusted_key(trust) if trust else None)
    listen.require_free()
    say(f"node      {folder} at {_address(host, port, tls_cert)}")
    serve(app, listen)


@services.command()
def router(
    folder: Annotated[Path, typer.Argument(metavar="BUNDLE/router", help="Folder of the router.")],
    nodes: Annotated[Path, typer.Option(help='TOML file of addresses: client = "https://host:port".')],
    host: Host = "127.0.0.1",
    port: Port = 8000,
    secret: Secret = None,
    tokens: Tokens = None,
    tls_cert: Certificate = None,
    tls_key: Key = None,
    node_ca: Annotated[Path | None, typer.Option(help="Certificate (PEM) that signed the nodes'.")] = None,
    samples: Annotated[Path | None, typer.Option(help="Folder of PNG files that the page offers.")] = None,
    deadline: Deadline = 10.0,
    rate: Rate = 1000.0,
    max_rows: Batch = 512,
    max_megabytes: Megabytes = 16,
    allow_host: AllowHost = None,
    allow_origin: AllowOrigin = None,
    allow: Allow = None,
    trust: Trust = None,
) -> None:
    """Route queries to the clients' nodes; the page is at /."""
    with _extra():
        from fedspm.serve.app import router_app
        from fedspm.serve.http.auth import read_secret, read_table
        from fedspm.serve.http.limits import Limits
        from fedspm.serve.http.listen import Listen
        from fedspm.serve.processes import log_to_stderr, serve
        from fedspm.serve.router import Router
        from fedspm.serve.signature import read_trusted_key
    names = tuple(allow_host or ()), tuple(allow_origin or ())
    listen = Listen(host, port, tls_cert, tls_key, *names).checked(tokens is not None, "--tokens")
    made = Router(
        folder,
        nodes,
        secret=read_secret(secret) if secret else None,
        tokens=read_table(tokens, TOKEN_LINE) if tokens else None,
        limits=Limits(body=max_megabytes * 2**20, batch=max_rows, rate=rate),
        deadline=deadline,
        authority=node_ca,
        allowed=allow or (),
        trust=read_trusted_key(trust) if trust else None,
    )
    log_to_stderr()
    listen.require_free()
    say(f"router    {_address(host, port, tls_cert)}")
    serve(router_app(made, samples), listen)


@services.command(name="all")
def everything(
    run: RunFolder,
    port: Port = 8000,
    tokens: Tokens = None,
    deadline: Deadline = 10.0,
    rate: Rate = 1000.0,
    false_alarms: FalseAlarms = 0.05,
    allow_host: AllowHost = None,
    allow_origin: AllowOrigin = None,
    allow: Allow = None,
) -> None:
    """Router and all nodes on this machine, from a run folder; the page is at http://127.0.0.1:8000/."""
    with _extra():
        from fedspm.serve.app import router_app
        from fedspm.serve.http.auth import read_table
        from fedspm.serve.http.limits import Limits
        from fedspm.serve.http.listen import Listen
        from fedspm.serve.processes import local_nodes, log_to_stderr, serve
        from fedspm.serve.router import Router
    from fedspm.runs.folder import Run
    from fedspm.serve.export import export, is_current

    listen = Listen(port=port, hosts=tuple(allow_host or ()), origins=tuple(allow_origin or ()))
    listen.checked(tokens is not None, "--tokens")
    allowed = allow or ()
    bundle, opened = run / "bundle", Run.open(run, allowed)
    listen.require_free()
    if not is_current(opened, bundle, false_alarms):
        with console.status("writing the bundle"):
            export(opened, bundle, false_alarms)
    log_to_stderr()
    callers = read_table(tokens, TOKEN_LINE) if tokens else None
    with local_nodes(bundle, allowed) as (nodes, secret):
        made = Router(
            bundle / "router",
            nodes,
            secret=secret,
            tokens=callers,
            limits=Limits(rate=rate),
            deadline=deadline,
            allowed=allowed,
        )
        say(f"page      http://127.0.0.1:{port}/")
        address, schema = f"http://127.0.0.1:{port}/v1/predict", opened.task.schema
        for line in _how_to_ask(run / "samples", schema, address, tokens is not None):
            say(line)
        serve(router_app(made, run / "samples"), listen)


def _how_to_ask(samples: Path, schema: "TableSchema | None", address: str, with_token: bool) -> list[str]:
    """A command that asks for one of the samples that the report of a run left, if it can be typed."""
    if images := sorted(samples.glob("*.png")):
        what, kind = f"--data-binary @{quote(str(images[0]))}", "image/png"
    elif (table := samples / "queries.csv").exists():
        from fedspm.data.readers.detect import read_queries_table

        row = read_queries_table(table, schema).records()[0]  # names may be hostile: JSON escapes them
        what = f"-d {quote(json.dumps({'x': row if schema else list(row.values())}))}"
        kind = "application/json"
    else:
        return []
    token = "-H 'authorization: Bearer TOKEN' " if with_token else ""
    return [f"try next  curl {what} \\", f"            {token}-H 'content-type: {kind}' {address}"]


def _address(host: str, port: int, certificate: Path | None) -> str:
    return f"{'https' if certificate else 'http'}://{f'[{host}]' if ':' in host else host}:{port}/"


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        if (error.name or "").startswith("fedspm"):
            raise
        raise FedSPMError(f"{error.name} is not installed; pip install 'fedspm[serve]'") from error
