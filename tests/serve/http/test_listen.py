"""Where a process may listen, and that a port in use is said early."""

import socket

import pytest

from fedspm.base.errors import FedSPMError
from fedspm.serve.http.listen import Listen


def test_beyond_loopback_only_with_tls_and_tokens(tmp_path):
    for name in ("cert", "key"):
        (tmp_path / name).write_text("")
    tls = {"certificate": tmp_path / "cert", "key": tmp_path / "key"}
    for host in ("127.0.0.1", "::1", "localhost"):
        assert Listen(host).checked(False, "--tokens").host == host
    for host in ("0.0.0.0", "::", "192.168.1.5", "example.org"):
        with pytest.raises(FedSPMError, match="--tls-cert"):
            Listen(host).checked(True, "--tokens")
        with pytest.raises(FedSPMError, match="--tokens"):
            Listen(host, **tls).checked(False, "--tokens")
    with pytest.raises(FedSPMError, match="both"):
        Listen(certificate=tmp_path / "cert").checked(True, "")


def test_a_port_that_is_used_is_said_before_anything_is_started():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        listen = Listen(port=taken.getsockname()[1])
        with pytest.raises(FedSPMError, match=r"port \d+: Address already in use; choose another$"):
            listen.require_free()
    listen.require_free()
    with pytest.raises(FedSPMError, match=r"cannot listen at 192\.0\.2\.1, port"):  # nobody's address
        Listen("192.0.2.1").require_free()
