"""Connections end that keep a service waiting; whoever asks properly notices nothing. In one process, on loopback."""

import socket
import threading

import httpx
import pytest

from commands import wait
from fedspm.base.ports import free_port
from fedspm.serve.http import connections
from fedspm.serve.http.listen import Listen
from fedspm.serve.node import node_app
from fedspm.serve.processes import make_server

ASK = b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n"
LAST = ASK[:-2] + b"connection: close\r\n\r\n"


@pytest.fixture
def listening(served, monkeypatch):
    """The port of a node whose limits are short."""
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 0.5)
    monkeypatch.setattr(connections, "QUIET", 8)
    port = free_port()
    server = make_server(node_app(served[2] / "clients" / "north"), Listen(port=port))
    thread = threading.Thread(target=server.run)
    thread.start()
    wait(lambda: server.started)
    yield port
    server.should_exit = True
    thread.join()


def connect(port, content=b""):
    connection = socket.create_connection(("127.0.0.1", port), timeout=60)
    connection.sendall(content)
    return connection


def ended(connection):
    """What came until the service closed the connection."""
    said = b""
    try:
        while part := connection.recv(2**16):
            said += part
    except ConnectionResetError:
        pass
    return said


@pytest.mark.parametrize("begun", [b"", b"GET", b"\r\n\r\n", ASK[:-2], b"GET / HTTP/1.1\r\nx: "])
def test_a_header_that_does_not_end_is_not_waited_for(listening, begun):
    assert ended(connect(listening, begun)) == b""


def test_nor_is_the_second_header_of_a_connection(listening):
    said = ended(connect(listening, ASK + b"GET /hea"))
    assert said.count(b"HTTP/1.1 200 OK") == 1


def test_silent_connections_make_room_for_others(listening, monkeypatch):
    monkeypatch.setattr(connections, "HEADER_TIMEOUT", 600.0)
    held = [connect(listening) for _ in range(30)]
    assert httpx.get(f"http://127.0.0.1:{listening}/healthz", trust_env=False).status_code == 200
    assert [ended(each) for each in held[:20]] == [b""] * 20  # long before their time was over
    for each in held:
        each.close()


@pytest.mark.parametrize("header", [b"x: " + b"a" * 70_000, b"x: a\r\n" * 12_000])
def test_a_long_header_is_refused(listening, header):
    said = ended(connect(listening, b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n" + header))
    assert b"HTTP/1.1 400" in said
    assert b"The header has more than 65536 bytes" in said


def test_a_body_in_very_many_pieces_is_refused(listening):
    head = b"POST /v1/answer HTTP/1.1\r\nhost: 127.0.0.1\r\ntransfer-encoding: chunked\r\nconnection: close\r\n\r\n"
    few, many = (ended(connect(listening, head + b"1\r\nx\r\n" * n + b"0\r\n\r\n")) for n in (100, 1000))
    assert b"HTTP/1.1 409" in few  # the node's own sentence
    assert b"HTTP/1.1 400" in many or many == b""


def test_a_long_pipeline_is_refused_and_a_short_one_answered(listening):
    assert ended(connect(listening, ASK * 9 + LAST)).count(b"HTTP/1.1 200 OK") == 10
    assert ended(connect(listening, ASK * 1000)).count(b"HTTP/1.1 200 OK") < 30


def test_many_requests_on_one_connection_are_answered(listening):
    with httpx.Client(trust_env=False) as caller:
        assert {caller.get(f"http://127.0.0.1:{listening}/healthz").status_code for _ in range(200)} == {200}
