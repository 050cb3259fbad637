"""The public keys of an issuer as bytes (JWKS, RFC 7517): reading them from a file or over HTTPS, and what is a key.

Whoever answers for the issuer is trusted to name its keys, and with nothing else. The request follows no redirect, ends
after ``FETCH_S`` also if the answer never does, and takes at most ``JWKS_BYTES_MAX``. A set with a private or a
symmetric key is refused as a whole: who reads it can make tokens. Keys that are not for RS256 or ES256, or too weak, do
not count.
"""

from __future__ import annotations

import http.client
import json
import socket
import ssl
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple, Self
from urllib.parse import urlsplit

import jwt
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, EllipticCurvePublicKey
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey

from stateward._version import VERSION
from stateward_sidecar.service.admission.issuers import Source

FETCH_S = 10.0
"""How long a request may take altogether, beside the look-up of the host's name."""
JWKS_BYTES_MAX, KEYS_MAX, KID_CHARS_MAX, TOKEN_BYTES_MAX = 256 << 10, 100, 500, 16 << 10
RSA_BITS_MIN, RSA_BITS_MAX = 2048, 8192
_NUMBER_CHARS_MAX = RSA_BITS_MAX // 6 + 4
"""Of the modulus in base64."""
_PRIVATE = {"d", "p", "q", "dp", "dq", "qi", "oth", "k"}


class KeysWrong(Exception):
    """The keys cannot be read, or are none. The message says why."""


class Key(NamedTuple):
    """A public key, and the only algorithm that it is for."""

    algorithm: str
    public: RSAPublicKey | EllipticCurvePublicKey


def read_keys(source: Source) -> dict[str, Key]:
    """Returns the keys by their ids. Blocks. Raises KeysWrong."""
    return parse_keys(_fetch(source) if source.is_url else _read(Path(source.jwks), JWKS_BYTES_MAX))


def parse_keys(data: bytes) -> dict[str, Key]:
    """Returns the keys of a set by their ids. Raises KeysWrong."""
    try:
        told = json.loads(data)
    except (ValueError, RecursionError):
        raise KeysWrong("is no JSON") from None
    keys = told.get("keys") if isinstance(told, dict) else None
    if not isinstance(keys, list) or len(keys) > KEYS_MAX or not all(isinstance(each, dict) for each in keys):
        raise KeysWrong(f"is no set of at most {KEYS_MAX} keys")
    if any(_PRIVATE & each.keys() for each in keys):
        raise KeysWrong("has a private or a symmetric key: whoever reads it can make tokens; publish public keys only")
    found = dict[str, Key]()
    for kid, key in _usable(keys):
        if kid in found:
            raise KeysWrong(f"has two keys with the id {kid!r}")
        found[kid] = key
    if not found:
        raise KeysWrong(f"has no key for RS256 or ES256 with an id, and of at least {RSA_BITS_MIN} bits")
    return found


def _usable(keys: list[dict[str, Any]]) -> Iterator[tuple[str, Key]]:
    for told in keys:
        kid, operations = told.get("kid"), told.get("key_ops", ["verify"])
        kind = told.get("kty")
        algorithm = "RS256" if kind == "RSA" else "ES256" if kind == "EC" and told.get("crv") == "P-256" else None
        if (
            algorithm is None or told.get("alg", algorithm) != algorithm or told.get("use", "sig") != "sig"
            or not isinstance(operations, list) or "verify" not in operations
            or not isinstance(kid, str) or not 0 < len(kid) <= KID_CHARS_MAX
        ):  # fmt: skip
            continue
        if any(not isinstance(told.get(part, ""), str) for part in ("n", "e", "x", "y")):
            raise KeysWrong(f"has a key {kid!r} that is none")
        if len(told.get("n", "")) > _NUMBER_CHARS_MAX or len(told.get("e", "")) > 8:  # which would take long to use
            continue
        try:
            public: Any = jwt.PyJWK(told, algorithm).key
        except (jwt.PyJWTError, ValueError, TypeError, KeyError):
            raise KeysWrong(f"has a key {kid!r} that is none") from None
        if isinstance(public, RSAPublicKey) and public.key_size < RSA_BITS_MIN:
            continue
        if isinstance(public, RSAPublicKey) or isinstance(public.curve, SECP256R1):
            yield kid, Key(algorithm, public)


def _read(path: Path, bytes_max: int) -> bytes:
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise KeysWrong(f"cannot be read: {path}: {error.strerror}") from None
    if len(data) > bytes_max:
        raise KeysWrong(f"cannot be read: {path} has more than {bytes_max} bytes")
    return data


def _fetch(source: Source) -> bytes:
    address = urlsplit(source.jwks)
    headers = {"Accept": "application/jwk-set+json, application/json", "User-Agent": f"stateward/{VERSION}"}
    if source.token_file is not None:
        token = _read(source.token_file, TOKEN_BYTES_MAX).strip()
        if not token or any(not 0x21 <= each <= 0x7E for each in token):
            raise KeysWrong(f"cannot be read: {source.token_file} holds no token")
        headers["Authorization"] = f"Bearer {token.decode()}"
    try:
        context = ssl.create_default_context(cafile=source.ca)
        # Python 3.13 begins to ask of certificates what those of many clusters do not have, such as the id of their
        # authority's key. Chain, name and time are checked without it.
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
        connection = http.client.HTTPSConnection(address.hostname or "", address.port or 443, context=context)
        plain = socket.create_connection((connection.host, connection.port), FETCH_S)
        with plain, context.wrap_socket(
            plain, server_hostname=connection.host, do_handshake_on_connect=False
        ) as made, _Deadline(made) as deadline:
            made.do_handshake()
            connection.sock = made
            connection.request("GET", (address.path or "/") + (f"?{address.query}" if address.query else ""),
                               headers=headers)  # fmt: skip
            answer = connection.getresponse()
            if answer.status != http.client.OK:
                raise KeysWrong(f"cannot be read: the server answers {answer.status} {answer.reason[:100]!r}")
            data = answer.read(JWKS_BYTES_MAX + 1)
            deadline.check()
            if answer.length and len(data) <= JWKS_BYTES_MAX:
                raise KeysWrong("cannot be read: the answer breaks off")
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise KeysWrong(f"cannot be read: {type(error).__name__}: {error}"[:500]) from None
    if len(data) > JWKS_BYTES_MAX:
        raise KeysWrong(f"cannot be read: it has more than {JWKS_BYTES_MAX} bytes")
    return data


class _Deadline:
    """Cuts a connection after ``FETCH_S``: a limit of each single wait would not end an answer of a byte a second."""

    def __init__(self, made: socket.socket) -> None:
        self._made, self._is_over = made, False
        self._timer = threading.Timer(FETCH_S, self._cut)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        self._timer.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._timer.cancel()
        self.check()

    def check(self) -> None:
        """Raises TimeoutError if the time is over: what was read may be a half."""
        if self._is_over:
            raise TimeoutError(f"the answer took more than {FETCH_S:g} s")

    def _cut(self) -> None:
        self._is_over = True
        with suppress(OSError):
            socket.socket.shutdown(self._made, socket.SHUT_RDWR)  # not that of TLS, whose object another thread uses
