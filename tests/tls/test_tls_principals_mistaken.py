"""The danger: a certificate gives rights to the wrong caller, or goes on to give them when they were taken away."""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.certificates import Authority, Certified, replace

from stateward import AsyncClient, Client
from stateward.errors import PermissionDenied, StatewardError, Unauthenticated
from stateward.testing import run_daemon
from stateward_sidecar.errors import StartError
from stateward_sidecar.service.admission.accessfile import read_access_file
from stateward_sidecar.service.admission.callers import peer_of_certificate

AGENT, REVIEWER, TOKEN = "spiffe://example.org/ns/a/sa/agent", "reviewer.example", "t" * 20
ACCESS = f"""
[[principal]]
name = "agent"
tls = ["{AGENT}", "spiffe://example.org/ns/a/sa/agent-2"]
grants = ["read,write default/agent-*"]

[[principal]]
name = "reviewer"
tls = "{REVIEWER}"
grants = ["read */*"]

[[principal]]
name = "keeper"
token_sha256 = "{hashlib.sha256(TOKEN.encode()).hexdigest()}"
grants = ["read,write,delete */*"]
"""


@pytest.fixture
def target(place: Path, ca: Authority, own: Certified, port: int) -> Iterator[str]:
    (place / "access.toml").write_text(ACCESS)
    flags = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": ca.path, "access": place / "access.toml"}
    with run_daemon(place / "data", listen=f"127.0.0.1:{port}?tls", **flags):
        yield f"127.0.0.1:{port}"


@pytest.mark.parametrize("has_access", [False, True])
def test_a_ca_alone_is_warned_of(place: Path, ca: Authority, own: Certified, port: int, has_access: bool) -> None:
    """Who has any certificate of the CA may then do everything. The daemon says it once, at its start."""
    (place / "access.toml").write_text(ACCESS)
    flags = {"tls_cert": own.cert, "tls_key": own.key, "tls_client_ca": ca.path}
    if has_access:
        flags["access"] = place / "access.toml"
    with run_daemon(place / "data", listen=f"127.0.0.1:{port}?tls", **flags) as daemon:
        assert daemon.stderr.count(f"everybody with a certificate of {ca.path}") == (not has_access)


def client_with(target: str, ca: Authority, name: str, *names: str, token: str | None = None) -> Client:
    pair = ca.sign(name, names)
    return Client(target, tls_ca=ca.path, tls_cert=pair.cert, tls_key=pair.key, token=token)


def test_names_of_a_certificate_are_a_principal(target: str, ca: Authority) -> None:
    """By SPIFFE id and DNS name; a token counts first, and a certificate of no principal may call nothing."""
    with ExitStack() as stack:
        agent = stack.enter_context(client_with(target, ca, "agent", AGENT, "unknown.example"))
        agent.thread("agent-1").append("m", 1)
        with pytest.raises(PermissionDenied, match="agent may not write default/other"):
            agent.thread("other").append("m", 1)
        reviewer = stack.enter_context(client_with(target, ca, "reviewer", REVIEWER.upper()))
        assert len(reviewer.thread("agent-1").hydrate().logs["m"]) == 1
        with pytest.raises(PermissionDenied, match="reviewer may not write"):
            reviewer.thread("agent-1").append("m", 2)
        keeper = stack.enter_context(client_with(target, ca, "reviewer", REVIEWER, token=TOKEN))
        keeper.thread("other").append("m", 1)
        wrong = stack.enter_context(client_with(target, ca, "agent", AGENT, token="w" * 20))
        with pytest.raises(Unauthenticated, match="not valid"):
            wrong.thread("agent-1").hydrate()
        nobody = stack.enter_context(client_with(target, ca, "nobody", "nobody.example", "10.0.0.1"))
        with pytest.raises(Unauthenticated, match=r"does not name its certificate \(nobody\.example\)"):
            nobody.thread("agent-1").hydrate()


NEAR = [
    ("spiffe://example.org/ns/a/sa/agent-3",),
    ("spiffe://example.org/ns/a/sa",),
    ("spiffe://example.org/NS/a/sa/agent",),
    (AGENT + "/",),
    (AGENT, "spiffe://example.org/ns/a/sa/agent-2"),  # SPIFFE forbids two
    ("x." + REVIEWER,),
    ("*.example",),
]


@pytest.mark.parametrize("names", NEAR)
def test_a_name_that_is_nearly_right_is_nobody(target: str, ca: Authority, names: tuple[str, ...]) -> None:
    """Names are compared as a whole."""
    with client_with(target, ca, "near", *names) as client, pytest.raises(Unauthenticated):
        client.thread("agent-1").hydrate()


def test_only_the_right_kinds_of_names_count() -> None:
    """A SPIFFE id does not stand for a DNS name, nor an address of mail or of the network for either."""
    told = {
        "peer_spiffe_id": [b"spiffe://a/b"], "peer_dns": [b"A.example", b"\xff"], "peer_email": [b"agent@a"],
        "peer_ip": [b"10.0.0.1"], "peer_uri": [b"spiffe://a/b", b"https://c"], "x509_common_name": [b"cn"],
    }  # fmt: skip
    assert peer_of_certificate(told).names == ("spiffe://a/b", "a.example", "�")
    assert peer_of_certificate({}).names == ()


@pytest.mark.parametrize(
    "tls",
    ['"https://a/b"', '"spiffe://"', '"spiffe://A/b"', '"spiffe://a/b?c"', '"spiffe://a//b"', '""', '"a b"', '"*.a"',
     "1", '["a.example", 1]', f'"{"a" * 300}"', '"spiffe://a/../b c"'],
)  # fmt: skip
def test_a_wrong_name_is_refused_by_its_line(tmp_path: Path, tls: str) -> None:
    """The file says which principal it is about."""
    path = tmp_path / "access.toml"
    path.write_text(f'[[principal]]\nname = "a"\ntls = {tls}\ngrants = ["read */*"]\n')
    with pytest.raises(StartError, match="principal 1: tls"):
        read_access_file(path)


def test_a_name_belongs_to_one_principal(tmp_path: Path) -> None:
    """Two principals cannot have the same certificate."""
    path = tmp_path / "access.toml"
    path.write_text(ACCESS + f'[[principal]]\nname = "b"\ntls = "{REVIEWER.upper()}"\ngrants = ["read */*"]\n')
    with pytest.raises(StartError, match="its tls is that of 'reviewer'"):
        read_access_file(path)


@pytest.mark.parametrize("change", ["name", "grant"])
def test_a_name_that_is_taken_away_ends_its_streams(place: Path, target: str, ca: Authority, change: str) -> None:
    """A watch that nobody uses ends within two seconds, or as fast as a busy machine can; another goes on."""
    pair, access = ca.sign("reviewer", [REVIEWER]), place / "access.toml"

    async def play() -> float:
        options = {"tls_ca": ca.path, "tls_cert": pair.cert, "tls_key": pair.key}
        async with AsyncClient(target, **options) as client, AsyncClient(target, token=TOKEN, **options) as keeper:
            await keeper.thread("t").append("m", 1)
            async with client.thread("t").watch() as watch, keeper.thread("t").watch() as other:
                first = asyncio.ensure_future(anext(watch))
                await asyncio.sleep(0.2)
                old, new = (REVIEWER, "b.example") if change == "name" else ('"read */*"', '"read */u"')
                began = time.monotonic()
                replace(access, ACCESS.replace(old, new, 1).encode())
                with pytest.raises(StatewardError) as ended:
                    await asyncio.wait_for(first, 60)
                took_s = time.monotonic() - began
                assert isinstance(ended.value, Unauthenticated if change == "name" else PermissionDenied), ended.value
                await keeper.thread("t").append("m", 2)
                assert await asyncio.wait_for(anext(other), 60)
                return took_s

    took_s = asyncio.run(play())
    assert took_s < 20, took_s


