"""TLS to a daemon behind a port: the files of a client, and what is wrong if a connection fails.

gRPC keeps what a channel was opened with. So a connection opens another channel once the files have changed
(`Renewal`), and lets the calls of the old one end there.
"""

from __future__ import annotations

import os
import re
import socket
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Any

from stateward._io.target import HTTP2_PREFACE, host_and_port, is_tcp
from stateward.errors import WrongTarget

if TYPE_CHECKING:
    import ssl

    import grpc

CA, CERT, KEY = "STATEWARD_TLS_CA", "STATEWARD_TLS_CERT", "STATEWARD_TLS_KEY"
ALPN = "h2"
LOOK_S = 1.0
"""How often the files are looked at."""
PROBE_S = 0.5
_READ_TRIES = 3
_CODE = "INVALID_ARGUMENT"
# Of a certificate's end in DER: the second of the two times that stand side by side, of two or four digits of the year.
_VALIDITY = re.compile(rb"(?:\x17\x0d\d{12}Z|\x18\x0f\d{14}Z)(\x17\x0d(\d{12})Z|\x18\x0f(\d{14})Z)")
_WORDS = ("handshak", "Socket closed", "Hostname", "HTTP/2", "SETTINGS", "reset", "Broken pipe")
"""Of gRPC's messages about connections that somebody refused or ended."""
Path_ = str | os.PathLike[str]


@dataclass(frozen=True)
class Tls:
    """The files of a client, in PEM."""

    ca: Path
    """The certificates that sign those of daemons."""
    cert: Path | None = None
    """The client's own certificate, for a daemon that asks for one."""
    key: Path | None = None

    def stamp(self) -> tuple[object, ...]:
        """Changes when a file does, or when another file takes its place."""
        return tuple(_stamp(path) for path in (self.ca, self.cert, self.key) if path is not None)

    def context(self) -> ssl.SSLContext:
        """Returns what the files hold, for Python's TLS. Raises WrongTarget, which names the file."""
        import ssl  # noqa: PLC0415  most clients need none

        for name, path in ((CA, self.ca), (CERT, self.cert), (KEY, self.key)):
            _check_readable(name, path)
        try:
            context = ssl.create_default_context(cafile=os.fspath(self.ca))
        except (ssl.SSLError, ValueError):
            raise WrongTarget(f"{CA}: {self.ca} holds no certificate in PEM", code=_CODE) from None
        context.set_alpn_protocols([ALPN])
        if self.cert is not None and self.key is not None:
            try:
                context.load_cert_chain(os.fspath(self.cert), os.fspath(self.key), _refuse_password)
            except (ssl.SSLError, ValueError) as error:
                raise WrongTarget(_why_unusable(self.cert, self.key, error), code=_CODE) from None
        return context

    def credentials(self) -> grpc.ChannelCredentials:
        """Returns what a channel is opened with. Raises WrongTarget."""
        import grpc  # noqa: PLC0415

        for _ in range(_READ_TRIES):  # the files may be replaced meanwhile
            before = self.stamp()
            self.context()
            try:
                found = [None if path is None else path.read_bytes() for path in (self.ca, self.key, self.cert)]
            except OSError:
                continue
            if self.stamp() == before:
                return grpc.ssl_channel_credentials(*found)
        raise WrongTarget(f"{CA}: {self.ca}, or a file beside it, changes too often to be read", code=_CODE)


class Renewal:
    """Says when the files of a connection have changed."""

    def __init__(self, tls: Tls) -> None:
        self._tls = tls
        self._stamp = self._seen = tls.stamp()
        self._looked_s = monotonic()

    def is_due(self) -> bool:
        """Whether they have changed since `note`. Looks once in a second."""
        now_s = monotonic()
        if now_s - self._looked_s < LOOK_S:
            return False
        self._looked_s = now_s
        self._seen = self._tls.stamp()
        return self._seen != self._stamp

    def note(self) -> None:
        """They were read after `is_due` has seen them."""
        self._stamp = self._seen


def resolve_tls(
    target: str,
    ca: Path_ | None,
    cert: Path_ | None,
    key: Path_ | None,
    credentials: object = None,
    environment: Mapping[str, str] = os.environ,
) -> Tls | None:
    """The files that are given, else those that the variables name if the target is a port; None = plain text.

    Raises ValueError for arguments that do not go together, and WrongTarget for a file that cannot be used.
    """
    given = {"tls_ca": ca, "tls_cert": cert, "tls_key": key}
    named = [name for name, path in given.items() if path is not None]
    if named and credentials is not None:
        raise ValueError(f"give either credentials or {named[0]}")
    if named and not is_tcp(target):
        raise ValueError(f"{named[0]} is for host:port; a unix socket such as {target} has no TLS")
    if credentials is not None or not is_tcp(target):
        return None
    ca, cert, key = (
        environment.get(variable) or None if path is None else path
        for variable, path in ((CA, ca), (CERT, cert), (KEY, key))
    )
    if ca is None:
        if cert is None and key is None:
            return None
        raise ValueError(f"a certificate of the client needs {CA}, or tls_ca: the CA of the daemon's certificate")
    if (cert is None) != (key is None):
        raise ValueError(f"{CERT} and {KEY} go together, as tls_cert and tls_key do")
    found = Tls(Path(ca), None if cert is None else Path(cert), None if key is None else Path(key))
    found.context()
    return found


def find_tls_fault(target: str, tls: Tls, said: str) -> str:
    """Returns why no connection with TLS can be made; "" if a daemon may still start there. `said` is gRPC's message.

    gRPC does not tell it: a daemon that refuses a certificate closes the connection. So this connects once more.
    """
    if not any(word in said for word in _WORDS):
        return ""
    try:
        context = tls.context()
    except WrongTarget as error:
        return error.message
    found = _probe(target, tls, context)
    return found and _probe(target, tls, context)  # a daemon that ends closes connections, too


def _probe(target: str, tls: Tls, context: ssl.SSLContext) -> str:
    import ssl  # noqa: PLC0415

    host, port = host_and_port(target)
    is_met = False
    try:
        plain = socket.create_connection((host, port), PROBE_S)
        with plain, context.wrap_socket(plain, server_hostname=host) as wrapped:
            is_met = True
            wrapped.sendall(HTTP2_PREFACE)
            if wrapped.recv(1):
                return ""
    except ssl.SSLCertVerificationError as error:
        return _why_not_verified(target, host, tls, error)
    except ssl.SSLError as error:
        if error.reason in {"WRONG_VERSION_NUMBER", "HTTP_REQUEST", "RECORD_LAYER_FAILURE"}:
            return f"{target} speaks no TLS: unset {CA}, or give the address of a daemon's port with ?tls"
        if not is_met and not isinstance(error, ssl.SSLEOFError):
            return f"{target}: no connection with TLS can be made: {_words(error)}"
    except (OSError, ValueError):  # ValueError: of a name that is none
        if not is_met:
            return ""
    return _why_refused(target, tls) if is_met else ""


def _why_not_verified(target: str, host: str, tls: Tls, error: ssl.SSLCertVerificationError) -> str:
    expired, too_early, names = 10, 9, {62, 64}
    if error.verify_code == expired:
        return f"{target}: the daemon's certificate has expired; renew the file of its --tls-cert"
    if error.verify_code == too_early:
        return f"{target}: the daemon's certificate is not valid yet; compare the clocks of both machines"
    if error.verify_code in names:
        return f"{target}: the daemon's certificate is not for {host}; give the name that it is for, or renew it"
    return f"{target}: no CA in {tls.ca} has signed the daemon's certificate ({error.verify_message}); correct {CA}"


def _why_refused(target: str, tls: Tls) -> str:
    if tls.cert is None:
        return f"{target} asks clients for a certificate; set {CERT} and {KEY}"
    ends = _end_of(tls.cert)
    if ends is not None and ends <= datetime.now(UTC):
        return f"the certificate {tls.cert} has expired, on {ends:%Y-%m-%d %H:%M} UTC; renew it"
    return f"{target} does not accept the certificate {tls.cert}: no CA of its --tls-client-ca has signed it"


def _end_of(path: Path) -> datetime | None:
    """When the first certificate of a file ends; None = unknown."""
    import ssl  # noqa: PLC0415

    with suppress(OSError, ValueError):
        text = path.read_text("ascii", "replace")
        begin = text.index("-----BEGIN CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(text[begin : text.index("-----END CERTIFICATE-----") + 25])
        if (found := _VALIDITY.search(der)) is not None:
            short, long = found[2], found[3]
            digits = long or (b"20" if short[:2] < b"50" else b"19") + short
            return datetime.strptime(digits.decode(), "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return None


def _check_readable(name: str, path: Path | None) -> None:
    if path is not None:
        try:
            path.open("rb").close()
        except OSError as error:
            raise WrongTarget(f"{name}: cannot read {path}: {error.strerror}", code=_CODE) from None


def _why_unusable(cert: Path, key: Path, error: Exception) -> str:
    reason = str(getattr(error, "reason", "") or "")
    if "KEY_VALUES_MISMATCH" in reason or "KEY_TYPE_MISMATCH" in reason:
        return f"{KEY}: {key} is not the key of the certificate in {cert}"
    if isinstance(error, ValueError) and not hasattr(error, "reason"):
        return f"{KEY}: {key} asks for a password; give a key without one"
    if "BEGIN CERTIFICATE" not in cert.read_text("ascii", "replace"):
        return f"{CERT}: {cert} holds no certificate in PEM"
    return f"{KEY}: {key} holds no private key in PEM, or {cert} no certificate"


def _refuse_password(*_: Any) -> str:
    raise ValueError


def _words(error: ssl.SSLError) -> str:
    return str(error.reason or error.strerror or error).replace("_", " ").lower()


def _stamp(path: Path) -> tuple[int, ...]:
    try:
        found = path.stat()
    except OSError:
        return ()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns
