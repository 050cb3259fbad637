"""The danger: TLS fails and nobody is told why, or a daemon starts with files that cannot work."""

from __future__ import annotations

import asyncio
import datetime as dt
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509 import load_pem_x509_certificate
from tests import warm
from tests.certificates import Authority, Certified
from tests.start.launch import start

from stateward import AsyncClient, Client
from stateward._io.tls import CA, CERT, KEY, resolve_tls
from stateward.errors import ServerUnavailable, WrongTarget
from stateward.testing import run_daemon

Files = tuple[Path, Path, Path]


def spoil_key(place: Path, ca: Authority, files: Files) -> Files:
    return files[0], ca.sign("another").key, files[2]


def lock_key(place: Path, ca: Authority, files: Files) -> Files:
    key = load_pem_private_key(files[1].read_bytes(), None)
    data = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"secret"))
    (place / "locked.key").write_bytes(data)
    return files[0], place / "locked.key", files[2]


def write_junk(place: Path) -> Path:
    (place / "junk").write_text("junk\n")
    return place / "junk"


# What is wrong at the daemon's start, and what it says.
START: dict[str, tuple[Callable[[Path, Authority, Files], Files], str]] = {
    "no certificate file": (lambda place, ca, files: (place / "none", *files[1:]), "--tls-cert: cannot read"),
    "no key file": (lambda place, ca, files: (files[0], place / "none", files[2]), "--tls-key: cannot read"),
    "no file of clients": (lambda place, ca, files: (*files[:2], place / "none"), "--tls-client-ca: cannot read"),
    "a directory": (lambda place, ca, files: (place, *files[1:]), "--tls-cert: cannot read"),
    "no certificate in it": (lambda place, ca, files: (write_junk(place), *files[1:]), "holds no certificate"),
    "no key in it": (lambda place, ca, files: (files[0], write_junk(place), files[2]), "holds no private key"),
    "no authority in it": (lambda place, ca, files: (*files[:2], write_junk(place)), "holds no certificate"),
    "another key": (spoil_key, "is not the key of the certificate"),
    "a key with a password": (lock_key, "password"),
    "an expired certificate": (lambda place, ca, files: (*ca.sign("old", ends=-0.5), files[2]), "has expired"),
    "a certificate of tomorrow": (
        lambda place, ca, files: (*ca.sign("new", begins=dt.timedelta(days=1)), files[2]), "is valid from",
    ),
}  # fmt: skip


@pytest.mark.parametrize("fault", START)
def test_the_daemon_says_what_is_wrong_with_its_files(place: Path, ca: Authority, own: Certified, fault: str) -> None:
    """One line, which names the flag and the file, and nothing is made. `--check` says the same."""
    spoil, said = START[fault]
    cert, key, client_ca = spoil(place, ca, (own.cert, own.key, ca.path))
    flags = ["--listen", "127.0.0.1:0?tls", "--tls-cert", str(cert), "--tls-key", str(key)]
    flags += ["--tls-client-ca", str(client_ca)]
    line = start(place, *flags).line
    assert said in line
    assert "--tls-" in line
    assert not (place / "data").exists()
    checked = warm.run(
        [sys.executable, "-m", "stateward_sidecar", "--check", "--data-dir", str(place / "data"), "--key-file",
         str(place / "key"), *flags]
    )  # fmt: skip
    assert checked.returncode == 1
    assert said in checked.stdout


def test_half_of_the_flags_is_said(place: Path, own: Certified) -> None:
    """A certificate without its key, or none, is no TLS; files without a port are left alone."""
    assert "--tls-key" in start(place, "--listen", "127.0.0.1:0?tls", "--tls-cert", str(own.cert)).line
    assert "--tls-cert" in start(place, "--listen", "127.0.0.1:0?tls").line
    with run_daemon(place / "data", tls_cert=place / "none") as daemon, daemon.client() as client:
        client.thread("t").append("m", 1)


@contextmanager
def listening(place: Path, port: int, own: Certified, **flags: Any) -> Iterator[str]:
    with run_daemon(place / "data", listen=f"127.0.0.1:{port}?tls", tls_cert=own.cert, tls_key=own.key, **flags):
        yield f"127.0.0.1:{port}"


def said_to(target: str, **options: Any) -> str:
    """What both clients say of their first call. They say it at once, without a retry."""

    async def ask() -> str:
        async with AsyncClient(target, **options) as client:
            with pytest.raises(WrongTarget) as refused:
                await client.thread("t").hydrate()
            return refused.value.message

    with Client(target, **options) as client, pytest.raises(WrongTarget) as refused:
        client.thread("t").hydrate()
    assert asyncio.run(ask()) == refused.value.message
    assert "\n" not in refused.value.message
    return refused.value.message


def test_the_client_says_what_is_wrong(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """Unknown authorities, expired certificates, no certificate, and plain text on either side: one line each."""
    other, mine, old = Authority(place, "other"), ca.sign("agent"), ca.sign("old-agent", ends=-0.5)
    strange = other.sign("stranger")
    with listening(place, port, own, tls_client_ca=ca.path) as target:
        pair = {"tls_cert": mine.cert, "tls_key": mine.key}
        assert f"no CA in {other.path} has signed" in said_to(target, tls_ca=other.path, **pair)
        assert "asks clients for a certificate; set STATEWARD_TLS_CERT" in said_to(target, tls_ca=ca.path)
        expired = said_to(target, tls_ca=ca.path, tls_cert=old.cert, tls_key=old.key)
        assert f"the certificate {old.cert} has expired" in expired
        assert "--tls-client-ca" in said_to(target, tls_ca=ca.path, tls_cert=strange.cert, tls_key=strange.key)
        assert "speaks TLS; set STATEWARD_TLS_CA" in said_to(target)
    with run_daemon(place / "data", listen=target, exposed_port=True):
        assert "speaks no TLS: unset STATEWARD_TLS_CA" in said_to(target, tls_ca=ca.path)


def test_the_client_says_what_is_wrong_with_the_daemon(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """A certificate for another name, and one that has expired while the daemon ran."""
    brief = ca.sign("brief", ends=4 / 86400)
    with listening(place, port, ca.sign("elsewhere", ["elsewhere.example"]), exposed_port=True) as target:
        assert "is not for 127.0.0.1" in said_to(target, tls_ca=ca.path)
    with listening(place, port, brief, exposed_port=True) as target:
        wait_until_it_ends(brief.cert)
        assert "the daemon's certificate has expired" in said_to(target, tls_ca=ca.path)


def wait_until_it_ends(cert: Path) -> None:
    ends = load_pem_x509_certificate(cert.read_bytes()).not_valid_after_utc
    while dt.datetime.now(dt.UTC) <= ends + dt.timedelta(seconds=1):
        time.sleep(0.1)


def test_a_daemon_that_is_away_is_waited_for(place: Path, ca: Authority, port: int) -> None:
    """Nobody listens: that is no fault of TLS."""
    options = {"tls_ca": ca.path, "connect_timeout": 0.2, "retry_timeout": 0}
    with Client(f"127.0.0.1:{port}", **options) as client, pytest.raises(ServerUnavailable) as away:
        client.thread("t").hydrate()
    assert type(away.value) is ServerUnavailable


def test_files_of_a_client_are_checked_when_it_is_made(place: Path, ca: Authority, own: Certified) -> None:
    """Each fault names the variable and the file. Files that do not go together are ValueError, as other arguments."""
    target, junk = "127.0.0.1:1", write_junk(place)
    locked = lock_key(place, ca, (own.cert, own.key, ca.path))[1]
    wrong: list[tuple[dict[str, Path], str]] = [
        ({CA: place / "none"}, f"{CA}: cannot read"),
        ({CA: junk}, f"{CA}: .*holds no certificate"),
        ({CA: ca.path, CERT: place / "none", KEY: own.key}, f"{CERT}: cannot read"),
        ({CA: ca.path, CERT: own.cert, KEY: place / "none"}, f"{KEY}: cannot read"),
        ({CA: ca.path, CERT: junk, KEY: own.key}, f"{CERT}: .*holds no certificate"),
        ({CA: ca.path, CERT: own.cert, KEY: junk}, f"{KEY}: .*holds no private key"),
        ({CA: ca.path, CERT: own.cert, KEY: ca.sign("x").key}, f"{KEY}: .*is not the key"),
        ({CA: ca.path, CERT: own.cert, KEY: locked}, f"{KEY}: .*password"),
    ]
    for variables, said in wrong:
        with pytest.raises(WrongTarget, match=said):
            resolve_tls(target, None, None, None, environment={name: str(path) for name, path in variables.items()})
    for given, environment, said in (
        ((None, own.cert, own.key), {}, "needs STATEWARD_TLS_CA"),
        ((ca.path, own.cert, None), {}, "go together"),
        ((None, None, None), {CA: str(ca.path), KEY: str(own.key)}, "go together"),
    ):
        with pytest.raises(ValueError, match=said):
            resolve_tls(target, *given, environment=environment)
    with pytest.raises(ValueError, match="a unix socket"):
        Client("/tmp/none.sock", tls_ca=ca.path)
    with pytest.raises(ValueError, match="either credentials"):
        Client(target, tls_ca=ca.path, credentials=object())  # type: ignore[arg-type]
    named = {CA: str(ca.path), CERT: str(own.cert), KEY: str(own.key)}
    assert resolve_tls("unix:///tmp/none.sock", None, None, None, environment=named) is None
    assert resolve_tls(target, None, None, None, object(), named) is None
    assert resolve_tls(target, None, None, None, environment={}) is None
    assert resolve_tls(target, None, None, None, environment=named) == resolve_tls(target, ca.path, *own)


def test_the_command_and_the_doctor_say_it(place: Path, ca: Authority, own: Certified, port: int) -> None:
    """The command connects with the variables; without them the error is one line. The doctor names the port's TLS."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("STATEWARD_")}
    plain["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    with listening(place, port, own, tls_client_ca=ca.path) as target:
        command = [sys.executable, "-m", "stateward.cli", "--target", target]
        done = warm.run([*command, "threads"], env=plain)
        assert done.returncode != 0
        assert done.stderr.count("\n") == 1
        assert "speaks TLS; set STATEWARD_TLS_CA" in done.stderr
        done = warm.run([*command, "threads"], env={**plain, CA: str(place / "none")})
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert f"{CA}: cannot read" in done.stderr
        files = {CA: str(ca.path), CERT: str(own.cert), KEY: str(own.key)}
        done = warm.run([*command, "stats"], env={**plain, **files})
        assert done.returncode == 0, done.stderr
        assert "grpc+tls" in done.stdout
        done = warm.run([*command, "doctor", "--json"], env={**plain, **files})
        assert "the certificate of TLS is valid until" in done.stdout
        assert "clients must have a certificate" in done.stdout
        assert "over grpc+tls" in done.stdout
        soon = ca.sign("daemon", begins=-dt.timedelta(days=20), ends=0.5)
        assert soon == own  # in its place
        done = warm.run([*command, "doctor", "--json"], env={**plain, **files})
        assert "expires soon" in done.stdout
