"""Who may ask: bearer tokens of callers, and the secret that a router shares with its nodes."""

import hashlib
import hmac
import tomllib
from collections.abc import Mapping
from pathlib import Path

from starlette.requests import Request

from fedspm.base.errors import FedSPMError
from fedspm.serve.http.problem import HTTPProblem

SHORTEST = 16  # characters of a token or a secret


class BearerTokens:
    """Callers by name. Tokens are kept as digests of one length and compared in constant time."""

    def __init__(self, tokens: Mapping[str, str]):
        for name, token in tokens.items():
            require_long(token, f"the token of {name!r}")
        self._digests = {name: _digest(token) for name, token in tokens.items()}

    def identify(self, request: Request) -> str:
        """The caller's name. Without any tokens everybody may ask, and a caller's name is its address."""
        if not self._digests:
            return request.client.host if request.client else "local"
        given = _digest(bearer(request))
        found = [name for name, digest in self._digests.items() if hmac.compare_digest(digest, given)]
        if not found:
            raise HTTPProblem(
                401, "give a valid token: `Authorization: Bearer TOKEN`", {"www-authenticate": 'Bearer realm="fedspm"'}
            )
        return found[0]


def bearer(request: Request) -> str:
    """The token of the header `Authorization: Bearer TOKEN`, or an empty string."""
    scheme, _, token = request.headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else ""


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()


# -- what an operator writes -------------------------------------------------------------------------------------------


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
    """The secret, if a header can carry it; otherwise it would never be recognised."""
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
