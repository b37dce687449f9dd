"""Who made a bundle: an Ed25519 signature of the card of a folder, which holds the SHA-256 of the tensors beside it.

A card without a signature says only that two files belong together; whoever can write into the folder can write both.
Keys are made with `openssl genpkey -algorithm ed25519` or `ssh-keygen -t ed25519`.
"""

from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    load_pem_private_key,
    load_pem_public_key,
    load_ssh_private_key,
    load_ssh_public_key,
)

from fedspm.base.errors import FedSPMError

MAKE = "make one with `openssl genpkey -algorithm ed25519 -out bundle.key`"
EXTRACT = "write it with `openssl pkey -in bundle.key -pubout -out bundle.pub`"


def read_signing_key(path: Path) -> bytes:
    """The private key that bundles are signed with, as PEM or as OpenSSH writes it, without a password."""
    content = _read(path)
    load = load_ssh_private_key if b"OPENSSH" in content[:64] else load_pem_private_key
    try:
        key = load(content, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise FedSPMError(f"{path} is not a private key without a password; {MAKE}") from error
    if not isinstance(key, Ed25519PrivateKey):
        raise FedSPMError(f"{path} is a private key of another kind than Ed25519; {MAKE}")
    return key.private_bytes_raw()


def read_trusted_key(path: Path) -> bytes:
    """The public key that a bundle's signature must fit, as PEM or as OpenSSH writes it."""
    content = _read(path)
    load = load_ssh_public_key if content.startswith(b"ssh-") else load_pem_public_key
    try:
        key = load(content)
    except (ValueError, UnsupportedAlgorithm) as error:
        raise FedSPMError(f"{path} is not a public key; {EXTRACT}") from error
    if not isinstance(key, Ed25519PublicKey):
        raise FedSPMError(f"{path} is a public key of another kind than Ed25519; {EXTRACT}")
    return key.public_bytes_raw()


def sign_card(kind: str, card: bytes, key: bytes) -> bytes:
    """The signature of a router's or a node's card."""
    return Ed25519PrivateKey.from_private_bytes(key).sign(_message(kind, card))


def require_signed(folder: Path, kind: str, card: bytes, trust: bytes) -> None:
    """Refuse a folder whose card was not signed with the key that is trusted."""
    path = folder / f"{kind}.sig"
    try:
        Ed25519PublicKey.from_public_bytes(trust).verify(path.read_bytes(), _message(kind, card))
    except FileNotFoundError as error:
        raise FedSPMError(f"{folder} is not signed: it has no {path.name}; export it with --sign") from error
    except OSError as error:
        raise FedSPMError(f"{path} cannot be read: {error.strerror or error}") from error
    except InvalidSignature as error:
        raise FedSPMError(
            f"{folder} was not signed with the key that is trusted, or {kind}.json was changed since; it is not used"
        ) from error


def _message(kind: str, card: bytes) -> bytes:
    return f"fedspm bundle 1 {kind}\n".encode() + card


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise FedSPMError(f"{path} cannot be read: {error.strerror or error}") from error
