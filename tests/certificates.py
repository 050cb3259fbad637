"""Certificates for tests: an authority that signs what a test asks for, and the files of daemons and clients."""

from __future__ import annotations

import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

DAY = dt.timedelta(days=1)
HERE = ("localhost", "127.0.0.1")


class Certified(NamedTuple):
    """A certificate and its key, as files."""

    cert: Path
    key: Path


class Authority:
    """A CA, whose certificate lies in a file."""

    def __init__(self, directory: Path, name: str = "ca") -> None:
        self._directory = directory
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        now = dt.datetime.now(dt.UTC)
        made = (
            _builder(self._name, self._name, self._key, now - DAY, now + 30 * DAY)
            .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.path = directory / f"{name}.pem"
        self.path.write_bytes(made.public_bytes(Encoding.PEM))

    def sign(
        self, name: str, names: Sequence[str] = HERE, *, begins: dt.timedelta = -DAY, ends: float = 5
    ) -> Certified:
        """Makes a certificate for DNS names, addresses and SPIFFE ids. ``ends``: in so many days. Files of that name
        that exist are replaced as a Kubernetes Secret is: each at once."""
        key, now = ec.generate_private_key(ec.SECP256R1()), dt.datetime.now(dt.UTC)
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        made = (
            _builder(subject, self._name, key, now + begins, now + ends * DAY)
            .add_extension(x509.SubjectAlternativeName([_general(each) for each in names]), critical=False)
            .sign(self._key, hashes.SHA256())
        )
        pair = Certified(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        replace(pair.key, key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        replace(pair.cert, made.public_bytes(Encoding.PEM))
        return pair


def replace(path: Path, data: bytes) -> None:
    """Puts another file in the place of one."""
    other = path.with_name(path.name + ".new")
    other.touch(mode=0o600)
    other.write_bytes(data)
    other.replace(path)


def _builder(subject: x509.Name, issuer: x509.Name, key: Any, begins: dt.datetime, ends: dt.datetime) -> Any:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(begins)
        .not_valid_after(ends)
    )


def _general(name: str) -> x509.GeneralName:
    if name.startswith("spiffe://"):
        return x509.UniformResourceIdentifier(name)
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)
