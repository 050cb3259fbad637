"""The danger: an answer, an error, a count, a page, a token or a time tells that a thread is there which its reader may
not see.

Two daemons get the same calls, and differ only in threads that the caller may not see: one has a few, the other has
many, of every kind. Both take the time from the test, and what a daemon draws by lot (uids, digests) is left out of the
comparison, so whatever differs is a leak. Only the cursor of a watch of a namespace may differ, as SECURITY.md says.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any, NamedTuple

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.timestamp_pb2 import Timestamp
from google.rpc.status_pb2 import Status
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.wire import appends, sets
from tests.start.contract import (
    METHODS,
    STREAMED,
    WIRES,
    answers_of,
    begin,
    digest_of,
    fields_of,
    open_channel,
    principal_of,
    reason_of,
    request_of,
    run_call,
    status_in,
    streamed_reason,
)

from stateward.v1.access_pb2 import VERB_ANY
from stateward.v1.blob_service_pb2 import BlobBegin, ReadBlobRequest, StatBlobRequest, WriteBlobRequest
from stateward.v1.checkpoint_pb2 import WORK_STATUS_WAITING
from stateward.v1.checkpoint_service_pb2 import (
    BatchSaveRequest,
    ListCheckpointsRequest,
    ReadLogRequest,
    SaveRequest,
)
from stateward.v1.state_pb2 import BlobRef
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import (
    CountThreadsRequest,
    DeleteThreadRequest,
    ForkThreadRequest,
    ListThreadsRequest,
    UpdateThreadRequest,
    WaitDurableRequest,
    WatchRequest,
)
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.service.admission.grants import needs_of
from stateward_sidecar.store.thread.paging import Tokens

TOKENS = {"app": "a" * 40, "all": "o" * 40}
GRANTS = {
    "app": ["read,write,delete team/open-*", "signal team/wait-*", "write team/drop-*"],
    "all": ["read,write,signal,delete */*", "admin */*"],
}
HIDDEN = 130
"""More than a page of a list leaves out before it ends."""
NOWHERE, BEHIND = "shut-none", "shut-001"
"""Threads that are in neither daemon, and in the second alone."""
KIND = {"kind": "a"}
CONTENT = b"the same bytes in an open and in a hidden thread" * 10


@pytest.fixture(scope="module")
def now() -> Iterator[list[int]]:
    """The time of both daemons, in microseconds. It moves when the test says so."""
    found = [1_800_000_000_000_000]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Clock, "now_us", lambda _: found[0])
        yield found


class Side:
    """A daemon, as everybody's operator sees it."""

    def __init__(self, daemon: Inside, *, has_much: bool) -> None:
        self.daemon, self.has_much = daemon, has_much
        self.origin = "shut-origin-b" if has_much else "shut-origin-a"
        """The hidden thread that a visible one was forked from. Its length counts in the bytes of the fork."""
        self.requests = Counter[str]()

    def ask(self, name: str, request: Message, who: str = "all") -> Any:
        found = answers_of(self.daemon.wire.channel, METHODS[name], request, TOKENS[who])
        return found[0]

    def save(self, thread: str, namespace: str = "team", **fields: Any) -> Any:
        self.requests[thread] += 1
        request = SaveRequest(namespace=namespace, thread=thread, **fields)
        if not request.WhichOneof("content"):
            request.diff.CopyFrom(appends(f"of {thread}"))
        request.options.request_id = request.options.request_id or f"{thread}-{self.requests[thread]}"
        return self.ask("Save", request)

    def fork(self, source: str, copy: str) -> None:
        self.ask("ForkThread", ForkThreadRequest(namespace="team", thread=source, new_thread=copy))


@pytest.fixture(scope="module")
def sides(tmp_path_factory: pytest.TempPathFactory, now: list[int]) -> Iterator[list[Side]]:
    directory = tmp_path_factory.mktemp("two")
    access = directory / "access.toml"
    access.write_text(
        "".join(principal_of(who, digest_of(TOKENS[who]), GRANTS[who]) for who in GRANTS)
    )
    with ExitStack() as stack:
        found = [
            Side(
                stack.enter_context(daemon_inside(directory, name=name, owner_id="machine", access=str(access))),
                has_much=name == "B",
            )
            for name in ("A", "B")
        ]
        fill(found, now)
        yield found


def fill(sides: list[Side], now: list[int]) -> None:
    """Makes the same visible threads in both, and hidden ones in between, which are others in each."""
    hidden = iter(range(1, HIDDEN + 1))

    def both(step: Callable[[Side], object]) -> None:
        for side in sides:
            step(side)
            if side.has_much:
                for number in [number for _, number in zip(range(6), hidden, strict=False)]:
                    hide_one(side, number)
        now[0] += 1_000_000

    both(lambda side: side.save(side.origin, labels=KIND, diff=appends("of the origin")))
    for number in range(1, 6):
        both(lambda side, name=f"open-{number}": side.save(name, labels=KIND, options=made()))  # type: ignore[misc]
        both(lambda side, name=f"open-{number}": side.save(name, diff=sets("goal", name)))  # type: ignore[misc]
    both(lambda side: side.save("open-del"))
    both(lambda side: side.save("wait-1", status=WORK_STATUS_WAITING, wait_id="q", labels=KIND))
    both(lambda side: side.save("drop-1", options=made()))
    both(lambda side: side.fork(side.origin, "open-fork"))
    both(lambda side: side.fork(side.origin, "drop-fork"))
    for side in sides:
        if side.has_much:
            side.fork("open-del", "shut-copy")
            side.fork("open-1", "shut-copy-1")
            side.ask("DeleteThread", DeleteThreadRequest(namespace="team", thread="shut-002"))
            side.save("open-9", namespace="shut")
            for number in range(1200):  # more versions than a list of versions looks at
                side.save("shut-long", diff=appends(str(number)), labels=KIND)
            begin(side.daemon.wire.channel, METHODS["WriteBlob"], iter(blob_of(BEHIND)), TOKENS["all"]).result()
    both(lambda side: side.save("open-last", labels=KIND))


def hide_one(side: Side, number: int) -> None:
    """A hidden thread; every second one waits for an answer."""
    fields = {"status": WORK_STATUS_WAITING, "wait_id": "q"} if number % 2 else {}
    side.save(f"shut-{number:03}", labels=KIND, options=made(f"hidden-{number}"), **fields)


def made(request_id: str = "") -> WriteOptions:
    """Options that make a thread with a label."""
    return WriteOptions(request_id=request_id, create=ThreadOptions(labels=KIND))


def blob_of(thread: str) -> list[Message]:
    """The messages that write a blob."""
    place = BlobBegin(namespace="team", thread=thread, media_type="text/plain", size_bytes=len(CONTENT))
    return [WriteBlobRequest(begin=place), WriteBlobRequest(data=CONTENT)]


# -- what is compared --------------------------------------------------------------------------------------------------

DRAWN = {"uid", "expected_uid", "digest", "version_digest", "sequence_digest", "key_id", "signal_id"}
"""Fields that a daemon draws by lot, or makes with a key that it drew."""


def plain(value: Any, name: str = "") -> Any:
    """A message as a comparable value, without what is drawn by lot."""
    if name in DRAWN or name.endswith(("_digest", "_uid")):
        return bool(value)
    if name in ("page_token", "next_page_token"):
        return len(value)
    if name == "cursor":
        return re.sub(r"^n\.\d+$", "n", re.sub(r"[0-9a-f]{32}", "drawn", value))
    if name == "start_time":
        return "then"
    if isinstance(value, Message):
        if isinstance(value, Timestamp):
            return value.ToMicroseconds()
        return type(value).__name__, {
            field.name: plain(each, field.name) for field, each in value.ListFields()
        }
    if hasattr(value, "items"):
        return {key: plain(each) for key, each in sorted(value.items())}
    if isinstance(value, (str, bytes, bool, int, float)):
        return re.sub(r"[0-9a-f]{32}", "drawn", value) if isinstance(value, str) else value
    return [plain(each, name) for each in value]


class Told(NamedTuple):
    """An error: it may name what its call named."""

    code: str
    message: str
    details: tuple[bytes, ...]


def told(error: grpc.RpcError) -> Told:
    status = status_in(error)
    assert status is not None, error
    return status_told(status)


def status_told(status: Status) -> Told:
    details = tuple(re.sub(rb"[0-9a-f]{32}", b"drawn", each.value) for each in status.details)
    return Told(str(status.code), re.sub(r"[0-9a-f]{32}", "drawn", status.message), details)


class Ear:
    """Hears everything that a caller without all grants is answered by one daemon."""

    def __init__(self, side: Side, channel: Any) -> None:
        self._side, self._channel = side, channel
        self.heard: list[tuple[str, Any]] = []

    def ask(self, what: str, name: str, request: Message, most: int = 1) -> list[Message]:
        try:
            found = answers_of(self._channel, METHODS[name], request, TOKENS["app"], most)
        except grpc.RpcError as error:
            self.heard.append((f"{name}: {what}", told(error)))
            return []
        self.heard.append((f"{name}: {what}", plain(found)))
        return found

    def send(self, what: str, name: str, requests: list[Message]) -> None:
        try:
            answer = begin(self._channel, METHODS[name], iter(requests), TOKENS["app"]).result()
        except grpc.RpcError as error:
            self.heard.append((f"{name}: {what}", told(error)))
        else:
            self.heard.append((f"{name}: {what}", plain(answer)))

    def run(self, what: str, name: str, request: Message) -> None:
        answer = run_call(self._channel, name, request, TOKENS["app"])
        heard = status_told(answer) if isinstance(answer, Status) else plain(answer)
        self.heard.append((f"RunCalls, {name}: {what}", heard))

    def pages(self, what: str, name: str, request: Any) -> None:
        """All pages, with the number of items on each."""
        for number in range(200):
            found: list[Any] = self.ask(f"{what}, page {number} of {request.page_size}", name, request)
            if not found or not found[0].next_page_token:
                return
            request.page_token = found[0].next_page_token
        raise AssertionError("too many pages")

    def events(self, what: str, request: WatchRequest, last: Callable[[Any], bool]) -> None:
        """The events of a watch until one that is the last of both daemons. How they lie in messages is left out: it
        depends on commits, as the cursor does."""
        found = []
        call = begin(self._channel, METHODS["Watch"], iter([request]), TOKENS["app"])
        for answer in call:
            found += answer.events
            if any(map(last, answer.events)):
                break
        call.cancel()
        self.heard.append((f"Watch: {what}", plain(found)))


def compare(sides: list[Side], wire: str, script: Callable[[Ear, Side], None]) -> list[tuple[str, Any]]:
    """Runs a script against both daemons, and fails if they answer differently. Returns what was heard."""
    heard = []
    for side in sides:
        with open_channel(side.daemon.wire.target.replace("unix:", "unix://"), wire) as channel:
            ear = Ear(side, channel)
            script(ear, side)
        heard.append(ear.heard)
    few, many = heard
    different = [(a, b) for a, b in zip(few, many, strict=False) if a != b]
    assert not different, f"{len(different)} answers differ; the first:\n{different[0][0]}\n{different[0][1]}"
    assert len(few) == len(many)
    assert "shut-" not in str([each for _, each in many if not isinstance(each, Told)])
    return few


@pytest.mark.parametrize("wire", WIRES)
def test_every_method_and_every_kind_of_name(sides: list[Side], wire: str) -> None:
    """Hidden, missing, all threads, no name, a namespace that is there or not, and names that are too long."""

    def script(ear: Ear, side: Side) -> None:
        for name, method in sorted(METHODS.items()):
            for thread in (BEHIND, NOWHERE, "shut-002", "-", "", "open-none", "x" * 1024):
                for namespace in ("team", "shut", "nobody", ""):
                    request = request_of(method, thread, namespace)
                    ear.ask(f"{namespace}/{thread[:20]}", name, request)
                    if name in STREAMED:
                        ear.run(f"{namespace}/{thread[:20]}", name, request)

    heard = compare(sides, wire, script)
    assert len(heard) > 1000


@pytest.mark.parametrize("wire", WIRES)
def test_lists_counts_and_their_pages(sides: list[Side], wire: str) -> None:
    """Pages of any size have the same items, and the last one is the last: a page that ends early, or one more without
    items, would tell of what was left out."""

    def script(ear: Ear, side: Side) -> None:
        waiting, labels = [WORK_STATUS_WAITING], {"kind": "a"}
        begun, ended = Timestamp(seconds=1_800_000_001), Timestamp(seconds=1_800_000_010)
        for size in (0, 1, 2, 3, 1000):
            for what, fields in {
                "all": {}, "labels": {"labels": labels}, "waiting": {"statuses": waiting},
                "prefix": {"name_prefix": "shut-"}, "since": {"updated_after": begun, "updated_before": ended},
                "labels and waiting": {"labels": labels, "statuses": waiting}, "records": {"has_records": True},
            }.items():  # fmt: skip
                ear.pages(what, "ListThreads", ListThreadsRequest(namespace="team", page_size=size, **fields))
            for what, fields in {"all": {}, "labels": {"labels": labels}, "waiting": {"statuses": waiting}}.items():
                request = ListCheckpointsRequest(namespace="team", thread="-", page_size=size, **fields)
                ear.pages(what, "ListCheckpoints", request)
        for namespace in ("team", "shut", "nobody"):
            ear.ask(namespace, "CountThreads", CountThreadsRequest(namespace=namespace))
            ear.ask(namespace, "ListThreads", ListThreadsRequest(namespace=namespace))
            ear.ask(namespace, "ListCheckpoints", ListCheckpointsRequest(namespace=namespace, thread="-"))
        ear.ask("since", "CountThreads", CountThreadsRequest(namespace="team", updated_after=begun))

    heard = compare(sides, wire, script)
    assert any("page 5 of 1" in what for what, _ in heard)


@pytest.mark.parametrize("wire", WIRES)
def test_watches(sides: list[Side], wire: str) -> None:
    """Of all threads from the beginning: what was saved, deleted and forked elsewhere is not among the events."""

    def script(ear: Ear, side: Side) -> None:
        def is_last(event: Any) -> bool:
            return bool(event.thread == "open-last")

        hidden = uid_of(sides[1], BEHIND)
        ear.events("all", WatchRequest(namespace="team", thread="-", after_cursor="n.0"), is_last)
        request = WatchRequest(namespace="team", thread="-", after_cursor="n.0", labels=KIND)
        ear.events("by label", request, lambda event: bool(event.thread == "open-5"))
        for thread in ("open-1", BEHIND, NOWHERE, "open-none"):
            for uid in (hidden, "0" * 32):
                ear.ask(f"{thread} {uid == hidden}", "Watch", watch_of(thread, uid), 2)
        ear.ask("the future", "Watch", WatchRequest(namespace="team", thread="-", after_cursor=f"n.{10**15}"))

    compare(sides, wire, script)


def watch_of(thread: str, uid: str) -> WatchRequest:
    return WatchRequest(namespace="team", thread=thread, after_cursor=f"t.{uid}.1")


def uid_of(side: Side, thread: str) -> str:
    return str(side.ask("GetThread", request_of(METHODS["GetThread"], thread)).thread.uid)


@pytest.mark.parametrize("wire", WIRES)
def test_what_points_at_other_threads(sides: list[Side], wire: str) -> None:
    """Origins of forks, uids, guards, batches, blobs, requests that were made before, claims."""

    def script(ear: Ear, side: Side) -> None:
        uid = uid_of(sides[1], BEHIND)
        for thread in ("open-fork", "open-1", "wait-1", "drop-1"):
            for name in ("GetThread", "Hydrate", "ListCheckpoints", "ReadHistory", "UpdateThread", "Detach", "Attach"):
                ear.ask(thread, name, request_of(METHODS[name], thread))
            ear.ask(thread, "ExportThread", request_of(METHODS["ExportThread"], thread), 50)
        ear.ask("drop-fork", "UpdateThread", request_of(METHODS["UpdateThread"], "drop-fork"))
        for thread in ("open-1", BEHIND, NOWHERE, "open-none"):
            wait = WaitDurableRequest(namespace="team", thread=thread)
            wait.receipt.uid, wait.receipt.sequence = uid, 1
            ear.ask(f"uid of another, {thread}", "WaitDurable", wait)
            read = ReadLogRequest(namespace="team", thread=thread, log="messages", expected_uid=uid)
            ear.ask(f"uid of another, {thread}", "ReadLog", read)
            for guard in (BEHIND, NOWHERE, "open-none"):
                save = SaveRequest(namespace="team", thread=thread, diff=appends("x"))
                save.options.expected_version, save.guard.thread, save.guard.token = 77, guard, 1
                ear.ask(f"{thread} with the lease of {guard}", "Save", save)
                ear.run(f"{thread} with the lease of {guard}", "Save", save)
                both = BatchSaveRequest(saves=[save, save])
                both.saves[0].ClearField("guard")
                ear.ask(f"{thread} with the lease of {guard}", "BatchSave", both)
            for other in ("open-2", BEHIND, NOWHERE):
                fork = ForkThreadRequest(namespace="team", thread=thread, new_thread=other)
                ear.ask(f"{thread} to {other}", "ForkThread", fork)
            for bytes_ in (CONTENT, b"of nobody"):
                digest = hashlib.sha256(bytes_).digest()
                ear.ask(thread, "StatBlob", StatBlobRequest(namespace="team", thread=thread, sha256=digest))
                blob = BlobRef(sha256=digest, size_bytes=len(bytes_))
                ear.ask(thread, "ReadBlob", ReadBlobRequest(namespace="team", thread=thread, blob=blob))
        for number in (1, 2, 3):
            save = SaveRequest(namespace="team", thread=f"open-again-{wire}", diff=appends("x"))
            save.options.request_id = f"hidden-{number}"
            ear.ask("a request id of another thread", "Save", save)
        fork = ForkThreadRequest(namespace="team", thread="open-1", new_thread=f"drop-new-{wire}")
        ear.ask("to one that may not be read", "ForkThread", fork)
        copy = ForkThreadRequest(namespace="team", thread="open-del", new_thread=f"open-del-{wire}")
        ear.ask("before it goes", "ForkThread", copy)
        if side.has_much:
            side.fork(f"open-del-{wire}", f"shut-{wire}")
        ear.ask("a thread with forks", "DeleteThread", DeleteThreadRequest(namespace="team", thread=f"open-del-{wire}"))
        ear.send("bytes that another thread has", "WriteBlob", blob_of("open-2"))

    compare(sides, wire, script)


@pytest.mark.parametrize("wire", WIRES)
def test_nothing_is_looked_up_before_a_refusal(sides: list[Side], wire: str) -> None:
    """So a refusal takes the same time, whatever is there: no row is read, no thread is looked for in memory, and
    nothing is asked of the writer."""
    side = sides[1]
    store = side.daemon.parts.store
    looked = list[str]()

    def noted(place: Any, name: str) -> None:
        verb = getattr(place, name)

        def note(*given: Any, **named: Any) -> Any:
            looked.append(f"{type(place).__name__}.{name}")
            return verb(*given, **named)

        patch.setattr(place, name, note)

    with pytest.MonkeyPatch.context() as patch, open_channel(side.daemon.wire.target, wire) as channel:
        noted(store.context.engine, "read")
        noted(store.context.writer, "submit")
        noted(store.threads, "cached")
        reason_of(channel, METHODS["GetThread"], request_of(METHODS["GetThread"], "open-1"), TOKENS["app"])
        assert looked  # the test can see it
        for name, method in sorted(METHODS.items()):
            needs = [need for need in needs_of(method) if need.verb != VERB_ANY]
            if not any(need.thread or not need.lists for need in needs):
                continue  # of the daemon, for all
            for thread in (BEHIND, NOWHERE, "shut-002"):
                looked.clear()
                request = request_of(method, thread)
                assert reason_of(channel, method, request, TOKENS["app"]) == "PERMISSION_DENIED", name
                assert not looked, name
                if name in STREAMED:
                    assert streamed_reason(channel, name, request, TOKENS["app"]) == "PERMISSION_DENIED"
                    assert not looked, f"{name} in RunCalls"


def test_a_token_does_not_show_its_place() -> None:
    """A place is a number that counts the threads or entries of everybody."""
    tokens, place = Tokens(lambda: bytes(32)), bytes(range(8))
    first, again = (tokens.pack(b"request", place) for _ in range(2))
    assert tokens.unpack(b"request", first) == tokens.unpack(b"request", again) == place
    assert first != again
    assert place not in base64.urlsafe_b64decode(first + "==")
    with pytest.raises(InvalidField):
        tokens.unpack(b"another request", first)


@pytest.mark.parametrize("wire", WIRES)
def test_who_may_only_write_is_told_nothing_of_the_content(sides: list[Side], wire: str) -> None:
    """Neither labels nor counts of a thread that it changes or makes; its operator gets them from the same call."""
    fork = ForkThreadRequest(namespace="team", thread="open-1", new_thread=f"drop-blind-{wire}")
    fork.options.request_id = "once"
    update = UpdateThreadRequest(namespace="team", thread="drop-1", update=ThreadOptions(agent="x"))
    update.update_mask.paths.append("agent")
    side = sides[0]
    with open_channel(side.daemon.wire.target.replace("unix:", "unix://"), wire) as channel:
        for name, request in (("ForkThread", fork), ("UpdateThread", update)):
            (found,) = answers_of(channel, METHODS[name], request, TOKENS["app"])
            shown: Any = fields_of(found)
            assert set(fields_of(shown["thread"])) == {"namespace", "thread", "uid"}, name
            assert shown["receipt"].uid == shown["thread"].uid
            assert set(fields_of(side.ask(name, request).thread)) > {"labels", "version"}, name
