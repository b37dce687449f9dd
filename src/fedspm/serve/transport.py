"""How the router reaches the nodes: connections that are kept, and one kind of failure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, runtime_checkable

import aiohttp

from fedspm.serve.http.tls import trust_context

KEPT = 30.0  # seconds; a node closes a connection later than that


class NodeFailed(Exception):
    """This node does not answer now; another may."""


@runtime_checkable
class Transport(Protocol):
    async def send(
        self, method: str, url: str, patience: float, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Status and body of the reply, or NodeFailed."""

    async def close(self) -> None: ...


class HttpTransport:
    """HTTP with the shared secret, and TLS where the address says https."""

    def __init__(self, secret: str | None, authority: Path | None):
        self._headers = {"authorization": f"Bearer {secret}"} if secret else {}
        self._trusted = trust_context(authority)
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self, method: str, url: str, patience: float, content: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        if self._session is None:
            connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=KEPT, ssl=self._trusted)
            self._session = aiohttp.ClientSession(connector=connector, headers=self._headers, trust_env=False)
        timeout = aiohttp.ClientTimeout(total=patience)
        try:
            async with self._session.request(
                method, url, data=content or None, headers=headers, timeout=timeout, allow_redirects=False
            ) as reply:
                return reply.status, await reply.read()
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise NodeFailed(f"the node cannot be reached: {type(error).__name__}") from error

    async def close(self) -> None:
        if self._session is not None:
            await self._session.close()
