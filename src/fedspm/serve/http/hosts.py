"""The names that a service answers to, and the pages that may call it.

A page from elsewhere can make its visitor's browser call this machine: under a name of its own that it lets point here
(DNS rebinding), or across origins. The first shows in the header `Host`, the second in `Origin`. Both are refused
before anything of the body is read. Whoever sends neither is no browser.
"""

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from fedspm.serve.http.addresses import allowed_host, allowed_origin, is_same_origin, parse_authority, parse_origin
from fedspm.serve.http.errors import problem_reply
from fedspm.serve.http.listen import Listen, is_loopback
from fedspm.serve.http.problem import HTTPProblem

LONGEST = 100  # characters of a foreign name that a refusal repeats


class KnownHosts:
    """The app, for those who call it by a name that it knows, from its own page or from none."""

    def __init__(self, app: ASGIApp, listen: Listen):
        self._app = app
        self._hosts = {listen.host.lower(), *map(allowed_host, listen.hosts)}
        self._origins = set(map(allowed_origin, listen.origins))

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            try:
                self._require_known(Headers(scope=scope))
            except HTTPProblem as error:
                return await problem_reply(error.status, str(error))(scope, receive, send)
        await self._app(scope, receive, send)

    def _require_known(self, headers: Headers) -> None:
        hosts = headers.getlist("host")
        for host in hosts:
            called = parse_authority(host)
            if called is None or not (is_loopback(called.host) or called.host in self._hosts):
                raise HTTPProblem(
                    421,
                    f"this service does not know itself as {host[:LONGEST]!r}; its operator can allow that name with "
                    "--allow-host",
                )
        for origin in headers.getlist("origin"):
            if not (parse_origin(origin) in self._origins or (hosts and is_same_origin(origin, hosts[0]))):
                raise HTTPProblem(
                    403,
                    f"pages of {origin[:LONGEST]!r} may not call this service; its operator can allow them with "
                    "--allow-origin",
                )
