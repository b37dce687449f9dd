"""The service under fire: somebody with one image beside strangers who do what costs most, on eight connections."""

import contextlib
import resource
import socket
import time

import pytest

from fire import ALICE, ATTACKS, CONNECTIONS, LARGEST, MALLORY, asked, attack, head, resident, summary

SLOWER = 10  # times its quiet time, at most; a machine with other work has its own pauses
PAUSE = 0.5  # seconds, that are not the service's
pytestmark = pytest.mark.long


def test_an_image_is_answered_while_strangers_attack(service):
    asked(service.port, service.image, ALICE, 2)
    for name in ATTACKS:
        quiet = summary(asked(service.port, service.image, ALICE, 2))
        with attack(name, service.port, MALLORY):
            found = summary(asked(service.port, service.image, ALICE, 5))
        print(f"{name}: quiet {quiet}, under fire {found}, {resident(service.process.pid)} MB", flush=True)
        assert found["median"] < SLOWER * quiet["median"] + PAUSE, name
    assert resident(service.process.pid) < 1500


def test_unfinished_bodies_take_a_bounded_amount_of_memory(service):
    """150 of 16 MB took 2.3 GB."""
    before = resident(service.process.pid)
    header, part = head("image/png", LARGEST, MALLORY), bytes(2**20)
    held = []
    try:
        for _ in range(150):
            connection = socket.create_connection(("127.0.0.1", service.port), timeout=60)
            held.append(connection)
            try:
                connection.sendall(header)
                for _ in range(LARGEST // len(part)):
                    connection.sendall(part)
            except OSError:
                pass  # this one was given up for another
        grown = resident(service.process.pid) - before
        print(f"150 unfinished bodies: {grown} MB more")
        assert grown < 600
        asked(service.port, service.image, ALICE, 0, least=3)
    finally:
        for connection in held:
            connection.close()


def test_half_open_connections_lock_nobody_out(service):
    """1,100 of them did, until whoever held them went away."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, 8192), hard))
    held = []
    try:
        for k in range(1500):
            connection = socket.create_connection(("127.0.0.1", service.port), timeout=60)
            connection.sendall(b"POST /v1/predict HTTP/1.1\r\nhost: 127.0.0.1\r\n" if k % 2 else b"")
            held.append(connection)
        print("1,500 half-open connections:", summary(asked(service.port, service.image, ALICE, 0, least=10)))
        until = time.monotonic() + 60
        for connection in held:  # and every one of them is closed after ten seconds
            connection.settimeout(max(1.0, until - time.monotonic()))
            with contextlib.suppress(ConnectionResetError):
                assert connection.recv(1) == b""
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for connection in held:
            connection.close()


def test_whoever_does_not_read_the_answer_is_let_go(service):
    held = []
    for _ in range(CONNECTIONS):
        connection = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with contextlib.suppress(OSError):
            connection.sendall(b"GET /page.js HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n" * 15)
        held.append(connection)
    print("unread answers:", summary(asked(service.port, service.image, ALICE, 0, least=10)))
    for connection in held:
        connection.close()
