"""The files of TLS: the daemon's certificate and key, and the certificates that sign those of clients.

All are PEM. They are checked whole before any of them counts, so a file that is half written replaces nothing.
A daemon without TLS does not load what parses them: it takes a tenth of the time in which it starts.
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from stateward_sidecar.addresses import has_tls
from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import Settings
from stateward_sidecar.storage.files import stamp_of

if TYPE_CHECKING:
    from cryptography import x509

FILE_BYTES_MAX = 1 << 20


class CertificateFiles(NamedTuple):
    """Where the certificates lie."""

    certificate: Path
    """The daemon's own, with those that lead from it to its CA."""
    key: Path
    client_ca: Path | None
    """None = clients need no certificate."""

    def stamp(self) -> tuple[tuple[int, ...], ...]:
        """Changes when a file does, or when another file takes its place."""
        return tuple(stamp_of(path) for path in self if path is not None)


class Certificates(NamedTuple):
    """What is in the files."""

    chain: bytes
    key: bytes
    client_ca: bytes | None
    begins: datetime
    ends: datetime
    """When the daemon's own certificate begins and ends."""
    names: tuple[str, ...]
    """The DNS names and addresses for which clients accept it."""


def certificate_files(settings: Settings) -> CertificateFiles | None:
    """Returns where the settings say that they lie; None = no port has TLS."""
    if settings.tls_cert is None or settings.tls_key is None or not has_tls(settings.listen):
        return None
    return CertificateFiles(settings.tls_cert, settings.tls_key, settings.tls_client_ca)


def read_certificates(files: CertificateFiles, now: datetime | None = None) -> Certificates:
    """Returns what is in the files. Raises StartError, which names the flag of the file."""
    chain, key = _read("--tls-cert", files.certificate), _read("--tls-key", files.key)
    own = _parse("--tls-cert", files.certificate, chain)[0]
    if _public_of(_load_key(files.key, key)) != _encoded(own.public_key()):
        raise StartError(f"--tls-key {files.key} is not the key of the certificate in {files.certificate}")
    now = now or datetime.now(UTC)
    begins, ends = own.not_valid_before_utc, own.not_valid_after_utc
    if ends <= now:
        raise StartError(f"--tls-cert {files.certificate}: the certificate has expired, on {_told(ends)}; renew it")
    if begins > now:
        raise StartError(
            f"--tls-cert {files.certificate}: the certificate is valid from {_told(begins)} on; is this machine's "
            "clock right?"
        )
    client_ca = None
    if files.client_ca is not None:
        client_ca = _read("--tls-client-ca", files.client_ca)
        found = _parse("--tls-client-ca", files.client_ca, client_ca)
        if all(each.not_valid_after_utc <= now for each in found):
            last = max(each.not_valid_after_utc for each in found)
            raise StartError(f"--tls-client-ca {files.client_ca}: the certificate has expired, on {_told(last)}")
    return Certificates(chain, key, client_ca, begins, ends, _names(own))


def _read(flag: str, path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            found = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise StartError(f"{flag}: cannot read {path}: {error.strerror}") from None
    if len(found) > FILE_BYTES_MAX:
        raise StartError(f"{flag} {path} has more than {FILE_BYTES_MAX >> 20} MiB")
    return found


def _parse(flag: str, path: Path, data: bytes) -> list[x509.Certificate]:
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(data)
    except ValueError:
        raise StartError(f"{flag} {path} holds no certificate: PEM is expected, with BEGIN CERTIFICATE") from None


def _load_key(path: Path, data: bytes) -> object:
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    try:
        return load_pem_private_key(data, None)
    except TypeError:
        raise StartError(f"--tls-key {path} asks for a password; give a key without one") from None
    except ValueError:
        raise StartError(f"--tls-key {path} holds no private key: PEM is expected, with BEGIN PRIVATE KEY") from None
    except Exception as error:  # noqa: BLE001  of a kind of key that the library does not know
        raise StartError(f"--tls-key {path} cannot be used: {error}") from None


def _public_of(key: object) -> bytes:
    return _encoded(key.public_key())  # type: ignore[attr-defined]


def _encoded(public: object) -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

    found: bytes = public.public_bytes(  # type: ignore[attr-defined]
        Encoding.DER, PublicFormat.SubjectPublicKeyInfo
    )
    return found


def _names(certificate: x509.Certificate) -> tuple[str, ...]:
    from cryptography import x509

    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return ()
    return (*found.get_values_for_type(x509.DNSName), *map(str, found.get_values_for_type(x509.IPAddress)))


def _told(time: datetime) -> str:
    return f"{time:%Y-%m-%d %H:%M} UTC"
