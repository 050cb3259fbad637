"""An issuer of JSON Web Tokens: its keys, its tokens, and the server that publishes the keys over TLS."""

from __future__ import annotations

import base64
import datetime as dt
import http.server
import ipaddress
import json
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jwt
from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
from cryptography.x509.oid import NameOID

NAME, AUDIENCE, SUB = "https://issuer.example", "stateward", "system:serviceaccount:team:agent"
KINDS = ("RS256", "ES256")
_made: dict[tuple[str, int], Any] = {}


def private_key(algorithm: str, number: int = 0) -> Any:
    """A private key. The same arguments give the same one: an RSA key takes a while to make."""
    if (algorithm, number) not in _made:
        is_rsa = algorithm == "RS256"
        made = rsa.generate_private_key(65537, 2048) if is_rsa else ec.generate_private_key(ec.SECP256R1())
        _made[algorithm, number] = made
    return _made[algorithm, number]


def public_jwk(key: Any, kid: str, **more: Any) -> dict[str, Any]:
    """A key as its issuer publishes it."""
    is_rsa = isinstance(key, rsa.RSAPrivateKey)
    made: dict[str, Any] = (jwt.algorithms.RSAAlgorithm if is_rsa else jwt.algorithms.ECAlgorithm).to_jwk(
        key.public_key(), as_dict=True
    )
    made.pop("key_ops", None)
    return {**made, "kid": kid, "use": "sig", "alg": "RS256" if is_rsa else "ES256", **more}


def key_set(*keys: dict[str, Any]) -> bytes:
    """A JWKS."""
    return json.dumps({"keys": keys}).encode()


BOTH = key_set(*(public_jwk(private_key(kind), kind) for kind in KINDS))
"""A key of each kind, whose id is its algorithm."""


def token(algorithm: str = "RS256", *, kid: str | None = "", key: Any = None, for_s: float = 600, **claims: Any) -> str:
    """A token as kubelet brings them. ``claims``: None takes one away."""
    now = time.time()
    said = {
        "iss": NAME, "aud": [AUDIENCE], "sub": SUB, "iat": int(now), "nbf": int(now), "exp": now + for_s,
        "kubernetes.io": {"namespace": "team", "pod": {"name": "agent-0"}, "serviceaccount": {"name": "agent"}},
        **claims,
    }  # fmt: skip
    said = {name: value for name, value in said.items() if value is not None}
    headers = {} if kid is None else {"kid": kid or algorithm}
    return jwt.encode(said, key or private_key(algorithm), algorithm, headers)


def raw(header: Any, claims: Any, signature: bytes = b"x" * 256) -> str:
    """A token that no library would make."""
    parts = [json.dumps(each).encode() if not isinstance(each, bytes) else each for each in (header, claims)]
    return ".".join(base64.urlsafe_b64encode(each).rstrip(b"=").decode() for each in (*parts, signature))


def authorities(directory: Path, name: str = "issuer", *, has_key_ids: bool = True) -> tuple[Path, Path]:
    """A certificate authority that nobody knows, and a certificate of it for this machine. Returns the authority's
    file, and that of the certificate with its key."""
    now = dt.datetime.now(dt.UTC)
    root, leaf = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    issued_by = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"{name} root")])

    def certify(subject: x509.Name, key: Any, *extensions: tuple[x509.ExtensionType, bool]) -> bytes:
        made = x509.CertificateBuilder().subject_name(subject).issuer_name(issued_by).public_key(key.public_key())
        made = made.serial_number(x509.random_serial_number())
        made = made.not_valid_before(now - dt.timedelta(days=1)).not_valid_after(now + dt.timedelta(days=1))
        for extension, is_critical in extensions if has_key_ids else extensions[:1]:
            made = made.add_extension(extension, is_critical)
        return made.sign(root, hashes.SHA256()).public_bytes(Encoding.PEM)

    place = x509.SubjectAlternativeName(
        [x509.DNSName("localhost"), x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]
    )
    root_id = x509.SubjectKeyIdentifier.from_public_key(root.public_key())
    signs = x509.KeyUsage(
        digital_signature=True, content_commitment=False, key_encipherment=False, data_encipherment=False,
        key_agreement=False, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False,
    )  # fmt: skip
    authority, certificate = directory / f"{name}-ca.crt", directory / f"{name}.pem"
    authority.write_bytes(
        certify(issued_by, root, (x509.BasicConstraints(ca=True, path_length=None), True), (root_id, False),
                (signs, True))
    )  # fmt: skip
    by = x509.AuthorityKeyIdentifier.from_issuer_subject_key_identifier(root_id)
    certificate.write_bytes(
        certify(x509.Name([]), leaf, (place, True), (by, False))
        + leaf.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    )
    return authority, certificate


class IssuerServer:
    """Publishes keys over TLS. ``body`` is what it answers; ``behave`` takes the place of its answers."""

    def __init__(self, directory: Path) -> None:
        self.body = BOTH
        self.behave: Callable[[http.server.BaseHTTPRequestHandler], None] | None = None
        self.requests: list[dict[str, str]] = []
        """The headers of each request."""
        self.ca, certificate = authorities(directory)
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append({key.lower(): value for key, value in self.headers.items()})
                if outer.behave is not None:
                    outer.behave(self)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(outer.body)))
                self.end_headers()
                self.wfile.write(outer.body)

            def log_message(self, *arguments: object) -> None:
                pass

        class Quiet(http.server.ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *arguments: object) -> None:
                """A client that leaves is what some tests are about."""

        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.show(certificate)
        self._server = Quiet(("127.0.0.1", 0), Handler)
        self._server.socket = self._context.wrap_socket(
            self._server.socket, server_side=True, do_handshake_on_connect=False
        )
        self.url = f"https://127.0.0.1:{self._server.server_address[1]}/openid/v1/jwks"

    def show(self, certificate: Path) -> None:
        """Shows this certificate from now on."""
        self._context.load_cert_chain(certificate)

    @contextmanager
    def serving(self) -> Iterator[IssuerServer]:
        """Answers until the end."""
        thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._server.shutdown()
            self._server.server_close()
            thread.join()


def access_text(jwks: str | Path, *, more: str = "", rules: str = "", ca: Path | None = None) -> str:
    """A file of principals: `agent` by its service account, `operator` by its group."""
    text = f'[[issuer]]\nissuer = "{NAME}"\naudience = "{AUDIENCE}"\njwks = "{jwks}"\n{more}\n'
    if ca is not None:
        text += f'ca = "{ca}"\n'
    return text + (rules or RULES)


RULES = f"""
[[principal]]
name = "agent"
jwt = {{ issuer = "{NAME}", claims = {{ sub = "{SUB}" }} }}
grants = ["read,write,delete team/${{principal}}-*"]

[[principal]]
name = "operator"
jwt = {{ issuer = "{NAME}", claims = {{ groups = ["operators", "admins"], "kubernetes.io".namespace = "ops-*" }} }}
grants = ["admin */*", "read,write,signal,delete */*"]
"""
