"""Certificates: the service's own, and whose signature counts on that of the other side."""

import ssl
from pathlib import Path

from fedspm.base.errors import FedSPMError


def require_files(certificate: Path | None, key: Path | None) -> None:
    """Refuse a certificate without its key, a key without its certificate, and names of files that are not there."""
    if (certificate is None) != (key is None):
        raise FedSPMError("TLS needs both --tls-cert and --tls-key")
    for path in (certificate, key):
        if path and not path.exists():
            raise FedSPMError(f"there is no file {path}")


def require_key_pair(certificate: Path, key: Path | None) -> None:
    """Refuse files that are not a certificate and its private key."""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except OSError as error:
        raise FedSPMError(
            f"{certificate} and {key} are not a certificate (PEM) and its private key: {error}"
        ) from error


def trust_context(authority: str | Path | None) -> ssl.SSLContext:
    """Trust certificates that `authority` (a PEM file) signed; without it, those that the system trusts."""
    try:
        return ssl.create_default_context(cafile=authority)
    except OSError as error:
        raise FedSPMError(f"{authority} cannot be read as a certificate (PEM): {error}") from error
