"""Hosts and origins as headers and operators write them."""

from typing import NamedTuple
from urllib.parse import urlsplit

from fedspm.base.errors import FedSPMError

PORTS = {"http": 80, "https": 443}


class Address(NamedTuple):
    host: str  # in small letters, without the brackets of IPv6 or a last dot
    port: int | None


def parse_authority(authority: str) -> Address | None:
    """The host and the port of HOST[:PORT]; None if it is something else."""
    try:
        parts = urlsplit(f"//{authority}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return None
    if not host or parts.netloc != authority or "@" in authority or not authority.isprintable() or " " in authority:
        return None
    return Address(host.removesuffix("."), port)


def parse_origin(text: str) -> tuple[str, Address] | None:
    """Scheme, host and port of SCHEME://HOST[:PORT]; None if it is something else."""
    scheme, _, authority = text.partition("://")
    address = parse_authority(authority)
    if scheme not in PORTS or address is None:
        return None
    return scheme, Address(address.host, address.port or PORTS[scheme])


def is_same_origin(origin: str, host: str) -> bool:
    """Is this the origin of the service's own page? The scheme may differ: a proxy may end TLS."""
    found, called = parse_origin(origin), parse_authority(host)
    if found is None or called is None:
        return False
    scheme, address = found
    return address == Address(called.host, called.port or PORTS[scheme])


def allowed_host(text: str) -> str:
    """The host that an operator gives with --allow-host; IPv6 with or without its brackets."""
    address = parse_authority(f"[{text}]" if text.count(":") > 1 and text[0] != "[" else text)
    if address is None or "*" in text:
        raise FedSPMError(f"--allow-host {text!r} is no host; give a name or an address, for instance north.example")
    return address.host


def allowed_origin(text: str) -> tuple[str, Address]:
    """Scheme, host and port of the origin that an operator gives with --allow-origin."""
    found = parse_origin(text)
    if found is None or "*" in text:
        raise FedSPMError(f"--allow-origin {text!r} is no origin; give one such as https://north.example:8443")
    return found
