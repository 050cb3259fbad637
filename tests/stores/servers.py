"""Small servers for tests: one that answers by a function, with or without TLS, and the certificates for it."""

from __future__ import annotations

import datetime as dt
import http.server
import ipaddress
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID


@dataclass(frozen=True)
class Request:
    """What a client asks."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes


Reply = tuple[int, dict[str, str], bytes]


@dataclass(frozen=True)
class Certificate:
    """Files in PEM: who signed (for SSL_CERT_FILE), and the server's certificate for 127.0.0.1 with its key."""

    authority: Path
    chain: Path
    key: Path

    def context(self) -> ssl.SSLContext:
        """For the server."""
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(self.chain, self.key)
        return made


@contextmanager
def serving(reply: Callable[[Request], Reply], certificate: Certificate | None = None) -> Iterator[str]:
    """Answers each request by this function until the block is left; gives the URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
            """Says nothing."""

        def handle_one_request(self) -> None:
            with suppress(OSError):
                super().handle_one_request()

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            status, headers, data = reply(Request(self.command, self.path, self.headers, body))
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        do_GET = do_PUT = do_POST = do_DELETE = do  # noqa: N815

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        if certificate is not None:
            server.socket = certificate.context().wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        try:
            yield f"{'https' if certificate else 'http'}://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def make_certificate(directory: Path) -> Certificate:
    """Makes an authority, and a certificate for 127.0.0.1 that it signed."""
    root_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    root_name, name = _named("tests"), _named("127.0.0.1")
    root = _begun(root_name, root_name, root_key).add_extension(x509.BasicConstraints(True, None), critical=True)
    leaf = _begun(name, root_name, key).add_extension(x509.BasicConstraints(False, None), critical=True)
    place = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    signed = leaf.add_extension(place, critical=False).sign(root_key, hashes.SHA256())
    made = Certificate(directory / "ca.pem", directory / "cert.pem", directory / "key.pem")
    made.authority.write_bytes(root.sign(root_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    made.chain.write_bytes(signed.public_bytes(serialization.Encoding.PEM))
    made.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )  # fmt: skip
    return made


def _named(name: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])


def _begun(name: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey) -> x509.CertificateBuilder:
    now = dt.datetime.now(dt.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=1))
    )
