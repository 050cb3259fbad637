"""The danger: an issuer renews its keys, or they move, and good tokens open nothing meanwhile, or wrong ones do."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.start.bearing import Clock, bearing, callers_of, fault_of, settle, when, who, write
from tests.start.issuer import AUDIENCE, BOTH, NAME, IssuerServer, access_text, key_set, private_key, public_jwk, token

from stateward import Client
from stateward.errors import Unauthenticated
from stateward.testing import run_daemon
from stateward.v1 import thread_service_pb2, thread_service_pb2_grpc
from stateward_sidecar import errors
from stateward_sidecar.errors import IssuerUnavailable
from stateward_sidecar.service.admission import bearers, keysets
from stateward_sidecar.service.admission.callers import LOOK_S, Callers


@pytest.fixture
def server(tmp_path: Path) -> Iterator[IssuerServer]:
    (tmp_path / "tls").mkdir()
    with IssuerServer(tmp_path / "tls").serving() as found:
        yield found


def test_a_new_key_is_waited_for_though_a_stranger_has_just_asked(
    tmp_path: Path, server: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A made-up key has made the daemon read the keys. Then the issuer begins to sign with a new one: the daemon does
    not ask again at once, and refuses none of its tokens before it has asked."""
    clock = Clock(monkeypatch)
    callers = Callers(None, write(tmp_path / "access.toml", access_text(server.url, ca=server.ca)))
    settle(callers)
    made_up, another = token(kid="made up"), token(kid="also made up")
    clock.passes(callers, keysets.UNKNOWN_PAUSE_S)
    assert isinstance(fault_of(who, callers, made_up), IssuerUnavailable)
    settle(callers)
    asked = len(server.requests)
    assert isinstance(fault_of(who, callers, made_up), errors.Unauthenticated)

    server.body = key_set(public_jwk(private_key("RS256", 1), "next"))
    fresh = token(kid="next", key=private_key("RS256", 1))
    for number in range(1, 5):
        clock.passes(callers, keysets.UNKNOWN_PAUSE_S / 5)
        for each in (fresh, another):
            with pytest.raises(IssuerUnavailable, match="are not here at present; try again") as error:
                who(callers, each)
            left_ms = keysets.UNKNOWN_PAUSE_S * (5 - number) / 5 * 1e3
            assert left_ms <= error.value.retry_after_ms <= left_ms + 1000
        assert isinstance(fault_of(who, callers, made_up), errors.Unauthenticated)
    assert len(server.requests) == asked
    clock.passes(callers, keysets.UNKNOWN_PAUSE_S / 5)
    assert isinstance(fault_of(who, callers, fresh), IssuerUnavailable)
    settle(callers)
    assert len(server.requests) == asked + 1
    assert who(callers, fresh) == "agent"
    assert isinstance(fault_of(who, callers, another), errors.Unauthenticated)


def test_the_retries_of_grpc_wait_for_a_new_key(tmp_path: Path, server: IssuerServer, repository: Path) -> None:
    """They make five attempts, and take the pause between them from the error."""
    policy = (repository / "proto/service_config.json").read_text()
    path = write(tmp_path / "access.toml", access_text(server.url, ca=server.ca))
    with (
        run_daemon(tmp_path / "data", access=path) as daemon,
        grpc.insecure_channel(
            daemon.target.replace("unix://", "unix:"), options=[("grpc.service_config", policy)]
        ) as channel,
    ):
        stub = thread_service_pb2_grpc.ThreadServiceStub(channel)
        asked = thread_service_pb2.ListThreadsRequest(namespace="team")
        stub.ListThreads(asked, metadata=bearing(token()), timeout=60)
        with pytest.raises(grpc.RpcError) as failed:
            stub.ListThreads(asked, metadata=bearing(token(kid="made up")), timeout=60)
        assert failed.value.code() is grpc.StatusCode.UNAUTHENTICATED  # type: ignore[attr-defined]
        server.body = key_set(public_jwk(private_key("RS256", 1), "next"))
        fresh = token(kid="next", key=private_key("RS256", 1))
        stub.ListThreads(asked, metadata=bearing(fresh), timeout=60)


def test_keys_that_cannot_be_read_refuse_no_token_for_good(
    tmp_path: Path, server: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read that began before a token came, one that fails, and one of a set that was emptied, say nothing about its
    key. Old keys count meanwhile."""
    clock = Clock(monkeypatch)
    callers = Callers(None, write(tmp_path / "access.toml", access_text(server.url, ca=server.ca)))
    settle(callers)
    old, fresh, stranger = token(), token(kid="next", key=private_key("RS256", 1)), token(kid="made up")
    clock.passes(callers, keysets.UNKNOWN_PAUSE_S)
    assert isinstance(fault_of(who, callers, stranger), IssuerUnavailable)
    clock.now_s += 1  # the read of the stranger is under way
    assert isinstance(fault_of(who, callers, fresh), IssuerUnavailable)
    settle(callers)
    assert isinstance(fault_of(who, callers, stranger), errors.Unauthenticated)
    assert isinstance(fault_of(who, callers, fresh), IssuerUnavailable)
    answers: list[Callable[[Any], Any] | None] = [lambda handler: handler.send_error(503), None]
    for server.behave in answers:
        server.body = key_set()
        for _ in range(3):
            clock.passes(callers, keysets.UNKNOWN_PAUSE_S)
            asked = len(server.requests)
            assert isinstance(fault_of(who, callers, fresh), IssuerUnavailable)
            settle(callers)
            assert len(server.requests) == asked + 1
            assert isinstance(fault_of(who, callers, fresh), IssuerUnavailable)
            assert who(callers, old) == "agent"
    server.body = BOTH
    clock.passes(callers, keysets.UNKNOWN_PAUSE_S)
    assert isinstance(fault_of(who, callers, fresh), IssuerUnavailable)
    settle(callers)
    assert isinstance(fault_of(who, callers, fresh), errors.Unauthenticated)


def test_a_crowd_of_strangers_takes_no_memory_and_makes_nothing_final(
    tmp_path: Path, server: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A token that the daemon has forgotten meanwhile counts as new."""
    clock = Clock(monkeypatch)
    monkeypatch.setattr(bearers, "WAITING_MAX", 10)
    callers = Callers(None, write(tmp_path / "access.toml", access_text(server.url, ca=server.ca)))
    settle(callers)
    fresh = token(kid="next", key=private_key("RS256", 1))
    clock.passes(callers, keysets.UNKNOWN_PAUSE_S)
    assert isinstance(fault_of(who, callers, fresh), IssuerUnavailable)
    settle(callers)
    assert isinstance(fault_of(who, callers, fresh), errors.Unauthenticated)
    clock.now_s += 0.1
    for number in range(30):
        stranger = fault_of(who, callers, token("ES256", kid=f"kid {number}", key=private_key("ES256")))
        assert isinstance(stranger, IssuerUnavailable)
    assert len(callers._bearers._waiting) == 10  # type: ignore[union-attr]
    assert isinstance(fault_of(who, callers, fresh), IssuerUnavailable)
    server.body = key_set(public_jwk(private_key("RS256", 1), "next"))
    clock.passes(callers, keysets.UNKNOWN_PAUSE_S)
    assert isinstance(fault_of(who, callers, fresh), IssuerUnavailable)
    settle(callers)
    assert who(callers, fresh) == "agent"
    assert len(callers._bearers._waiting) <= 10  # type: ignore[union-attr]


def test_a_file_of_keys_is_known_at_each_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So a token with a key that the file lacks is refused for good after half a second, and no client waits."""
    clock = Clock(monkeypatch)
    callers = callers_of(tmp_path)
    settle(callers)
    wrong = token(kid="unknown")
    assert isinstance(fault_of(who, callers, token(kid="also unknown")), IssuerUnavailable)
    settle(callers)
    clock.now_s += 0.1
    assert isinstance(fault_of(who, callers, wrong), IssuerUnavailable)
    clock.passes(callers, LOOK_S)
    assert isinstance(fault_of(who, callers, wrong), errors.Unauthenticated)


def test_keys_that_move_count_until_the_new_ones_are_read(
    tmp_path: Path, server: IssuerServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The access file names another place for an issuer's keys. Tokens and streams go on while it does not answer, for
    an hour at most. Then the new keys decide."""
    clock, path = Clock(monkeypatch), tmp_path / "access.toml"
    callers = callers_of(tmp_path)
    given, other = token(for_s=9e9), token("ES256")
    assert who(callers, given) == "agent"
    proof = callers._bearers._proofs[next(iter(callers._bearers._proofs))]  # type: ignore[union-attr]

    def moves(name: str) -> None:
        text = access_text(f"{server.url}/{name}", ca=server.ca) if name else access_text(tmp_path / "jwks.json")
        changes = callers.changes
        write(path, text)
        for _ in range(3):
            clock.passes(callers, LOOK_S)
        assert callers.changes > changes, name

    def is_known() -> bool:
        found = callers._bearers.again(proof)  # type: ignore[union-attr]
        return found is not None and found.name == "agent"

    server.behave = lambda handler: handler.send_error(503)
    for name in ("a", "b", "", "c"):
        moves(name)
        assert is_known(), name
        assert who(callers, given) == who(callers, other) == "agent"
    began_s = clock.now_s
    while clock.now_s - began_s < keysets.STALE_S - 200:
        clock.passes(callers, 100.0)
        assert is_known()
        assert who(callers, given) == "agent"
    changes = callers.changes
    clock.passes(callers, 200.0)
    assert callers.changes > changes
    assert not is_known()
    assert isinstance(fault_of(who, callers, given), IssuerUnavailable)

    server.behave = None
    clock.passes(callers, keysets.RETRY_S)
    assert who(callers, given) == "agent"
    assert is_known()
    moves("d")
    assert is_known()
    server.body = key_set(public_jwk(private_key("ES256"), "ES256"))
    moves("e")
    assert not is_known()
    assert who(callers, other) == "agent"
    assert isinstance(fault_of(who, callers, given), errors.Unauthenticated | IssuerUnavailable)


def test_keys_that_move_open_nothing_of_another_issuer(tmp_path: Path, server: IssuerServer) -> None:
    """Two issuers get the same place, which does not answer: each has its own former keys meanwhile, and no other."""
    names = (NAME, "https://other.example")
    sets = [key_set(public_jwk(private_key("RS256", number), "k")) for number in (0, 1)]

    def text(*places: str) -> str:
        return "".join(
            f'[[issuer]]\nissuer = "{name}"\naudience = "{AUDIENCE}"\njwks = "{place}"\n'
            + (f'ca = "{server.ca}"\n' if place.startswith("https") else "")
            for name, place in zip(names, places, strict=True)
        ) + "".join(
            f'[[principal]]\nname = "p{number}"\ngrants = ["read */*"]\n'
            f'jwt = {{ issuer = "{name}", claims = {{ sub = "*" }} }}\n'
            for number, name in enumerate(names)
        )

    files = [tmp_path / f"jwks-{number}.json" for number in (0, 1)]
    for place, made in zip(files, sets, strict=True):
        place.write_bytes(made)
    path = write(tmp_path / "access.toml", text(*map(str, files)))
    callers = Callers(None, path)
    server.behave = lambda handler: handler.send_error(503)
    write(path, text(server.url, server.url))
    when(lambda: (callers._look(), callers.changes)[1])
    when(lambda: (callers._look(), server.requests)[1])
    for number, name in enumerate(names):
        assert who(callers, token(iss=name, kid="k", key=private_key("RS256", number))) == f"p{number}"
        wrong = fault_of(who, callers, token(iss=name, kid="k", key=private_key("RS256", 1 - number)))
        assert isinstance(wrong, errors.Unauthenticated)
        assert "not signed by the key" in wrong.message


def test_a_stream_outlives_the_move_of_its_keys(tmp_path: Path, server: IssuerServer) -> None:
    """Though the new place answers late. No call of the token is refused meanwhile."""
    (tmp_path / "jwks.json").write_bytes(BOTH)
    path = write(tmp_path / "access.toml", access_text(tmp_path / "jwks.json"))
    may_answer = threading.Event()
    server.behave = lambda handler: (may_answer.wait(60), setattr(server, "behave", None), handler.send_error(503))
    with (
        run_daemon(tmp_path / "data", access=path) as daemon,
        Client(daemon.target, token=token(), namespace="team", retry_timeout=0) as client,
        Client(daemon.target, token=token("ES256"), namespace="team") as other,
    ):
        client.thread("agent-1").append("m", 1)
        with client.thread("agent-1").watch() as goes_on, other.thread("agent-1").watch() as ends:
            path.write_text(access_text(server.url, ca=server.ca))
            when(lambda: server.requests)
            for number in range(10):
                client.thread("agent-1").append("m", number)
                assert next(goes_on)
                time.sleep(0.1)
            server.body = key_set(public_jwk(private_key("RS256"), "RS256"))
            may_answer.set()
            with pytest.raises(Unauthenticated):
                for _ in ends:
                    pass
            client.thread("agent-1").append("m", 10)
            assert next(goes_on)
