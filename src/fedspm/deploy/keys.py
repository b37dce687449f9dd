"""Certificates for the server and key pairs for the sites, as Flower wants them."""

import ipaddress
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from fedspm.base.errors import FedSPMError
from fedspm.base.files import private_folder, write_atomically

YEARS = 2
ITSELF = ("localhost", "127.0.0.1")  # by which the SuperLink's own processes reach it


def make_certificates(folder: Path, hosts: list[str]) -> None:
    """Write ca.crt, which every site gets, and server.pem and server.key, valid for these hosts and this machine."""
    known = [_alternative(host) for host in dict.fromkeys([*hosts, *ITSELF])]
    private_folder(folder)
    _refuse_existing(folder / "server.key")
    authority, key = ec.generate_private_key(ec.SECP384R1()), ec.generate_private_key(ec.SECP384R1())
    issuer = _name("FedSPM federation")
    itself = (
        _certificate(issuer, issuer, authority.public_key(), authority.public_key())
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(key_cert_sign=True, crl_sign=True), critical=True)
        .sign(authority, hashes.SHA384())
    )
    server = (
        _certificate(_name(hosts[0]), issuer, key.public_key(), authority.public_key())
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(digital_signature=True), critical=True)
        .add_extension(x509.SubjectAlternativeName(known), critical=False)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(authority, hashes.SHA384())
    )
    pem = serialization.Encoding.PEM
    write_atomically(folder / "ca.crt", itself.public_bytes(pem))
    write_atomically(folder / "server.pem", server.public_bytes(pem))
    write_atomically(folder / "server.key", _plain(key, pem, serialization.PrivateFormat.PKCS8), private=True)


def make_key(path: Path) -> Path:
    """Write a site's key pair: `path`, which never leaves the site, and `path`.pub, which the server's operator
    registers. Returns the path of the latter."""
    _refuse_existing(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    key = ec.generate_private_key(ec.SECP384R1())
    public = path.with_name(path.name + ".pub")
    ssh = serialization.Encoding.OpenSSH
    write_atomically(path, _plain(key, serialization.Encoding.PEM, serialization.PrivateFormat.OpenSSH), private=True)
    write_atomically(public, key.public_key().public_bytes(ssh, serialization.PublicFormat.OpenSSH) + b"\n")
    return public


def _plain(
    key: ec.EllipticCurvePrivateKey, encoding: serialization.Encoding, form: serialization.PrivateFormat
) -> bytes:
    return key.private_bytes(encoding, form, serialization.NoEncryption())


def _certificate(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, signer: ec.EllipticCurvePublicKey
) -> x509.CertificateBuilder:
    """What all certificates have in common. Strict checks (RFC 5280) want both identifiers."""
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(days=365 * YEARS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer), critical=False)
    )


def _usage(**allowed: bool) -> x509.KeyUsage:
    """What a key may be used for: nothing but this."""
    every = ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    nothing = dict.fromkeys((*every, "key_cert_sign", "crl_sign", "encipher_only", "decipher_only"), False)
    return x509.KeyUsage(**(nothing | allowed))


def _name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _alternative(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        name = host.encode("idna").decode()
    except UnicodeError:
        name = ""
    if not re.fullmatch(r"(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*", name):
        raise FedSPMError(f"--host {host!r} is neither a host's name nor an address; leave out https:// and the port")
    return x509.DNSName(name)


def _refuse_existing(path: Path) -> None:
    if path.exists():
        raise FedSPMError(f"{path} already exists and is not touched; whoever relies on it would be locked out")
