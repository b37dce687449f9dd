"""TLS from the caller to the router and from the router to the nodes, with a certificate of one's own."""

import shutil
import subprocess
import threading

import httpx
import pytest

from commands import PATIENCE, wait
from fedspm import connect
from fedspm.base.errors import FedSPMError
from fedspm.base.ports import free_port
from fedspm.serve.app import router_app
from fedspm.serve.bundle import load_router
from fedspm.serve.http.listen import Listen
from fedspm.serve.node import node_app
from fedspm.serve.processes import make_server
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


def test_a_pair_that_does_not_fit_is_said_before_anything_is_started(certificate, tmp_path):
    cert, key = certificate
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        assert Listen(host, 8000, cert, key, ("north.example",)).checked(True, "--tokens").host == host
    other = tmp_path / "other.pem"
    subprocess.run(["openssl", "genrsa", "-out", str(other), "2048"], check=True, capture_output=True)
    for pair in ((key, cert), (cert, other), (cert, tmp_path)):
        with pytest.raises(FedSPMError, match="are not a certificate \\(PEM\\) and its private key"):
            Listen("127.0.0.1", 8000, *pair).checked(True, "--tokens")


def test_an_authority_that_is_no_certificate_is_said(served, certificate, tmp_path):
    (tmp_path / "text.pem").write_text("no certificate")
    for authority in (tmp_path / "missing.pem", tmp_path / "text.pem", tmp_path, certificate[1]):
        with pytest.raises(FedSPMError, match="cannot be read as a certificate"):
            Router(served[2] / "router", {}, authority=authority)
        with pytest.raises(FedSPMError, match="cannot be read as a certificate"):
            connect("https://127.0.0.1:1", authority=authority)


def test_everything_is_encrypted_and_checked(served, vectors, certificate):
    model, _, bundle = served
    card = load_router(bundle / "router").card
    servers = []

    def start(app):
        port = free_port()
        servers.append(make_server(app, Listen("127.0.0.1", port, *certificate)))
        threading.Thread(target=servers[-1].run, daemon=True).start()
        return f"https://127.0.0.1:{port}"

    nodes = {
        name: start(node_app(bundle / "clients" / folder, SECRET))
        for name, folder in zip(card.names, card.folders, strict=True)
    }
    options = {"deadline": PATIENCE, "secret": SECRET, "tokens": {"alice": SECRET[::-1]}}
    url = start(router_app(Router(bundle / "router", nodes, authority=certificate[0], **options)))
    distrustful = start(router_app(Router(bundle / "router", nodes, **options)))
    wait(lambda: all(server.started for server in servers))
    x = vectors.test[0].x
    try:
        with connect(url, SECRET[::-1], seconds=PATIENCE, authority=certificate[0]) as there:
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
