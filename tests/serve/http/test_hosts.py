"""A page elsewhere cannot reach a service by way of a browser: by no name of its own, and not across origins."""

import asyncio

import httpx
import pytest
from fastapi import FastAPI

from commands import fedspm
from fedspm.base.errors import FedSPMError
from fedspm.serve.app import router_app
from fedspm.serve.http.hosts import KnownHosts
from fedspm.serve.http.listen import Listen
from fedspm.serve.node import node_app
from fedspm.serve.processes import make_server
from fedspm.serve.router import Router

ROW = {"x": [0.0] * 6}


def status(listen, headers, method="GET", path="/healthz"):
    """What a service that listens so answers."""
    app = FastAPI()
    app.get("/healthz")(lambda: {"status": "ok"})
    app.post("/v1/predict")(lambda: {})

    async def act():
        transport = httpx.ASGITransport(make_server(app, listen).config.app)
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as http:
            reply = await http.request(method, path, headers=headers)
        if reply.status_code != 200:
            assert set(reply.json()) == {"error"}
            assert reply.headers["content-security-policy"]
        return reply.status_code

    return asyncio.run(act())


@pytest.mark.parametrize(
    "host",
    ["localhost", "localhost:8000", "LOCALHOST", "127.0.0.1", "127.0.0.1:9", "[::1]", "[::1]:8000", "localhost."],
)
def test_names_of_this_machine_are_known(host):
    assert status(Listen(), {"host": host}) == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8000",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "evil.example@localhost",
        "192.0.2.7",
        "[2001:db8::1]",
        "localhost:port",
        "[::1",
        "localhost/evil.example",
        "evil.example#localhost",
        "",
    ],
)
def test_a_foreign_name_is_refused(host):
    for path in ("/healthz", "/v1/predict", "/nowhere"):
        assert status(Listen(), {"host": host}, path=path) == 421


def test_the_host_that_is_bound_and_those_that_are_named_are_known():
    bound = Listen("north.example", hosts=("alias.example:8443", "192.0.2.7", "2001:db8::1"))
    for host in (
        "North.Example:8001",
        "alias.example",
        "alias.example:1",
        "192.0.2.7:1",
        "[2001:db8::1]:1",
        "localhost",
    ):
        assert status(bound, {"host": host}) == 200, host
    assert status(bound, {"host": "other.example"}) == 421


def test_who_sends_no_host_is_no_browser():
    """HTTP/1.0, as some balancers probe with."""
    replies = []

    async def act():
        async def app(scope, receive, send):
            replies.append("answered")

        await KnownHosts(app, Listen())({"type": "http", "headers": []}, None, None)

    asyncio.run(act())
    assert replies == ["answered"]


@pytest.mark.parametrize(
    ("origin", "host", "expected"),
    [
        ("http://localhost:8000", "localhost:8000", 200),
        ("http://LOCALHOST:8000", "localhost:8000", 200),
        ("https://north.example", "north.example", 200),
        ("https://north.example", "north.example:443", 200),
        ("http://[::1]:8000", "[::1]:8000", 200),
        ("https://page.example:8443", "localhost", 200),
        ("http://page.example:8443", "localhost", 403),
        ("https://page.example", "localhost", 403),
        ("http://localhost:3000", "localhost:8000", 403),
        ("http://127.0.0.1:8000", "localhost:8000", 403),
        ("https://evil.example", "localhost:8000", 403),
        ("null", "localhost:8000", 403),
        ("", "localhost:8000", 403),
        ("http://localhost:8000.evil.example", "localhost:8000", 403),
    ],
)
def test_only_its_own_page_and_allowed_ones_may_call(origin, host, expected):
    listen = Listen("north.example", hosts=(), origins=("https://Page.example:8443",))
    assert status(listen, {"host": host, "origin": origin}, "POST", "/v1/predict") == expected


def test_bound_to_every_address_the_names_must_be_given(tmp_path):
    for name in ("cert", "key"):
        (tmp_path / name).write_text("")
    tls = {"certificate": tmp_path / "cert", "key": tmp_path / "key"}
    for host in ("0.0.0.0", "::"):
        with pytest.raises(FedSPMError, match=r"stands for every address .* --allow-host north\.example"):
            Listen(host, **tls).checked(True, "--tokens")
        with pytest.raises(FedSPMError, match="are not a certificate"):  # which comes next
            Listen(host, **tls, hosts=("north.example",)).checked(True, "--tokens")


@pytest.mark.parametrize("wrong", ["https://north.example", "a b", "", "north.example/path", "a@b", "*"])
def test_what_is_no_name_is_said_at_the_start(wrong):
    with pytest.raises(FedSPMError, match=r"--allow-host .* is no host"):
        Listen(hosts=(wrong,)).checked(True, "")


@pytest.mark.parametrize("wrong", ["north.example", "https://north.example/page", "ftp://a", "null", "https://", "*"])
def test_what_is_no_origin_is_said_at_the_start(wrong):
    with pytest.raises(FedSPMError, match=r"--allow-origin .* is no origin"):
        Listen(origins=(wrong,)).checked(True, "")


def test_router_and_nodes_are_served_behind_it(served):
    """A router calls a node under the name in nodes.toml; the node's operator allows it."""
    bundle = served[2]
    router = Router(bundle / "router", {name: f"http://{name}" for name in ("north", "south", "west")})
    for app in (node_app(bundle / "clients" / "north"), router_app(router)):

        async def act(app=app):
            listen = Listen(hosts=("north",))
            transport = httpx.ASGITransport(make_server(app, listen).config.app)
            async with httpx.AsyncClient(transport=transport) as http:
                paths = ("healthz", "metrics")
                names = ("north:8001", "evil.example")
                return [(await http.get(f"http://{name}/{path}")).status_code for name in names for path in paths]

        assert asyncio.run(act()) == [200, 200, 421, 421]


def test_the_commands_take_them(served, tmp_path):
    _, run, bundle = served
    (tmp_path / "nodes.toml").write_text('north = "http://127.0.0.1:1"')
    router = ("router", bundle / "router", "--nodes", tmp_path / "nodes.toml")
    for service in (("node", bundle / "clients" / "north"), router, ("all", run)):
        assert "'a b' is no host" in fedspm("serve", *service, "--allow-host", "a b", check=False).stderr
    for service in (router, ("all", run)):
        assert "'a b' is no origin" in fedspm("serve", *service, "--allow-origin", "a b", check=False).stderr
