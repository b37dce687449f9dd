"""Who may ask, how much, and how often; and where a process may listen."""

import asyncio
import hashlib
import hmac
import ipaddress
import socket
import ssl
import time
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import ClientDisconnect, Request

from fedspm.base.errors import FedSPMError
from fedspm.serve.http.addresses import named_host, named_origin

SHORTEST = 16  # characters of a token or a secret
READING = 10.0  # seconds that a caller has to send a body
CALLERS = 10_000  # callers whose rate is remembered
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cache-control": "no-store",
}


class Declined(FedSPMError):
    """A request that is not answered, and why."""

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status = status
        self.headers = dict(headers or {})


@dataclass(frozen=True)
class Limits:
    body: int = 16 * 2**20  # bytes of a request
    batch: int = 512  # rows of a request
    pixels: int = 16_000_000  # of all images of a request together, before they are scaled down
    rate: float = 1000.0  # requests a second and caller
    waiting: int = 8192  # rows that may wait for the router


class Callers:
    """Bearer tokens, compared in constant time, and a bucket of requests a caller."""

    def __init__(self, tokens: Mapping[str, str], rate: float, clock: Callable[[], float] = time.monotonic):
        for name, token in tokens.items():
            require_long(token, f"the token of {name!r}")
        self._digests = {name: _digest(token) for name, token in tokens.items()}
        self._rate = rate
        self._clock = clock
        self._buckets: dict[str, tuple[float, float]] = {}  # caller → (requests left, when)

    @property
    def open(self) -> bool:
        return not self._digests

    def admit(self, request: Request) -> str:
        """The caller's name, or a refusal."""
        caller = self._identify(request)
        now, most = self._clock(), max(1.0, self._rate)
        left, since = self._buckets.pop(caller, (most, now))
        left = min(most, left + (now - since) * self._rate)
        if len(self._buckets) >= CALLERS:  # the one that was silent longest is forgotten
            self._buckets.pop(next(iter(self._buckets)))
        self._buckets[caller] = (max(0.0, left - 1), now)
        if left < 1:
            raise Declined(429, f"more than {self._rate:g} requests a second; try again later", {"retry-after": "1"})
        return caller

    def _identify(self, request: Request) -> str:
        if self.open:
            return request.client.host if request.client else "local"
        given = _digest(bearer(request))
        found = [name for name, digest in self._digests.items() if hmac.compare_digest(digest, given)]
        if not found:
            raise Declined(
                401, "give a valid token: `Authorization: Bearer TOKEN`", {"www-authenticate": 'Bearer realm="fedspm"'}
            )
        return found[0]


def bearer(request: Request) -> str:
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


async def read_body(request: Request, most: int) -> bytes:
    """The body, or a refusal as soon as it is clear that it is too long or too slow."""
    too_long = Declined(413, f"the body is longer than {most} bytes; send fewer or smaller images")
    declared = request.headers.get("content-length", "0")
    if declared.isdigit() and int(declared) > most:
        raise too_long
    parts, size = [], 0
    try:
        async with asyncio.timeout(READING):
            async for part in request.stream():
                size += len(part)
                if size > most:
                    raise too_long
                parts.append(part)
    except TimeoutError as error:
        raise Declined(408, f"the body did not arrive within {READING:g} seconds") from error
    except ClientDisconnect as error:
        raise Declined(400, "the caller went away before the body had arrived") from error
    return b"".join(parts)


# -- what a process is started with ------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Listen:
    host: str = "127.0.0.1"
    port: int = 8000
    certificate: Path | None = None
    key: Path | None = None
    hosts: tuple[str, ...] = ()  # names and addresses besides `host` and loopback under which it may be called
    origins: tuple[str, ...] = ()  # of pages besides its own that may call it

    def checked(self, guarded: bool, what: str) -> "Listen":
        """Beyond loopback only with TLS, and only for callers that show something and know its name."""
        for host in self.hosts:
            named_host(host)
        for origin in self.origins:
            named_origin(origin)
        if (self.certificate is None) != (self.key is None):
            raise FedSPMError("TLS needs both --tls-cert and --tls-key")
        for path in (self.certificate, self.key):
            if path and not path.exists():
                raise FedSPMError(f"there is no file {path}")
        needed = "--tls-cert and --tls-key" if self.certificate is None else what if not guarded else None
        if needed and not is_loopback(self.host):
            raise FedSPMError(f"{self.host} is open to other machines; give {needed}, or listen on 127.0.0.1")
        if is_unspecified(self.host) and not self.hosts:
            raise FedSPMError(
                f"{self.host} stands for every address of this machine; say by which names callers know it, for "
                "instance --allow-host north.example"
            )
        if self.certificate:
            try:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(self.certificate, self.key)
            except OSError as error:
                raise FedSPMError(
                    f"{self.certificate} and {self.key} are not a certificate (PEM) and its private key: {error}"
                ) from error
        return self

    def require_free(self) -> None:
        """Before anything is started that takes seconds, and before anybody is told to look there."""
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


def trusted(authority: str | Path | None) -> ssl.SSLContext:
    """Whose signature on the other side's certificate counts: that of `authority`, or of those the system knows."""
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise FedSPMError(f"{authority} cannot be read as a certificate (PEM): {error}") from error


def read_secret(path: Path) -> str:
    try:
        secret = path.read_text("utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise FedSPMError(f"{path} cannot be read: {error}") from error
    return require_long(secret, f"the secret in {path}")


def require_long(secret: str, what: str) -> str:
    if len(secret) < SHORTEST:
        raise FedSPMError(f"{what} is shorter than {SHORTEST} characters; make one with `openssl rand -hex 32`")
    return require_plain(secret, what)


def require_plain(secret: str, what: str) -> str:
    """What a header cannot carry would never be recognised."""
    if not (secret.isascii() and secret.isprintable()):
        raise FedSPMError(f"{what} has characters beyond printable ASCII, which a header cannot carry")
    return secret


def read_table(path: Path, line: str) -> dict[str, str]:
    """A TOML file of strings: the tokens of callers, or the addresses of nodes. `line` is an example."""
    try:
        table = tomllib.loads(path.read_text("utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise FedSPMError(f"{path} cannot be read: {error}") from error
    if not table or not all(isinstance(value, str) for value in table.values()):
        raise FedSPMError(f"{path} must have lines such as {line}")
    return table
