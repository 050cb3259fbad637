"""The danger: a method, perhaps a new one, answers somebody who may not call it, or says why in another way than the
others do.

Methods, requests and the verbs that they need are read from the contract, so a new method is in every test by itself.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from google.rpc.status_pb2 import Status
from tests.daemon.inside import daemon_inside
from tests.start.contract import (
    METHODS,
    STREAMED,
    WIRES,
    answers_of,
    begin,
    digest_of,
    open_channel,
    principal_of,
    reason_in,
    reason_of,
    request_of,
    run_call,
    status_in,
    streamed_reason,
)

from stateward import Client
from stateward.testing import Daemon, run_daemon
from stateward.v1.access_pb2 import VERB_ANY
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.service.admission.callers import LOOK_S
from stateward_sidecar.service.admission.grants import VERBS, needs_of
from stateward_sidecar.service.admission.order import Turns
from stateward_sidecar.service.methods import METHODS as TABLE
from stateward_sidecar.service.methods import RULES
from stateward_sidecar.service.serving import server

NAMES = {verb: name for name, verb in VERBS.items()}
THERE, MISSING = "there", "never"
PLACES = [name for name in METHODS if any(need.thread or need.lists for need in needs_of(METHODS[name]))]
STREAMS = [name for name, method in METHODS.items() if method.client_streaming or method.server_streaming]
LASTING = STREAMS + [n for n in METHODS if n not in STREAMS and "wait" in METHODS[n].input_type.fields_by_name]
"""Calls that may be open for hours: streams, and those that wait."""


class Asked(NamedTuple):
    """What a method needs of a caller who names a thread, by the contract."""

    verbs: frozenset[str]
    is_open: bool
    """Whether everybody may call it who may call at all."""


@cache
def asked_by(name: str, thread: str = THERE) -> Asked:
    needs = [need for need in needs_of(METHODS[name]) if need.verb != VERB_ANY and not need.when]
    needs = [need for need in needs if not need.lists or (need.thread and thread != "-")]
    return Asked(frozenset(NAMES[need.verb] for need in needs), not needs)


@cache
def grant_of(verbs: frozenset[str], namespace: str) -> str:
    return "admin */*" if verbs == {"admin"} else f"{','.join(sorted(verbs))} {namespace}/*"


RIGHT = sorted({asked_by(name).verbs or frozenset({"read"}) for name in METHODS}, key=sorted)
"""Each set of verbs that a method needs: whoever has these has what is right for it, and nothing more."""


def token_of(who: str) -> str:
    return f"{who}-".ljust(40, "x")


def right_for(name: str, namespace: str = "team") -> str:
    """The principal that has exactly what a method needs."""
    return f"{'-'.join(sorted(asked_by(name).verbs or {'read'}))}.{namespace}"


def grants() -> dict[str, list[str]]:
    """The principals of the daemon. Those of one verb are among them: who reads only, and who signals only."""
    everything = "read,write,signal,delete"
    found = {"all": ["admin */*", f"{everything} */*"], "elsewhere": [f"{everything} other/*", "read team/other-*"]}
    for verbs in {*RIGHT, *(frozenset({verb}) for verb in VERBS)}:
        for namespace in ("team", "default"):
            found[f"{'-'.join(sorted(verbs))}.{namespace}"] = [grant_of(verbs, namespace)]
    return found


def written(path: Path, told: dict[str, list[str]]) -> None:
    path.write_text("".join(principal_of(who, digest_of(token_of(who)), each) for who, each in told.items()))


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    """One of whose principals is revoked already."""
    path = tmp_path_factory.mktemp("codes") / "access.toml"
    written(path, {**grants(), "revoked": ["admin */*", "read,write,signal,delete */*"]})
    with run_daemon(access=path, sweep_interval=0) as running:
        with Client(running.target, token=token_of("all"), namespace="team") as client:
            client.thread(THERE).append("m", 1)
        with open_channel(running.target, "grpc") as channel:
            info = METHODS["GetServerInfo"], request_of(METHODS["GetServerInfo"], "")
            assert reason_of(channel, *info, token_of("revoked")) == ""
            written(path, grants())
            wait_until(lambda: reason_of(channel, *info, token_of("revoked")) == "UNAUTHENTICATED")
        yield running


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.05)


@pytest.fixture(params=WIRES)
def channel(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Any]:
    with open_channel(daemon.target, request.param) as made:
        yield made


def ways(channel: Any, name: str) -> dict[str, Callable[[Message, str | None], str]]:
    """How a call of a method can come on a wire: by itself, and perhaps inside RunCalls. Each returns the reason of the
    error."""

    def alone(request: Message, token: str | None) -> str:
        return reason_of(channel, METHODS[name], request, token)

    def streamed(request: Message, token: str | None) -> str:
        return streamed_reason(channel, name, request, token)

    return {"alone": alone, **({"in RunCalls": streamed} if name in STREAMED else {})}


def test_the_contract_the_table_and_the_walk_have_the_same_methods() -> None:
    """And each way to need something is tried by a principal that has it alone."""
    assert set(METHODS) == set(TABLE)
    assert set(STREAMED) == {name for name, facts in TABLE.items() if facts.is_streamed}
    assert set(STREAMS) >= {"Watch", "Write", "WriteBlob", "ImportThread", "RunCalls", "Verify"}
    assert set(LASTING) >= {"ReadLog", "AcquireLease", "Attach"}
    for name in RULES:
        assert asked_by(name).verbs & {"write", "delete", "signal"}, f"{name} writes"
    assert {frozenset({verb}) for verb in VERBS} < set(RIGHT) | {frozenset({"write"})}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_caller_of_every_method(channel: Any, name: str) -> None:
    """No credentials, wrong ones, revoked ones: UNAUTHENTICATED. Another namespace, or any verb that is not what the
    contract asks: PERMISSION_DENIED. What it asks and nothing more: the same as for somebody who may do everything."""
    method, asked = METHODS[name], asked_by(name)
    for way in ways(channel, name).values():
        for thread in (THERE, MISSING):
            request = request_of(method, thread)
            for token in (None, "", "wrong" * 8, token_of("revoked"), token_of("all")[:-1]):
                assert way(request, token) == "UNAUTHENTICATED"
            for who in ["elsewhere", *(f"{verb}.team" for verb in VERBS)]:
                verbs = {who.partition(".")[0]} if who != "elsewhere" else set()
                if asked.verbs <= verbs and thread == THERE and name in RULES:
                    continue  # it would be done
                found = way(request, token_of(who))
                assert (found == "PERMISSION_DENIED") is not (asked.verbs <= verbs), (who, thread, found)
                assert found != "UNAUTHENTICATED"
        request = request_of(method, MISSING)
        found = way(request, token_of(right_for(name)))
        assert found == way(request, token_of("all"))
        assert found not in ("PERMISSION_DENIED", "UNAUTHENTICATED", "StatusCode.UNKNOWN", "StatusCode.INTERNAL")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_a_refusal_is_the_same_whether_the_thread_exists(channel: Any, name: str) -> None:
    """Code, words and details, byte for byte."""
    method, asked = METHODS[name], asked_by(name)
    if asked.is_open:
        return
    for who in ("elsewhere", "signal.team", "read.team"):
        if asked.verbs <= {who.partition(".")[0]}:
            continue
        told = []
        for thread in (THERE, MISSING):
            request = request_of(method, thread)
            with pytest.raises(grpc.RpcError) as refused:
                answers_of(channel, method, request, token_of(who))
            told.append(seen(status_in(refused.value)))
            if name in STREAMED:
                answer = run_call(channel, name, request, token_of(who))
                assert isinstance(answer, Status)
                assert seen(answer) == told[-1]
        assert told[0] == told[1]


def seen(status: Status | None) -> bytes:
    assert status is not None
    return status.SerializeToString(deterministic=True).replace(MISSING.encode(), THERE.encode())


SPECIAL = {"all threads": "-", "no name": "", "the longest name": "n" * 1024, "a longer name": "n" * 1025}
"""Names that a verb may treat in a way of its own."""


@pytest.mark.parametrize("name", sorted(PLACES))
@pytest.mark.parametrize("what", SPECIAL)
def test_names_that_are_special(channel: Any, name: str, what: str) -> None:
    """Whoever has no grant is refused before the name is looked at. With the grant, the answer is that of somebody who
    may do everything."""
    method, thread = METHODS[name], SPECIAL[what]
    asked = asked_by(name, thread)
    for way in ways(channel, name).values():
        request = request_of(method, thread)
        assert way(request, None) == "UNAUTHENTICATED"
        for who in ("elsewhere", "signal.team", "read.default", right_for(name, "default")):
            wanted = not asked.is_open and not (who == "signal.team" and asked.verbs == {"signal"})
            assert (way(request, token_of(who)) == "PERMISSION_DENIED") is wanted, who
        found = way(request, token_of(right_for(name)))
        assert found == way(request, token_of("all"))
        assert found != "PERMISSION_DENIED"


@pytest.mark.parametrize("name", sorted(PLACES))
def test_an_empty_namespace_is_the_default_one(channel: Any, name: str) -> None:
    """It is asked under the name that the verb will use: a grant for another namespace opens nothing."""
    method, asked = METHODS[name], asked_by(name)
    for way in ways(channel, name).values():
        for namespace in ("", "default"):
            request = request_of(method, MISSING, namespace)
            refused = way(request, token_of(right_for(name, "team"))) == "PERMISSION_DENIED"
            assert refused is not asked.is_open
            found = way(request, token_of(right_for(name, "default")))
            assert found == way(request, token_of("all"))
            assert found != "PERMISSION_DENIED"


# -- streams -----------------------------------------------------------------------------------------------------------


SOON_S = 20.0
"""How long a stream may still go on when others have ended that the same look at the file ends."""


class Open:
    """Verbs of streams, and of calls that wait, which go on for ever: the daemon's own may end before a token goes."""

    def __init__(self) -> None:
        self._begun = threading.Semaphore(0)
        self._make = server.make_handler

    def make_handler(self, method: MethodDescriptor, verb: Any, *rest: Any) -> Any:
        """Returns the daemon's handler of a method, around another verb."""
        answer_class = GetMessageClass(method.output_type)

        async def give(request: Message, context: Any) -> AsyncIterator[Message]:
            self._begun.release()
            yield answer_class()
            await asyncio.sleep(3600)

        async def wait(request: Message, context: Any) -> Message:
            self._begun.release()
            await asyncio.sleep(3600)
            return answer_class()

        async def take(requests: AsyncIterator[Message], context: Any) -> Message:
            async for _ in requests:
                self._begun.release()
            raise AssertionError("the stream has ended")

        async def exchange(stream: Any, context: Any) -> None:
            while await stream.read() is not None:
                self._begun.release()

        if method.client_streaming:
            verb = exchange if method.server_streaming else take
        elif method.server_streaming:
            verb = give
        elif method.name in LASTING:
            verb = wait
        return self._make(method, verb, *rest)

    def wait(self, count: int) -> None:
        """Waits until so many calls have got their first message."""
        for _ in range(count):
            assert self._begun.acquire(timeout=60)


@pytest.mark.parametrize("by", ["token", "socket"])
@pytest.mark.parametrize("wire", WIRES)
def test_every_lasting_call_ends_with_what_allowed_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str, by: str
) -> None:
    """Nobody calls, and nothing is sent: who is taken out of the file loses all streams and calls that wait, and who
    loses a grant those that needed it. Others go on."""
    assert 3 * LOOK_S < 2  # seen at one look, counted at the next one, and half a second for the rest
    verbs, path = Open(), tmp_path / "access.toml"
    monkeypatch.setattr(server, "make_handler", verbs.make_handler)
    everything = ["admin */*", "read,write,signal,delete */*"]

    def write(told: dict[str, list[str]]) -> None:
        written(path, told)
        if by == "socket":
            text = path.read_text()
            for who in told:
                text = text.replace(
                    f'token_sha256 = "{digest_of(token_of(who))}"', f'socket = "unix://{tmp_path}/{who}.sock"'
                )
            path.write_text(text)

    write({"gone": everything, "lost": everything, "stays": everything})
    with ExitStack() as stack:
        daemon = stack.enter_context(daemon_inside(tmp_path, access=str(path)))
        everybody = daemon.wire.target.replace("unix:", "unix://")
        calls = {}
        for who in ("gone", "lost", "stays"):
            target, token = (everybody, token_of(who)) if by == "token" else (f"unix://{tmp_path}/{who}.sock", None)
            channel = stack.enter_context(open_channel(target, wire))
            for name in LASTING:
                calls[who, name] = stack.enter_context(held_open(channel, METHODS[name], token))
        verbs.wait(len(calls))
        write({"lost": ["read nowhere/*"], "stays": everything})
        for (who, name), call in calls.items():
            if who == "gone":
                assert end_of(name, call) == "UNAUTHENTICATED", name
        for (who, name), call in calls.items():  # the same look at the file has ended them
            if who == "lost" and not asked_by(name).is_open:
                assert end_of(name, call, SOON_S) == "PERMISSION_DENIED", name
        goes_on = [each for each, call in calls.items() if not call.done()]
        assert {name for who, name in goes_on if who == "stays"} == set(LASTING)
        assert {name for who, name in goes_on if who == "lost"} == {n for n in LASTING if asked_by(n).is_open}


def held_open(channel: Any, method: MethodDescriptor, token: str | None) -> Any:
    """A stream whose client has sent one message and may send more, until the end of the block."""
    sent: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
    first = request_of(method, THERE)
    sent.put(first)
    call = begin(channel, method, iter(sent.get, None) if method.client_streaming else iter([first]), token)

    class Held(ExitStack):
        def __enter__(self) -> Any:
            return call

        def __exit__(self, *error: object) -> None:
            sent.put(None)
            call.cancel()

    return Held()


def end_of(name: str, call: Any, patience_s: float = 60.0) -> str:
    """Why a call has ended. One that does not end is cancelled."""
    giving_up = threading.Timer(patience_s, call.cancel)
    giving_up.start()
    try:
        if not METHODS[name].server_streaming:
            return reason_in(call.exception(timeout=2 * patience_s))
        for _ in call:
            pass
    except grpc.FutureCancelledError:
        return "it goes on"
    except grpc.RpcError as error:
        return reason_in(error)
    finally:
        giving_up.cancel()
    return ""


def test_a_call_of_a_stream_is_asked_when_its_turn_has_come(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was allowed when it came, and waited in line until its caller had lost the grant: nothing is written."""
    waiting, go_on, wait_in_line = threading.Semaphore(0), threading.Event(), Turns.wait_in_line

    async def wait(self: Turns, flow: Any, *, is_write: bool) -> None:
        if not is_write:
            await wait_in_line(self, flow, is_write=is_write)
            return
        waiting.release()
        await asyncio.to_thread(go_on.wait, 60)

    path = tmp_path / "access.toml"
    written(path, {"lost": ["read,write */*"], "stays": ["read,write */*"], "gone": ["read */*"]})
    with ExitStack() as stack:
        daemon = stack.enter_context(daemon_inside(tmp_path, access=str(path)))
        channel = stack.enter_context(open_channel(daemon.wire.target.replace("unix:", "unix://"), "grpc"))
        monkeypatch.setattr(Turns, "passes", lambda self, *, is_write: not is_write)
        monkeypatch.setattr(Turns, "wait_in_line", wait)
        pool = stack.enter_context(ThreadPoolExecutor(2))
        saves = {}
        for who in ("lost", "stays"):
            request = SaveRequest(namespace="team", thread=who, options=WriteOptions(request_id=who))
            request.diff.edits.add().append.log = "m"
            request.diff.edits[0].append.entries.add(media_type="text/plain", data=b"x")
            saves[who] = pool.submit(streamed_reason, channel, "Save", request, token_of(who))
        for _ in saves:
            assert waiting.acquire(timeout=60)
        written(path, {"lost": ["read */*"], "stays": ["read,write */*"]})
        stack.callback(go_on.set)
        info = METHODS["GetServerInfo"], request_of(METHODS["GetServerInfo"], "")
        wait_until(lambda: reason_of(channel, *info, token_of("gone")) == "UNAUTHENTICATED")
        go_on.set()
        assert {who: each.result(60) for who, each in saves.items()} == {"lost": "PERMISSION_DENIED", "stays": ""}


@pytest.mark.parametrize("wire", WIRES)
def test_an_answer_that_comes_late_is_not_given_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """A read that was allowed when it began, and took so long that its caller has lost the token or the grant."""
    begun, go_on, make = threading.Semaphore(0), threading.Event(), server.make_handler

    def make_late(method: MethodDescriptor, verb: Any, *rest: Any) -> Any:
        async def late(request: Message, context: Any) -> Any:
            answer = await verb(request, context)
            begun.release()
            await asyncio.to_thread(go_on.wait, 60)
            return answer

        return make(method, late if method.name == "Hydrate" else verb, *rest)

    monkeypatch.setattr(server, "make_handler", make_late)
    path, everything = tmp_path / "access.toml", ["read,write */*"]
    written(path, {"gone": everything, "lost": everything, "stays": everything})
    with daemon_inside(tmp_path, access=str(path)) as daemon:
        target = daemon.wire.target.replace("unix:", "unix://")
        with Client(target, token=token_of("stays"), namespace="team") as client:
            client.thread(THERE).append("m", 1)
        with open_channel(target, wire) as channel:
            read = METHODS["Hydrate"], [request_of(METHODS["Hydrate"], THERE)]
            calls = {who: begin(channel, *read, token_of(who)) for who in ("gone", "lost", "stays")}
            for _ in calls:
                assert begun.acquire(timeout=60)
            written(path, {"lost": ["read nowhere/*"], "stays": everything})
            info = METHODS["GetServerInfo"], request_of(METHODS["GetServerInfo"], "")
            wait_until(lambda: reason_of(channel, *info, token_of("gone")) == "UNAUTHENTICATED")
            go_on.set()
            assert end_of("Hydrate", calls["gone"]) == "UNAUTHENTICATED"
            assert end_of("Hydrate", calls["lost"]) == "PERMISSION_DENIED"
            assert calls["stays"].result(timeout=60).checkpoint.version == 1
