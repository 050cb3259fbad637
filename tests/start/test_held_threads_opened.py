"""The danger: a method, perhaps a new one, answers a call about a held thread that has not sent its session key, or one
without a key learns what such a thread has.

Methods and requests are read from the contract, so a new method is in the walk by itself.
"""

from __future__ import annotations

import base64
import os
import socket
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.daemon.store import get, hydrate, opened, save, settle, write
from tests.start import contract
from tests.start.contract import METHODS, STREAMED, WIRES, open_channel, reason_of, request_of, streamed_reason

from stateward import AsyncClient, Client
from stateward.errors import InvalidField, Locked, StatewardError, ThreadNotFound
from stateward.options import ThreadOptions
from stateward.testing import Daemon, run_daemon
from stateward.v1 import thread_pb2, thread_service_pb2
from stateward.v1.access_pb2 import VERB_ANY
from stateward_sidecar.errors import Locked as StoreLocked
from stateward_sidecar.errors import QueueFull
from stateward_sidecar.service.admission.grants import needs_of
from stateward_sidecar.service.admission.held import KEY, UNASKED

RIGHT, WRONG = os.urandom(32), os.urandom(32)
HELD, PLAIN = "held", "plain"
NAMING = sorted(
    name for name, method in METHODS.items()
    if any(need.thread and need.verb != VERB_ANY and not need.when for need in needs_of(method))
)  # fmt: skip
CANARY = "canary-Quetzalcoatl"


@pytest.fixture(scope="module", params=["open", "locked", "archived", "archived, locked", "elsewhere"])
def daemon(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One that keeps a held thread open, or locks it between two calls; without an archive, and with one, which may
    have the threads from another machine."""
    flags: dict[str, Any] = {"held_for": "10m" if request.param in ("open", "archived") else "0.01s"}
    if request.param in ("open", "locked"):
        with run_daemon(sweep_interval=0, **flags) as running:
            make_threads(running)
            yield running
        return
    bucket = tmp_path_factory.mktemp("archive")
    flags |= {"sweep_interval": 0, "archive": f"file://{bucket / 'bucket'}", "archive_lease": "1"}
    with run_daemon(bucket / "first", **flags) as first:
        make_threads(first)
        if request.param != "elsewhere":
            yield first
            return
        assert first.stop() == 0
        with run_daemon(bucket / "second", key_file=first.key_file, **flags) as second:
            yield second


def make_threads(daemon: Daemon) -> None:
    with Client(daemon.target, namespace="team") as client:
        client.thread(PLAIN).append("m", 1)
        client.thread(HELD, session_key=RIGHT).append("m", 1)


@pytest.fixture(params=WIRES)
def channel(request: pytest.FixtureRequest, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """What the walk sends as a token is a session key here."""

    def metadata_of(key: bytes | None) -> list[tuple[str, Any]]:
        if key is None:
            return []
        return [(KEY, base64.b64encode(key).decode() if request.param == "frames" else key)]

    monkeypatch.setattr(contract, "metadata_of", metadata_of)
    with open_channel(daemon.target, request.param) as made:
        yield made


@pytest.mark.parametrize("name", NAMING)
def test_every_method(channel: Any, name: str, request: pytest.FixtureRequest) -> None:
    """No key and a wrong one: LOCKED. The right one: the same as of a thread that is not held. A thread that is not
    held takes no key. The archive is not asked for a wrong request."""
    refused = {"LOCKED"} | ({"INVALID_FIELD"} if "elsewhere" in request.node.name else set())
    method = METHODS[name]
    if name in UNASKED:
        return
    ways = [reason_of] if name not in STREAMED else [
        reason_of, lambda channel, method, request, key: streamed_reason(channel, method.name, request, key)
    ]
    for way in ways:
        for key in (None, WRONG):
            assert way(channel, method, request_of(method, HELD), key) in refused, key
        assert way(channel, method, request_of(method, HELD), b"short") == "INVALID_FIELD"
        assert way(channel, method, request_of(method, PLAIN), RIGHT) == "INVALID_FIELD"
        found = way(channel, method, request_of(method, HELD), RIGHT)
        assert found == way(channel, method, request_of(method, PLAIN), None)
        assert found not in ("LOCKED", "StatusCode.UNKNOWN", "StatusCode.INTERNAL")


def test_what_names_no_thread_shows_none(daemon: Daemon) -> None:
    """Lists, counts, watches, Verify and statistics, without a key: nothing that is the thread's, open or locked."""
    with Client(daemon.target, namespace="canary") as client, client.watch() as events:
        held = client.thread(CANARY, session_key=RIGHT)
        held.append(CANARY, CANARY, labels={CANARY: CANARY}, create=ThreadOptions(labels={CANARY: CANARY}))
        uid = held.info().uid
        client.thread(PLAIN).append("m", 1)
        shown: list[Any] = [
            list(client.threads()), client.count_threads(), list(client.checkpoints()),
            list(client.threads(labels={CANARY: CANARY})), list(client.checkpoints(labels={CANARY: CANARY})),
            [each.finding for each in client.verify()], client.stats(), client.server_info(), client.diagnose(),
        ]
        if "archive" in daemon._flags:
            shown[0:0] = [
                list(client.archive.list(index=True)), client.archive.status(), list(client.archive.collect()),
                [each.finding for each in client.archive.verify(data_percent=100)], list(client.archive.restore()),
            ]  # fmt: skip
        assert [info.name for info in client.threads()] == [PLAIN]
        held.append(CANARY, CANARY)
        client.thread(CANARY).delete()
        for event in events:
            shown.append(event)
            if event.uid == uid:
                break
        assert [event.thread for event in shown[-2:]] == [PLAIN, ""]
        assert CANARY not in repr(shown)
        with pytest.raises(ThreadNotFound):
            held.info()


def test_what_a_handle_with_a_key_makes_is_held(daemon: Daemon) -> None:
    """Whatever makes the thread; and it never writes to a thread that is readable without the key."""
    makers: dict[str, Any] = {
        "save": lambda thread: thread.save(thread.hydrate()),
        "records": lambda thread: thread.records.put("k", 1),
        "blobs": lambda thread: thread.blobs.write(b"x" * 100),
        "effects": lambda thread: thread.effects.run("tool", lambda: 1),
        "lease": lambda thread: thread.lease().__enter__(),
        "writer": lambda thread: thread.writer().__enter__(),
    }
    with Client(daemon.target) as client:
        for name, make in makers.items():
            make(client.thread(name, session_key=RIGHT))
            for key in (None, WRONG):
                with pytest.raises(Locked):
                    client.thread(name, session_key=key).info()
            client.thread(f"{name}-plain").append("m", 1)
            with pytest.raises(InvalidField):
                make(client.thread(f"{name}-plain", session_key=RIGHT))


async def test_the_asyncio_client(daemon: Daemon) -> None:
    """The same, also for many calls at a time, which share a stream over gRPC."""
    for target in (daemon.target, daemon.target.replace("unix:", "unix:")):
        async with AsyncClient(target, namespace="async") as client:
            held = client.thread("h", session_key=RIGHT)
            await held.append("m", 1)
            assert list((await held.hydrate()).logs["m"])
            with pytest.raises(Locked):
                await client.thread("h").hydrate()
            await held.delete()


def test_plain_text_over_tcp(tmp_path: Path) -> None:
    """A key that others may have read is refused, whatever it opens."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        target = f"127.0.0.1:{taken.getsockname()[1]}"
    with run_daemon(tmp_path / "data", listen=target, exposed_port=True), Client(target) as client:
        with pytest.raises(InvalidField, match="plain text"):
            client.thread("t", session_key=RIGHT).append("m", 1)
        with pytest.raises(ThreadNotFound):
            client.thread("t").info()


def test_after_the_last_call(tmp_path: Path) -> None:
    """The daemon locks a thread, opens it again with the key alone, and knows nothing of it after a kill."""
    with run_daemon(tmp_path / "data", held_for="0.2s", sweep_interval="0.1") as daemon, daemon.client() as client:
        held = client.thread("h", session_key=RIGHT)
        for number in range(50):
            held.append("log", f"{number} " * 500, request_id=str(number))
        time.sleep(1)
        assert len(held.hydrate().logs["log"]) == 50
        assert [each.finding for each in client.verify() if each.finding] == []
        daemon.kill()
        daemon.start()
        with pytest.raises(Locked):
            client.thread("h").hydrate()
        with pytest.raises(Locked):
            client.thread("h", session_key=WRONG).hydrate()
        assert len(held.hydrate().logs["log"]) == 50
        assert [each.finding for each in client.verify() if each.finding] == []
        assert client.stats().background_failures == 0


def test_a_locked_thread_is_deleted_and_expires(tmp_path: Path) -> None:
    """Without its key, and nothing is left of it; one that is open is not deleted by what a stranger expects of it."""
    with run_daemon(tmp_path / "data", held_for="0.1s", sweep_interval="0.1") as daemon:
        with daemon.client() as client:
            for name, ttl in (("deleted", None), ("expired", 1), ("kept", None)):
                create = ThreadOptions(ttl=ttl, labels={"a": "b"})
                client.thread(name, session_key=RIGHT).append("log", name, create=create, labels={"a": "b"})
            time.sleep(1)
            with pytest.raises(StatewardError):
                client.thread("deleted").delete(expected_version=7)
            assert client.thread("deleted").delete()
            assert not client.thread("deleted").delete(missing_ok=True)
            end = time.monotonic() + 60
            while client.stats().threads > 1:
                assert time.monotonic() < end
                time.sleep(0.1)
            with pytest.raises(ThreadNotFound):
                client.thread("expired", session_key=RIGHT).info()
            client.thread("deleted", session_key=WRONG).append("log", "another")
            assert list(client.thread("kept", session_key=RIGHT).hydrate().logs["log"]) == ["kept"]
            assert [each.finding for each in client.verify() if each.finding] == []
        daemon.stop()
        daemon.start()
        with daemon.client() as client:
            assert [each.finding for each in client.verify() if each.finding] == []


def test_a_copy_is_held_too(daemon: Daemon) -> None:
    """With the key of the call, whole or of one version, and it outlives its source. Without the key there is none, and
    a thread that is not held has no held copy."""
    with Client(daemon.target, namespace="forks") as client:
        held, plain = client.thread("h", session_key=RIGHT), client.thread("p")
        for number in range(3):
            held.append("m", f"{number} " * 2000)
            plain.append("m", number)
        held.records.put("k", 1)
        reference = held.blobs.write(os.urandom(5000))
        state = held.hydrate()
        state.slots["file"] = reference
        held.save(state)
        held.tags.set("t", at=2)
        for key in (None, WRONG):
            with pytest.raises(Locked):
                client.thread("h", session_key=key).fork("none")
        with pytest.raises(InvalidField):
            client.thread("p", session_key=RIGHT).fork("none")
        request = thread_service_pb2.ForkThreadRequest(namespace="forks", thread="p", new_thread="none")
        request.options.request_id, request.options.create.held_key = "r", True
        with open_channel(daemon.target, "grpc") as channel:
            assert reason_of(channel, METHODS["ForkThread"], request, None) == "INVALID_FIELD"
        for made in (held.fork("one"), held.fork("all", all_versions=True), held.fork("older", at=1)):
            for key in (None, WRONG):
                with pytest.raises(Locked):
                    client.thread(made.name, session_key=key).hydrate()
        with pytest.raises(ThreadNotFound):
            client.thread("none").info()
        held.delete()
        time.sleep(0.3)
        for name, length in (("one", 3), ("all", 3), ("older", 1)):
            copy = client.thread(name, session_key=RIGHT)
            assert len(copy.hydrate().logs["m"]) == length
            assert copy.info().forked_from is not None
            copy.append("m", "more")
        assert client.thread("all", session_key=RIGHT).records.get("k") is not None
        assert len(client.thread("one", session_key=RIGHT).blobs.read(reference)) == 5000
        assert [info.name for info in client.threads()] == ["p"]
        assert [each.finding for each in client.verify() if each.finding] == []


def test_two_clients_make_one_thread(daemon: Daemon) -> None:
    """Each with its key, at the same moment: it belongs to one of them, and the other one learns that."""
    from concurrent.futures import ThreadPoolExecutor

    keys = [os.urandom(32) for _ in range(4)]

    def make(key: bytes, name: str) -> str:
        with Client(daemon.target) as client:
            try:
                client.thread(name, session_key=key).append("m", key.hex(), request_id=key.hex())
            except (Locked, InvalidField) as error:
                return type(error).__name__
            return ""

    with ThreadPoolExecutor(4) as pool, Client(daemon.target) as client:
        for round_number in range(10):
            name = f"race-{round_number}"
            made = list(pool.map(make, keys, [name] * 4))
            winners = [key for key, error in zip(keys, made, strict=True) if not error]
            assert len(winners) <= 1
            for key in keys:
                if key in winners:
                    assert list(client.thread(name, session_key=key).hydrate().logs["m"]) == [key.hex()]
                elif winners:
                    with pytest.raises(Locked):
                        client.thread(name, session_key=key).hydrate()


def test_grpc_error_of_a_locked_thread(daemon: Daemon) -> None:
    """Its code is that of the contract."""
    with open_channel(daemon.target, "grpc") as channel, pytest.raises(grpc.RpcError) as refused:
        contract.answers_of(channel, METHODS["GetThread"], request_of(METHODS["GetThread"], HELD), None)
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def test_a_locked_thread_is_in_no_memory(tmp_path: Path) -> None:
    """Neither the thread, nor its states, nor its key: everything is loaded anew by the next call."""
    with opened(tmp_path) as store:
        keystore, name = store.context.keystore, ("default", "h")
        keystore.held.offer(name, RIGHT)
        save(store, "x", thread="h", create=thread_pb2.ThreadOptions(held_key=True))
        keystore.held.withdraw(name, RIGHT)
        (uid,) = keystore.held_uids
        assert hydrate(store, "h")
        number = get(store, "h").number
        settle(store)
        store.lock_held(0.0)
        assert store.threads.cached("default", "h") is None
        assert not [key for key in store.context.cache._items if number in key]
        with pytest.raises(StoreLocked):
            keystore.held.data_key(uid)
        with pytest.raises(StoreLocked):
            get(store, "h")


def test_nobody_opens_what_is_being_deleted(tmp_path: Path) -> None:
    """And what was opened since it was found is not deleted without a look at it."""
    with opened(tmp_path) as store:
        keystore, name = store.context.keystore, ("default", "h")
        keystore.held.offer(name, RIGHT)
        save(store, "x", thread="h", create=thread_pb2.ThreadOptions(held_key=True))
        keystore.held.withdraw(name, RIGHT)
        (uid,) = keystore.held_uids
        namespace = keystore.namespace("default")
        assert namespace is not None
        settle(store)
        store.lock_held(0.0)
        found = store.deleter.find_ended(uid)
        assert found is not None
        unwrap = partial(keystore.unwrap_held, uid, namespace, RIGHT)
        with keystore.held.ending(uid) as is_ours, keystore.held.ending(uid) as is_theirs:
            assert (is_ours, is_theirs) == (True, False)
            with pytest.raises(QueueFull):
                keystore.held.enter(uid, RIGHT, unwrap)
        keystore.held.enter(uid, RIGHT, unwrap)
        with keystore.held.ending(uid) as is_ours:
            assert not is_ours
        assert write(store, store.deleter.delete_locked(found, "request")) is False
        assert hydrate(store, "h")
