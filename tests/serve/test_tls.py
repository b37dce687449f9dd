"""TLS from the caller to the router and from the router to the nodes, with a certificate of one's own."""

import shutil
import subprocess
import threading
import time

import httpx
import pytest

from fedspm import connect
from fedspm.errors import FedSPMError
from fedspm.ports import free_port
from fedspm.serve.app import router_app
from fedspm.serve.bundle import load_router
from fedspm.serve.guard import Listen
from fedspm.serve.node import node_app
from fedspm.serve.processes import server_of
from fedspm.serve.router import Router

SECRET = "0123456789abcdef0123456789abcdef"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    if not shutil.which("openssl"):
        pytest.skip("there is no openssl to make a certificate with")
    folder = tmp_path_factory.mktemp("tls")
    command = "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=here -addext subjectAltName=IP:127.0.0.1"
    files = ["-keyout", folder / "key.pem", "-out", folder / "cert.pem"]
    subprocess.run([*command.split(), *map(str, files)], check=True, capture_output=True)
    return folder / "cert.pem", folder / "key.pem"


def test_everything_is_encrypted_and_checked(served, vectors, certificate):
    model, _, bundle = served
    card = load_router(bundle / "router").card
    servers = []

    def start(app):
        port = free_port()
        servers.append(server_of(app, Listen("127.0.0.1", port, *certificate)))
        threading.Thread(target=servers[-1].run, daemon=True).start()
        return f"https://127.0.0.1:{port}"

    nodes = {
        name: start(node_app(bundle / "clients" / folder, SECRET))
        for name, folder in zip(card.names, card.folders, strict=True)
    }
    options = {"secret": SECRET, "tokens": {"alice": SECRET[::-1]}}
    url = start(router_app(Router(bundle / "router", nodes, authority=certificate[0], **options)))
    distrustful = start(router_app(Router(bundle / "router", nodes, **options)))
    until = time.monotonic() + 30
    while not all(server.started for server in servers):
        assert time.monotonic() < until
        time.sleep(0.05)
    x = vectors.test[0].x
    try:
        with connect(url, SECRET[::-1], authority=certificate[0]) as there:
            assert (there.predict(x) == model.predict(x)).all()
        with pytest.raises(FedSPMError, match="certificate"):
            connect(url, SECRET[::-1]).predict(x)
        with pytest.raises(FedSPMError, match="refused \\(401\\)"):
            connect(url, authority=certificate[0]).predict(x)
        with pytest.raises(FedSPMError, match="no node could answer"):  # it does not know who signed for the nodes
            connect(distrustful, SECRET[::-1], authority=certificate[0]).predict(x)
        with pytest.raises(httpx.HTTPError):
            httpx.get(url.replace("https", "http") + "/healthz")
    finally:
        for server in servers:
            server.should_exit = True
