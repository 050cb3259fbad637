"""The danger: somebody does what no grant allows, or learns from an answer what exists."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Iterator
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import MethodDescriptor
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from tests.start.contract import METHODS, WIRES, digest_of, open_channel, reason_in, reason_of, request_of

from stateward import AsyncClient, Client
from stateward.errors import PermissionDenied, Unauthenticated
from stateward.testing import Daemon, run_daemon
from stateward.v1 import (
    checkpoint_service_pb2,
    checkpoint_service_pb2_grpc,
    thread_service_pb2,
)
from stateward.v1.access_pb2 import VERB_ADMIN, VERB_ANY, VERB_DELETE, VERB_READ, VERB_SIGNAL, VERB_WRITE
from stateward_sidecar import errors
from stateward_sidecar.errors import StartError
from stateward_sidecar.service.admission import callers
from stateward_sidecar.service.admission.accessfile import read_access_file
from stateward_sidecar.service.admission.callers import _without_quotes
from stateward_sidecar.service.admission.grants import VERBS, Caller, Principal, needs_of, parse_grant

FILE = """
[[principal]]
name = "agent"
token_sha256 = "{agent}"
grants = ["read,write,delete team/${principal}-*", "read team/shared-*"]

[[principal]]
name = "reviewer"
token_sha256 = ["{reviewer}", "{reviewer_next}"]
grants = ["signal */*", "read team/waiting-*"]

[[principal]]
name = "reader"
token_sha256 = "{reader}"
grants = ["read */*"]

[[principal]]
name = "operator"
token_sha256 = "{operator}"
grants = ["admin */*", "read,write,signal,delete */*"]
"""
NAMES = ("agent", "reviewer", "reviewer_next", "reader", "operator")
TOKENS = {name: name * 8 for name in NAMES}
OWN, FOREIGN = "agent-1", "other-1"


def write_access(path: Path, text: str = FILE) -> None:
    text = text.replace("${principal}", "$(principal)")
    text = text.format(**{name: digest_of(token) for name, token in TOKENS.items()})
    path.write_text(text.replace("$(principal)", "${principal}"))


@pytest.fixture(scope="module")
def access(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("access") / "access.toml"
    write_access(path)
    return path


@pytest.fixture(scope="module")
def daemon(access: Path) -> Iterator[Daemon]:
    """With threads that one principal may see, and others that it may not."""
    with run_daemon(access=access, sweep_interval=0) as running:
        with Client(running.target, token=TOKENS["operator"], namespace="team") as client:
            for name in (OWN, FOREIGN, "shared-1", "waiting-1"):
                client.thread(name).append("m", name)
        yield running


@pytest.fixture(params=WIRES)
def channel(request: pytest.FixtureRequest, daemon: Daemon) -> Iterator[Any]:
    with open_channel(daemon.target, request.param) as made:
        yield made


def is_allowed(name: str, method: MethodDescriptor, thread: str) -> bool:
    """What the file says, in other words than the daemon's."""
    needs = [need for need in needs_of(method) if not need.when and (need.thread or not need.lists)]
    verbs = {need.verb for need in needs}
    if not verbs or verbs == {VERB_ANY} or name == "operator":
        return True
    if VERB_ADMIN in verbs:
        return False
    if name == "reader":
        return verbs == {VERB_READ}
    if name == "reviewer":
        return verbs == {VERB_SIGNAL}
    return thread == OWN and verbs <= {VERB_READ, VERB_WRITE, VERB_DELETE}


@pytest.mark.parametrize("name", sorted(METHODS))
def test_who_may_call_a_method(channel: Any, name: str) -> None:
    """No token and a wrong one: UNAUTHENTICATED. A principal without a grant: PERMISSION_DENIED, whether the thread
    exists or not. With one: no error of access."""
    method = METHODS[name]
    for token in (None, "wrong" * 8, "agent" * 7):
        assert reason_of(channel, method, request_of(method, OWN), token) == "UNAUTHENTICATED"
    for who in ("reader", "reviewer", "agent", "operator"):
        for thread in (FOREIGN, "nobody-has-it", OWN):
            if who == "operator" and name == "DeleteThread":
                continue  # the others need it
            request = request_of(method, thread)
            if name == "DeleteThread" and is_allowed(who, method, thread):
                continue
            found = reason_of(channel, method, request, TOKENS[who])
            assert (found == "PERMISSION_DENIED") is not is_allowed(who, method, thread), (who, thread, found)
            assert found != "UNAUTHENTICATED"


def test_every_method_says_what_it_needs() -> None:
    """With a field that its request has; and only reads and signals are asked of who only reads and signals."""
    for method in METHODS.values():
        assert needs_of(method)
    writes = {name for name, method in METHODS.items() if VERB_WRITE in {need.verb for need in needs_of(method)}}
    assert {"Save", "BatchSave", "PutEffects", "PutRecords", "WriteBlob", "ImportThread", "ForkThread"} <= writes


def test_both_ends_of_a_fork_and_a_guard_are_asked(daemon: Daemon) -> None:
    """Also each thread of a batch, and each call of a stream."""
    with Client(daemon.target, token=TOKENS["agent"], namespace="team") as client:
        with pytest.raises(PermissionDenied, match="write team/other-2"):
            client.thread(OWN).fork("other-2")
        with pytest.raises(PermissionDenied, match="read team/other-1"):
            client.thread(FOREIGN).fork("agent-2")
        assert client.thread("shared-1").fork("agent-3").name == "agent-3"
        with pytest.raises(PermissionDenied, match="write team/shared-1"):
            client.thread("shared-1").append("m", 1)


@pytest.mark.parametrize("name", sorted(METHODS))
def test_all_threads_at_once_are_nobodys(channel: Any, name: str) -> None:
    """Where "-" stands for all threads, the answer has none that may not be read; elsewhere it is refused."""
    method = METHODS[name]
    if not any(need.thread == ("thread",) and need.lists for need in needs_of(method)):
        if any(need.verb == VERB_READ and need.thread == ("thread",) for need in needs_of(method)):
            assert reason_of(channel, method, request_of(method, "-"), TOKENS["agent"]) == "PERMISSION_DENIED"
        return
    if name == "Watch":
        return  # by another test
    request = request_of(method, "-")
    answer = channel.unary_unary(
        f"/{method.containing_service.full_name}/{name}", request_serializer=type(request).SerializeToString,
        response_deserializer=GetMessageClass(method.output_type).FromString,
    )(request, timeout=20, metadata=[("authorization", f"Bearer {TOKENS['agent']}")])  # fmt: skip
    text = str(answer)
    assert OWN in text
    assert FOREIGN not in text
    assert "waiting-1" not in text


def test_a_read_that_keeps_records_alive_is_a_write(channel: Any) -> None:
    """`refresh_ttl` moves their end."""
    for name in ("GetRecords", "ListRecords"):
        request: Any = request_of(METHODS[name], OWN)
        assert reason_of(channel, METHODS[name], request, TOKENS["reader"]) != "PERMISSION_DENIED"
        request.refresh_ttl = True
        assert reason_of(channel, METHODS[name], request, TOKENS["reader"]) == "PERMISSION_DENIED"


def test_a_call_that_waits_is_asked_again(tmp_path: Path) -> None:
    """One whose message comes after its token is gone, and one whose answer comes then."""
    path = tmp_path / "access.toml"
    write_access(path)
    with (
        run_daemon(tmp_path / "data", access=path) as daemon,
        Client(daemon.target, token=TOKENS["operator"], namespace="team") as operator,
        grpc.insecure_channel(daemon.target.replace("unix://", "unix:")) as made,
    ):
        operator.thread("t").append("m", 1)
        operator.thread(OWN).append("m", 1)
        may_go = threading.Event()

        def held_back(name: str, who: str, request: Message) -> Any:
            def late() -> Iterator[Message]:
                may_go.wait(60)
                yield request

            called = made.stream_unary(f"/stateward.v1.{name}", request_serializer=type(request).SerializeToString)
            return called.future(late(), timeout=60, metadata=[("authorization", f"Bearer {TOKENS[who]}")])

        delete = thread_service_pb2.DeleteThreadRequest(namespace="team", thread=OWN)
        held = [
            held_back("CheckpointService/Hydrate", "reader", request_of(METHODS["Hydrate"], "t")),
            held_back("ThreadService/DeleteThread", "agent", delete),
        ]
        log = checkpoint_service_pb2.ReadLogRequest(namespace="team", thread="t", log="m", from_index=1)
        log.wait.seconds = 30
        waiting = checkpoint_service_pb2_grpc.CheckpointServiceStub(made).ReadLog.future(
            log, timeout=60, metadata=[("authorization", f"Bearer {TOKENS['reader']}")]
        )
        write_access(path, FILE.replace('"read */*"', '"read team/u"', 1).replace("read,write,delete", "read"))
        with Client(daemon.target, token=TOKENS["reader"], namespace="team") as reader:
            end = time.monotonic() + 30
            while time.monotonic() < end:
                try:
                    reader.thread("t").hydrate()
                except PermissionDenied:
                    break
        may_go.set()
        operator.thread("t").append("m", 2)
        for each in (*held, waiting):
            assert reason_in(each.exception()) == "PERMISSION_DENIED"
        assert operator.thread(OWN).info().version == 1


def test_a_match_takes_no_longer_than_its_name() -> None:
    """Patterns with several stars, and names that nearly match."""
    for pattern in ("*a*a*x", "*-a-*-b", "**a**b"):
        principal = Principal("p", [parse_grant(f"read team/{pattern}", "p")])
        for name in ("a" * 4000, "-a-" * 1300, "-a-" * 100_000):
            began = time.process_time()
            assert not principal.may(VERB_READ, "team", name)
            assert time.process_time() - began < 0.1


def test_a_file_that_cannot_be_read_is_read_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Though nothing of it changes but that."""
    now, fails = [1000.0], [False]
    monkeypatch.setattr("stateward_sidecar.service.admission.callers.monotonic", lambda: now[0])
    path = tmp_path / "tokens"
    path.write_text("o" * 40)
    read = callers._read_tokens

    def broken(place: Path) -> Any:
        if fails[0]:
            try:
                raise PermissionError(13, "no")
            except OSError:
                raise StartError("cannot read") from None
        return read(place)

    monkeypatch.setattr(callers, "_read_tokens", broken)
    found, old = callers.Callers(path), [("authorization", "Bearer " + "o" * 40)]
    path.write_text("n" * 40)
    fails[0] = True
    for _ in range(5):
        now[0] += callers.LOOK_S
        found.identify(old)
    fails[0] = False
    now[0] += callers.LOOK_S
    with pytest.raises(errors.Unauthenticated):
        found.identify(old)


def test_an_empty_namespace_is_the_default_one(daemon: Daemon) -> None:
    """It is asked under the name that the verb will use."""
    request = checkpoint_service_pb2.HydrateRequest(thread=OWN)
    with grpc.insecure_channel(daemon.target.replace("unix://", "unix:")) as made:
        assert reason_of(made, METHODS["Hydrate"], request, TOKENS["agent"]) == "PERMISSION_DENIED"
        assert reason_of(made, METHODS["Hydrate"], request, TOKENS["reader"]) == "THREAD_NOT_FOUND"


async def test_each_call_of_a_stream_is_asked(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that may not be are refused, the others are made."""
    monkeypatch.setenv("STATEWARD_WIRE", "grpc")
    async with AsyncClient(daemon.target, token=TOKENS["agent"], namespace="team") as client:
        names = [f"agent-s{number}" if number % 2 else f"other-s{number}" for number in range(40)]
        found = await asyncio.gather(*(client.thread(name).append("m", 1) for name in names), return_exceptions=True)
        assert [isinstance(each, PermissionDenied) for each in found] == [not number % 2 for number in range(40)]


@pytest.mark.parametrize("wire", ["grpc", "frames"])
def test_lists_counts_and_watches_leave_out_what_may_not_be_read(
    daemon: Daemon, monkeypatch: pytest.MonkeyPatch, wire: str
) -> None:
    """Also the damaged, the deleted, and what comes later."""
    monkeypatch.setenv("STATEWARD_WIRE", wire)
    with (
        Client(daemon.target, token=TOKENS["reviewer"], namespace="team") as client,
        Client(daemon.target, token=TOKENS["operator"], namespace="team") as operator,
    ):
        assert [each.name for each in client.threads()] == ["waiting-1"]
        assert sum(client.count_threads().values()) == 1
        with client.watch() as events:
            operator.thread("other-9").append("m", 1)
            operator.thread("waiting-1").append("m", 1)
            operator.thread("other-9").delete()
            operator.thread("waiting-9").append("m", 1)
            operator.thread("waiting-9").delete()
            seen = [next(events).thread for _ in range(3)]
        assert seen == ["waiting-1", "waiting-9", "waiting-9"]


def test_a_change_of_the_file_ends_what_may_no_longer_be(tmp_path: Path) -> None:
    """A stream of a principal that lost its grant ends, another one goes on, and the next token is taken."""
    path = tmp_path / "access.toml"
    write_access(path)
    with (
        run_daemon(tmp_path / "data", access=path) as daemon,
        Client(daemon.target, token=TOKENS["reader"], namespace="team") as reader,
        Client(daemon.target, token=TOKENS["operator"], namespace="team") as operator,
    ):
        operator.thread("t").append("m", 1)
        with reader.thread("t").watch() as watched, operator.thread("t").watch() as goes_on:
            write_access(path, FILE.replace('grants = ["read */*"]', 'grants = ["read team/u"]'))
            with pytest.raises((Unauthenticated, PermissionDenied)):
                next(watched)
            operator.thread("t").append("m", 2)
            assert next(goes_on)
        with pytest.raises(PermissionDenied):
            reader.thread("t").hydrate()


def test_a_large_file_is_read_beside_the_calls(tmp_path: Path) -> None:
    """A thousand principals: the file is read in a thread, and counts as a small one does, also when it is wrong."""
    path = tmp_path / "access.toml"

    def write(count: int, more: str = "") -> None:
        principals = (
            f'[[principal]]\nname = "p{number}"\ntoken_sha256 = "{digest_of(f"token {number}")}"\n'
            'grants = ["read,write team/*"]\n'
            for number in range(count)
        )
        path.write_text("".join(principals) + more)

    def who(number: int) -> str:
        try:
            return found.identify([("authorization", f"Bearer token {number}")]).principal.name
        except errors.Unauthenticated:
            return "nobody"

    def becomes(number: int, name: str) -> None:
        end = time.monotonic() + 30
        while who(number) != name:
            assert time.monotonic() < end
            time.sleep(0.05)

    write(1000)
    assert path.stat().st_size > callers.ASIDE_BYTES
    found = callers.Callers(None, path)
    assert (who(0), who(999)) == ("p0", "p999")
    threads, run = set[str](), threading.Thread.run
    threading.Thread.run = lambda self: (threads.add(self.name), run(self))[1]  # type: ignore[method-assign]
    try:
        write(999)
        becomes(999, "nobody")
        write(999, "[[principal]]\nname = 3\n")
        time.sleep(3 * callers.LOOK_S)
        assert who(998) == "p998"
        write(1000)
        becomes(999, "p999")
    finally:
        threading.Thread.run = run  # type: ignore[method-assign]
    assert threads == {"stateward-access"}
    path.write_text("")
    becomes(0, "nobody")


def test_a_wrong_file_changes_nothing(tmp_path: Path) -> None:
    """The daemon goes on with what the file said before."""
    path = tmp_path / "access.toml"
    write_access(path)
    with (
        run_daemon(tmp_path / "data", access=path) as daemon,
        Client(daemon.target, token=TOKENS["operator"]) as client,
    ):
        client.thread("t").append("m", 1)
        path.write_text("[[principal]]\nname = 3\n")
        end = time.monotonic() + 3
        while time.monotonic() < end:
            client.thread("t").append("m", 2)
            time.sleep(0.1)


def test_the_file_of_the_guide_is_right(tmp_path: Path, repository: Path) -> None:
    """Its four principals, and what they may do."""
    text = (repository / "docs/guide.md").read_text()
    path = tmp_path / "access.toml"
    path.write_text(text.partition("```toml\n")[2].partition("```")[0])
    found = read_access_file(path)
    assert len(found) == 4
    assert found.uids[1000].may_everywhere(VERB_ADMIN)
    assert [each.name for each in found.tokens.values()] == ["booking", "reviewer", "auditor"]


WRONG = {
    "no TOML": ("[[principal", "not TOML"),
    "nobody": ("", "no [[principal]]"),
    "another table": ("[principals]\n", "principals"),
    "unknown key": ('[[principal]]\nname="a"\nuid=1\ngrants=["read */*"]\ntoken="x"\n', "'token' is not known"),
    "no name": ('[[principal]]\nuid=1\ngrants=["read */*"]\n', "name is required"),
    "no grants": ('[[principal]]\nname="a"\nuid=1\ngrants=[]\n', "no grants"),
    "no identity": ('[[principal]]\nname="a"\ngrants=["read */*"]\n', "no identity"),
    "unknown verb": ('[[principal]]\nname="a"\nuid=1\ngrants=["look */*"]\n', "'look' is no verb"),
    "no pattern": ('[[principal]]\nname="a"\nuid=1\ngrants=["read"]\n', "is no grant"),
    "no thread": ('[[principal]]\nname="a"\nuid=1\ngrants=["read team"]\n', "is no grant"),
    "admin of a part": ('[[principal]]\nname="a"\nuid=1\ngrants=["admin team/*"]\n', "admin */*"),
    "a token itself": ('[[principal]]\nname="a"\ntoken_sha256="secret"\ngrants=["read */*"]\n', "64 hex digits"),
    "uid of text": ('[[principal]]\nname="a"\nuid="1"\ngrants=["read */*"]\n', "uid is no number"),
    "one name twice": ('[[principal]]\nname="a"\nuid=1\ngrants=["read */*"]\n' * 2, "uid is that of 'a'"),
}


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_file_is_refused_at_the_start(tmp_path: Path, what: str) -> None:
    """With its place and the reason, and no token in the message."""
    text, said = WRONG[what]
    path = tmp_path / "access.toml"
    path.write_text(text)
    with pytest.raises(StartError) as refused:
        read_access_file(path)
    assert said in refused.value.message
    assert str(path) in refused.value.message


TEXTS = st.text(alphabet="ab*-/.[]?", min_size=1, max_size=6)
WORDS = st.text(alphabet="ab-/.[]?\n", min_size=1, max_size=8)


@given(
    grants=st.lists(
        st.tuples(st.sets(st.sampled_from(sorted(set(VERBS) - {"admin"})), min_size=1), TEXTS, TEXTS), max_size=4
    ),
    asked=st.lists(st.tuples(st.sampled_from(sorted(VERBS)), WORDS, WORDS), min_size=1, max_size=6),
)
def test_random_grants_against_a_model(
    grants: list[tuple[set[str], str, str]], asked: list[tuple[str, str, str]]
) -> None:
    """A verb is allowed if one grant has it and both patterns match, in which only "*" is special."""
    told = [(verbs, namespace.replace("/", "b"), thread) for verbs, namespace, thread in grants]
    principal = Principal("p", [parse_grant(f"{','.join(sorted(v))} {n}/{t}", "p") for v, n, t in told])
    for verb, namespace, thread in asked:
        wanted = any(
            verb in verbs and matches(n, namespace) and matches(t, thread) for verbs, n, t in told
        )
        assert principal.may(VERBS[verb], namespace, thread) is wanted


def matches(pattern: str, text: str) -> bool:
    return fnmatchcase(text, pattern.replace("[", "[[]").replace("?", "[?]"))


def test_a_process_is_known_by_its_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On the local wire, and without a token. A token that is sent counts, also if it is wrong; gRPC names no user."""
    path = tmp_path / "access.toml"
    path.write_text(f'[[principal]]\nname = "me"\nuid = {os.getuid()}\ngrants = ["read,write mine/*"]\n')
    with run_daemon(tmp_path / "data", access=path) as daemon:
        monkeypatch.setenv("STATEWARD_WIRE", "frames")
        with Client(daemon.target, namespace="mine") as client:
            client.thread("t").append("m", 1)
        with Client(daemon.target, namespace="yours") as client, pytest.raises(PermissionDenied):
            client.thread("t").append("m", 1)
        with Client(daemon.target, namespace="mine", token="w" * 40) as client, pytest.raises(Unauthenticated):
            client.thread("t").append("m", 1)
        monkeypatch.setenv("STATEWARD_WIRE", "grpc")
        with Client(daemon.target, namespace="mine") as client, pytest.raises(Unauthenticated):
            client.thread("t").append("m", 1)


def test_a_check_takes_no_time() -> None:
    """Ten microseconds at most, with the best of many; a busy machine makes none of them slow."""
    principal = Principal("p", [parse_grant(f"read,write team/agent-{number}-*", "p") for number in range(50)])
    caller, needs = Caller(principal), needs_of(METHODS["Save"])
    request = checkpoint_service_pb2.SaveRequest(namespace="team", thread="agent-49-x")
    took = []
    for _ in range(2000):
        began = time.perf_counter()
        caller.admit(needs, request)
        took.append(time.perf_counter() - began)
    assert min(took) < 50e-6


def test_the_log_quotes_nothing_of_a_file_of_principals() -> None:
    """What is wrong with a principal may have names of threads in it; why a file cannot be read has none."""
    wrong = "the access file a.toml, principal 3: 'team-secret/patient-*' is no grant"
    assert "patient" not in _without_quotes(wrong)
    assert "principal 3" in _without_quotes(wrong)
    unread = "cannot read the access file a.toml: Permission denied"
    assert _without_quotes(unread) == unread
