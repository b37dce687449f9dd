"""Where a process may listen: beyond this machine only with TLS, and only for callers that show a token or secret."""

import ipaddress
import socket
from dataclasses import dataclass
from pathlib import Path

from fedspm.base.errors import FedSPMError
from fedspm.serve.http.addresses import allowed_host, allowed_origin
from fedspm.serve.http.tls import require_files, require_key_pair


@dataclass(frozen=True)
class Listen:
    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    hosts: tuple[str, ...] = ()  # names and addresses besides `host` and loopback under which it may be called
    origins: tuple[str, ...] = ()  # of pages besides its own that may call it

    def checked(self, guarded: bool, what: str) -> "Listen":
        """This address, if it is safe to listen there. `guarded`: callers must show something, which the option `what`
        sets."""
        for host in self.hosts:
            allowed_host(host)
        for origin in self.origins:
            allowed_origin(origin)
        require_files(self.certificate, self.key)
        needed = "--tls-cert and --tls-key" if self.certificate is None else what if not guarded else None
        if needed and not is_loopback(self.host):
            raise FedSPMError(f"{self.host} is open to other machines; give {needed}, or listen on 127.0.0.1")
        if is_unspecified(self.host) and not self.hosts:
            raise FedSPMError(
                f"{self.host} stands for every address of this machine; say by which names callers know it, for "
                "instance --allow-host north.example"
            )
        if self.certificate:
            require_key_pair(self.certificate, self.key)
        return self

    def require_free(self) -> None:
        """Refuse a port that is in use, before anything is started that takes seconds or prints this address."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        try:
            socket.create_server((self.host, self.port), family=family).close()
        except OSError as error:
            why = (error.strerror or type(error).__name__).partition(" (")[0]  # the rest is the address again
            raise FedSPMError(f"cannot listen at {self.host}, port {self.port}: {why}; choose another") from error


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def is_unspecified(host: str) -> bool:
    """Does it stand for every address of the machine?"""
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return not host
