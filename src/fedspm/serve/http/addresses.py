"""Hosts and origins as headers and operators write them."""

from typing import NamedTuple
from urllib.parse import urlsplit

from fedspm.base.errors import FedSPMError

PORTS = {"http": 80, "https": 443}


class Place(NamedTuple):
    host: str  # in small letters, without the brackets of IPv6 or a last dot
    port: int | None


def place_of(authority: str) -> Place | None:
    """The host and the port of HOST[:PORT]; None if it is something else."""
    try:
        parts = urlsplit(f"//{authority}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or parts.netloc != authority or "@" in authority or not authority.isprintable() or " " in authority:
        return None
    return Place(host.removesuffix("."), port)


def origin_of(text: str) -> tuple[str, Place] | None:
    """Scheme, host and port of SCHEME://HOST[:PORT]; None if it is something else."""
    scheme, _, authority = text.partition("://")
    place = place_of(authority)
    if scheme not in PORTS or place is None:
        return None
    return scheme, Place(place.host, place.port or PORTS[scheme])


def is_same(origin: str, host: str) -> bool:
    """Is this the origin of the service's own page? A proxy that ends TLS makes https of http, so the scheme may be
    another."""
    found, called = origin_of(origin), place_of(host)
    if found is None or called is None:
        return False
    scheme, place = found
    return place == Place(called.host, called.port or PORTS[scheme])


def named_host(text: str) -> str:
    """The host that an operator names; IPv6 with or without its brackets."""
    place = place_of(f"[{text}]" if text.count(":") > 1 and text[0] != "[" else text)
    if place is None or "*" in text:
        raise FedSPMError(f"--allow-host {text!r} is no host; give a name or an address, for instance north.example")
    return place.host


def named_origin(text: str) -> tuple[str, Place]:
    found = origin_of(text)
    if found is None or "*" in text:
        raise FedSPMError(f"--allow-origin {text!r} is no origin; give one such as https://north.example:8443")
    return found
