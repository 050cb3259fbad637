"""Where the daemon listens: the addresses of `--listen`, and what a port must have before the daemon opens it.
The sockets of principals, which the access file names.

    unix:///path       a socket of the file system: its mode says who may connect
    host:port?tls      a port with TLS; with --tls-client-ca nobody connects without a certificate (mutual TLS)
    host:port          a port in plain text, for this machine only

Whoever may connect can cost the daemon time and memory, also without a valid token. So a port without mutual TLS needs
`--exposed-port`, by which the operator says that this is known.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from stateward_sidecar.errors import StartError

LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
PORT_MAX = 65535
TLS_MARK = "?tls"
SUFFIX = "~"
"""The socket of the local wire has the name of gRPC's, and this behind it."""
# The kernel's limit for the path of a unix socket, less one for the final zero byte.
SOCKET_PATH_BYTES_MAX = 107
# Authenticated encryption with forward secrecy, in the names of gRPC's library.
CIPHER_SUITES = (
    "TLS_AES_128_GCM_SHA256:TLS_AES_256_GCM_SHA384:TLS_CHACHA20_POLY1305_SHA256:"
    "ECDHE-ECDSA-AES128-GCM-SHA256:ECDHE-ECDSA-AES256-GCM-SHA384:ECDHE-ECDSA-CHACHA20-POLY1305:"
    "ECDHE-RSA-AES128-GCM-SHA256:ECDHE-RSA-AES256-GCM-SHA384:ECDHE-RSA-CHACHA20-POLY1305"
)


@dataclass(frozen=True, slots=True)
class Port:
    """A port of the network."""

    host: str
    number: int
    has_tls: bool

    @property
    def target(self) -> str:
        """Where clients find it."""
        return f"{self.host}:{self.number}"


def parse_listen(url: str) -> Path | Port:
    """Returns the path of a socket, or a port. Raises StartError."""
    if url.startswith("unix:"):
        return Path(re.sub(r"^unix:(//(?=/))?", "", url))
    host, _, port = url.removesuffix(TLS_MARK).rpartition(":")
    if not host or not port.isdigit() or int(port) > PORT_MAX:
        raise StartError(f"--listen {url}: this is not an address; give unix:///path, host:port?tls or host:port")
    return Port(host, int(port), url.endswith(TLS_MARK))


def beside(path: Path) -> Path:
    """Returns the path of the socket of the local wire that is beside one of gRPC."""
    return path.with_name(path.name + SUFFIX)


def sockets_of(urls: Iterable[str]) -> frozenset[Path]:
    """Returns the paths of all sockets that these addresses take."""
    paths = [place.absolute() for place in map(parse_listen, urls) if isinstance(place, Path)]
    return frozenset(each for path in paths for each in (path, beside(path)))


def parse_own_socket(url: str) -> Path:
    """Returns the path of a principal's socket. Raises ValueError."""
    path = Path(url.removeprefix("unix://"))
    if not url.startswith("unix:///") or not url.isprintable() or url.startswith("unix:////") or ".." in path.parts:
        raise ValueError(f"{url!r} is no address of a socket; give unix:///path, without ..")
    if path.name in ("", SUFFIX):
        raise ValueError(f"{url!r} names no socket")
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise ValueError(f"{url!r}: the path is longer than {SOCKET_PATH_BYTES_MAX} bytes; shorten it")
    return path


def has_tls(urls: Sequence[str]) -> bool:
    """Returns whether an address is a port with TLS."""
    return any(not url.startswith("unix:") and url.endswith(TLS_MARK) for url in urls)


@dataclass(frozen=True, slots=True)
class Guards:
    """What stands between the daemon's ports and strangers."""

    has_certificate: bool  # --tls-cert and --tls-key
    has_client_ca: bool
    has_callers: bool  # --token-file or --access
    is_exposed: bool  # --exposed-port


def check_listeners(urls: Sequence[str], guards: Guards) -> None:
    """Raises StartError if a port is not allowed with these guards."""
    for url in urls:
        if isinstance(place := parse_listen(url), Port):
            _check_port(url, place, guards)


def _check_port(url: str, port: Port, guards: Guards) -> None:
    is_wide = port.host not in LOOPBACK
    if is_wide and not port.has_tls:
        raise StartError(
            f"--listen {url}: an address that is not loopback needs TLS: give {url}{TLS_MARK}, --tls-cert, --tls-key "
            "and --tls-client-ca; or use a unix socket or 127.0.0.1"
        )
    if port.has_tls and not guards.has_certificate:
        raise StartError(f"--listen {url}: TLS needs --tls-cert and --tls-key")
    if port.has_tls and guards.has_client_ca:
        return
    if not guards.is_exposed:
        raise StartError(
            f"--listen {url}: everybody who reaches this port can connect, and make the daemon slow; use a unix "
            f"socket, or host:port{TLS_MARK} with --tls-client-ca, or say with --exposed-port that you accept it"
        )
    if is_wide and not guards.has_callers:
        raise StartError(
            f"--listen {url}: every machine that reaches this port could read and delete all threads; add "
            "--tls-client-ca, or --token-file, or --access"
        )
