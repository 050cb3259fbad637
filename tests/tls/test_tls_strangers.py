"""The danger: a stranger connects to a port that should know its clients, or reads along because TLS is weak."""

from __future__ import annotations

import os
import socket
import ssl
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from tests import warm
from tests.certificates import Authority, Certified
from tests.start.launch import start

from stateward import Client
from stateward.errors import StatewardError, WrongTarget
from stateward.testing import run_daemon
from stateward_sidecar.addresses import Guards, check_listeners
from stateward_sidecar.errors import StartError

NOTHING = Guards(has_certificate=False, has_client_ca=False, has_callers=False, is_exposed=False)
# What a daemon is asked to listen at, what guards it, and a word of the refusal; empty = it starts.
ALLOWED: list[tuple[str, dict[str, bool], str]] = [
    ("unix:///tmp/s.sock", {}, ""),
    ("127.0.0.1:0", {}, "--exposed-port"),
    ("127.0.0.1:0", {"has_callers": True}, "--exposed-port"),
    ("127.0.0.1:0", {"is_exposed": True}, ""),
    ("[::1]:0", {"is_exposed": True}, ""),
    ("0.0.0.0:0", {"is_exposed": True, "has_callers": True}, "TLS"),
    ("[::]:0", {}, "TLS"),
    ("127.0.0.1:0?tls", {}, "--tls-cert"),
    ("127.0.0.1:0?tls", {"has_certificate": True}, "--exposed-port"),
    ("127.0.0.1:0?tls", {"has_certificate": True, "has_callers": True}, "--exposed-port"),
    ("127.0.0.1:0?tls", {"has_certificate": True, "is_exposed": True}, ""),
    ("127.0.0.1:0?tls", {"has_certificate": True, "has_client_ca": True}, ""),
    ("0.0.0.0:0?tls", {"has_certificate": True, "is_exposed": True}, "--token-file"),
    ("0.0.0.0:0?tls", {"has_certificate": True, "has_callers": True}, "--exposed-port"),
    ("0.0.0.0:0?tls", {"has_certificate": True, "has_callers": True, "is_exposed": True}, ""),
    ("0.0.0.0:0?tls", {"has_certificate": True, "has_client_ca": True}, ""),
    ("example.org:0?tls", {"has_certificate": True, "has_client_ca": True}, ""),
    ("127.0.0.1:0?tsl", {"has_certificate": True, "has_client_ca": True}, "not an address"),
    (":0?tls", {"has_certificate": True, "has_client_ca": True}, "not an address"),
]


@pytest.mark.parametrize(("url", "guards", "refusal"), ALLOWED)
def test_a_port_that_strangers_reach_is_refused(url: str, guards: Mapping[str, bool], refusal: str) -> None:
    """Wider than loopback needs TLS, and each port needs mutual TLS or the word of the operator."""
    given = NOTHING.__class__(**{name: guards.get(name, False) for name in NOTHING.__slots__})
    if not refusal:
        check_listeners(["unix:///tmp/other.sock", url], given)
        return
    with pytest.raises(StartError, match=refusal) as refused:
        check_listeners(["unix:///tmp/other.sock", url], given)
    assert url in refused.value.message


def test_a_refused_port_makes_nothing(place: Path, own: Certified) -> None:
    """The daemon ends with one line before it makes a key, data or a socket."""
    assert "--exposed-port" in start(place, "--listen", "127.0.0.1:0").line
    flags = ["--listen", "0.0.0.0:0?tls", "--tls-cert", str(own.cert), "--tls-key", str(own.key)]
    assert "--exposed-port" in start(place, *flags, "--token-file", str(place / "tokens")).line
    assert not (place / "data").exists()


def test_a_certificate_is_needed_before_any_call(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """Mutual TLS: nobody without a certificate of the right authority comes as far as the health of the daemon."""
    other = Authority(place, "other")
    mine, strange = ca.sign("agent", ["agent.example"]), other.sign("stranger", ["agent.example"])
    target = f"127.0.0.1:{port}"
    with run_daemon(
        place / "data", listen=f"{target}?tls", tls_cert=own.cert, tls_key=own.key, tls_client_ca=ca.path
    ):
        with Client(target, tls_ca=ca.path, tls_cert=mine.cert, tls_key=mine.key) as client:
            client.thread("t").append("m", 1)
            assert client.server_info().wire == "grpc+tls"
        with Client(target, tls_ca=ca.path) as client, pytest.raises(WrongTarget, match="asks clients for"):
            client.thread("t").hydrate()
        with (
            Client(target, tls_ca=ca.path, tls_cert=strange.cert, tls_key=strange.key) as client,
            pytest.raises(WrongTarget, match="does not accept the certificate"),
        ):
            client.thread("t").hydrate()
        assert not speaks_http2(target, ca.path)


def speaks_http2(target: str, ca: Path) -> bool:
    """Whether somebody without a certificate gets an answer: the daemon's settings of HTTP/2."""
    host, _, port = target.rpartition(":")
    context = ssl.create_default_context(cafile=ca)
    context.set_alpn_protocols(["h2"])
    try:
        plain = socket.create_connection((host, int(port)), 10)
        with plain, context.wrap_socket(plain, server_hostname=host) as wrapped:
            wrapped.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0")
            return bool(wrapped.recv(1))
    except OSError:
        return False


WEAK = {
    "TLS 1.1": ("ALL:@SECLEVEL=0", ssl.TLSVersion.TLSv1_1, False),
    "CBC": ("ECDHE-ECDSA-AES128-SHA:ECDHE-ECDSA-AES256-SHA:@SECLEVEL=0", ssl.TLSVersion.TLSv1_2, False),
    "CBC with SHA-256": ("ECDHE-ECDSA-AES128-SHA256:@SECLEVEL=0", ssl.TLSVersion.TLSv1_2, False),
    "TLS 1.2 with AEAD": ("ECDHE-ECDSA-AES128-GCM-SHA256", ssl.TLSVersion.TLSv1_2, True),
    "ChaCha20": ("ECDHE-ECDSA-CHACHA20-POLY1305", ssl.TLSVersion.TLSv1_2, True),
    "TLS 1.3": ("", ssl.TLSVersion.TLSv1_3, True),
}


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
def test_weak_ciphers_are_refused(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """TLS 1.2 and 1.3 with authenticated encryption only, also if the environment asks gRPC for another cipher."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(warm.COLD, "1")
        patch.setenv("GRPC_SSL_CIPHER_SUITES", "ECDHE-ECDSA-AES128-SHA")
        daemon = run_daemon(
            place / "data", listen=f"127.0.0.1:{port}?tls", tls_cert=own.cert, tls_key=own.key, exposed_port=True
        )
        with daemon:
            taken = {name: is_taken(port, ca.path, *each[:2]) for name, each in WEAK.items()}
    assert taken == {name: each[2] for name, each in WEAK.items()}


def is_taken(port: int, ca: Path, ciphers: str, version: ssl.TLSVersion) -> bool:
    context = ssl.create_default_context(cafile=ca)
    context.minimum_version = min(version, ssl.TLSVersion.TLSv1_2)
    context.maximum_version = version
    if ciphers:
        context.set_ciphers(ciphers)
    try:
        plain = socket.create_connection(("127.0.0.1", port), 10)
        with plain, context.wrap_socket(plain, server_hostname="localhost"):
            return True
    except OSError:
        return False


def test_tokens_are_asked_for_inside_tls(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """A port with TLS and tokens alone: `--exposed-port` lets everybody connect, and nobody call without a token."""
    (place / "tokens").write_text("t" * 20)
    (place / "tokens").chmod(0o600)
    flags = {"tls_cert": own.cert, "tls_key": own.key, "exposed_port": True, "token_file": place / "tokens"}
    with run_daemon(place / "data", listen=f"0.0.0.0:{port}?tls", **flags):
        with Client(f"localhost:{port}", tls_ca=ca.path, token="t" * 20) as client:
            client.thread("t").append("m", 1)
        with Client(f"localhost:{port}", tls_ca=ca.path) as client, pytest.raises(StatewardError, match="no token"):
            client.thread("t").hydrate()


def test_health_is_asked_over_tls(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """`--health` at a daemon whose only listener is a port with TLS trusts the daemon's own certificate."""
    command = [sys.executable, "-m", "stateward_sidecar", "--health", "--listen", f"127.0.0.1:{port}?tls"]
    files = ["--tls-cert", str(own.cert), "--tls-key", str(own.key), "--tls-client-ca", str(ca.path)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with run_daemon(
        place / "data", listen=f"127.0.0.1:{port}?tls", tls_cert=own.cert, tls_key=own.key, tls_client_ca=ca.path
    ):
        done = warm.run([*command, *files], env=environment)
        assert (done.returncode, done.stderr) == (0, "")
    done = warm.run([*command, *files], env=environment)
    assert done.returncode == 1
    assert "no daemon answers" in done.stderr


def test_connections_that_say_nothing_end(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """Strangers who connect and send nothing, half a greeting, or plain text are hung up on, and keep nobody out."""
    mine, target = ca.sign("agent"), f"127.0.0.1:{port}"
    greeting = ssl.MemoryBIO()
    half = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), greeting, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        half.do_handshake()
    begun = greeting.read()
    flags = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": ca.path}
    with run_daemon(place / "data", listen=f"{target}?tls", **flags), ExitStack() as stack:
        strangers = []
        for number, sent in enumerate([b"", begun[:40], begun, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"] * 40):
            strangers.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)))
            strangers[number].sendall(sent)
        with Client(target, tls_ca=ca.path, tls_cert=mine.cert, tls_key=mine.key) as client:
            client.thread("t").append("m", 1)
        for each in strangers:
            with suppress(ConnectionResetError):
                while each.recv(4096):  # what the daemon says of itself in the handshake
                    pass
