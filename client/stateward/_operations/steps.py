"""What the client does, written once, without I/O, for both clients: the steps of operations.

Operations are generators. They yield one `Step` at a time, receive its answer or its error, and return their result.
`Client` and `AsyncClient` drive them, wrapped in `with_retries`. A write has the same request id in all its attempts,
so that a retry does no harm.

This module also has the parts of requests that several operations share.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from types import NoneType
from typing import Any, Protocol, SupportsIndex, TypeVar

from google.protobuf.message import Message

from stateward._operations.retry import Retry, UntilFree, never
from stateward.arguments import instance, message, several
from stateward.blobs import BlobAccess, Content
from stateward.errors import NotOwner, StatewardError, ThreadNotFound, UidMismatch
from stateward.models import At, Checkpoint, CheckpointId, ThreadInfo
from stateward.state import State
from stateward.v1 import checkpoint_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints

R = TypeVar("R", bound=Message)
E = TypeVar("E", bound=StatewardError)
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Call:
    """One attempt of a unary call. The answer is its response."""

    method: str
    request: Message
    deadline_s: float | None = None
    """The most time for the attempt, and for all retries while the daemon is away; None = the client's settings."""
    waits_for_owner: bool = True
    """Whether the call is retried while another sidecar holds the thread and seems to be dead."""


@dataclass(frozen=True, slots=True)
class Upload(Call):
    """One attempt to write a blob, or objects of a workspace: `request` begins it, `content` follows."""

    content: Content = field(kw_only=True)


@dataclass(frozen=True, slots=True)
class Download(Call):
    """One attempt to read a blob, or a range of it. The answer is its bytes."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Waits for a time."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Await:
    """Waits for an awaitable of the caller. Only AsyncClient can do that."""

    awaitable: Awaitable[Any]


@dataclass(frozen=True, slots=True)
class Work:
    """Calls a function that reads files, or computes for long. AsyncClient does so on another thread."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Collect:
    """Reads a stream to its end. The answer is the list of its items."""

    reader: Any
    """A `streams.Reader`."""


Step = Call | Pause | Await | Work | Collect
Operation = Generator[Step, Any, T]


def through(operation: Operation[T], perform: Callable[[Step], Operation[Any]]) -> Operation[T]:
    """Returns the same operation, with `perform` in place of each step: it may change the step or add others."""
    try:
        step = next(operation)
        while True:
            try:
                answer = yield from perform(step)
            except StatewardError as error:
                step = operation.throw(error)
            else:
                step = operation.send(answer)
    except StopIteration as stop:
        result: T = stop.value
        return result
    finally:
        operation.close()  # an interrupted save must not leave its state marked as being saved


def at_once(operation: Operation[T]) -> Operation[T]:
    """Returns the same operation, which does not wait for a thread that another sidecar holds."""

    def perform(step: Step) -> Operation[object]:
        return (yield replace(step, waits_for_owner=False) if isinstance(step, Call) else step)

    return through(operation, perform)


def with_retries(
    operation: Operation[T],
    patience_s: Callable[[], float],
    owner_patience_s: Callable[[], float] = lambda: 0.0,
    renew: Callable[[], bool] = never,
) -> Operation[T]:
    """Returns the same operation with retries of its calls: while the daemon is away, for at most `patience_s()`
    seconds; while another, idle sidecar holds the thread, until it is free, for at most `owner_patience_s()`; and once
    if its token is not valid and `renew` says that there may be another one."""

    def perform(step: Step) -> Operation[object]:
        retry = free = None
        while True:
            try:
                return (yield step)
            except StatewardError as error:
                if not isinstance(step, Call) or (isinstance(step, Upload) and not step.content.is_repeatable):
                    raise
                retry = retry or Retry(_patience_of(step, patience_s), renew)
                delay_s = retry.delay_after(error)
                if isinstance(error, NotOwner) and step.waits_for_owner:
                    free = free or UntilFree(_patience_of(step, owner_patience_s))
                    delay_s = free.delay_after(error)
                if delay_s is None:
                    raise
            yield Pause(delay_s)

    return through(operation, perform)


def _patience_of(call: Call, patience_s: Callable[[], float]) -> Callable[[], float]:
    limit_s = call.deadline_s
    return patience_s if limit_s is None else lambda: min(patience_s(), limit_s)


@dataclass(eq=False, slots=True)
class Held:
    """The leases that a handle holds on its thread, and the creation of the thread that it works on.

    A second lease may be taken while one is held.
    """

    _leases: list[tuple[int, str]] = field(default_factory=list)  # token, and uid of the thread
    read_uid: str = ""
    """The uid of the thread that the handle read or saved last. What it writes is meant for this creation. Empty = the
    handle knows the thread by its name only."""
    calls: int = 0
    """The number of calls that may have saved. A change tells a writer that others may have saved meanwhile."""

    @property
    def token(self) -> int:
        """The token of the lease that was taken last; 0 = none."""
        return self._leases[-1][0] if self._leases else 0

    @property
    def lease_uid(self) -> str:
        """The uid of the thread of that lease; empty = none. Another creation may give out the same token."""
        return self._leases[-1][1] if self._leases else ""

    @property
    def uid(self) -> str:
        """The uid that the handle expects of its thread; empty = any."""
        return self.lease_uid or self.read_uid

    @contextmanager
    def working_on_the_same(self) -> Iterator[None]:
        """Surrounds reads that a write makes: they do not turn the handle to another creation of the thread. The reads
        expect no uid, but the write does: if they find no thread, this raises UidMismatch as the write would."""
        before, expected = self.read_uid, self.uid
        try:
            yield
        except ThreadNotFound as error:
            if not expected:
                raise
            what = f"{error.message} any more: uid {expected} was expected; read the thread before the next write"
            raise thread_error(UidMismatch, error.thread, what, reason="UID_MISMATCH", expected_uid=expected) from None
        finally:
            self.read_uid = before or self.read_uid

    def for_call(self) -> int:
        """Counts a call that may save, and returns the token for it."""
        self.calls += 1
        return self.token

    def take(self, token: int, uid: str) -> None:
        """Makes this the lease under which the handle writes."""
        self._leases.append((token, uid))

    def give_back(self, token: int) -> None:
        """Returns to the lease that was taken before, or to none. Giving back again does nothing."""
        self._leases = [each for each in self._leases if each[0] != token]


class Migrating(Protocol):
    """The part of `stateward.migrations.Migrations` that operations use."""

    current: int
    """The schema version of this program."""

    @property
    def unsaid(self) -> int: ...

    def _require_path(self, thread: str, version: int, found: int) -> list[tuple[int, int]]: ...
    def _apply(self, thread: str, state: State, found: int, *, must_fit: bool = False) -> None: ...
    def _bring_up(self, ref: ThreadRef, state: State, read: Callable[[], Operation[State]]) -> Operation[State]: ...
    def _prepare_append(self, ref: ThreadRef) -> Operation[int]: ...
    def _prepare_reading(self, ref: ThreadRef, version: int | None) -> Operation[None]: ...


@dataclass(frozen=True)
class ThreadRef:
    """Names a branch of a thread, and makes requests about either. A missing branch starts from version `at`; None =
    from the empty state."""

    namespace: str
    thread: str
    branch: str
    at: int | None = None
    at_digest: bytes = b""
    blobs: BlobAccess | None = field(default=None, compare=False, repr=False)
    """Reads the blobs of the thread, and says which values become blobs; None = no value does."""
    migrations: Migrating | None = field(default=None, compare=False, repr=False)
    """Migrates states of older schemas when they are read; None = they stay as they are."""
    ephemeral: tuple[str, ...] = field(default=(), compare=False, repr=False)
    """Names of slots, and prefixes that end in "/", that are never saved."""
    held: Held = field(default_factory=Held, compare=False, repr=False)
    """The leases under which the handle writes. Handles on other branches that are made from it share them."""
    has_key: bool = field(default=False, compare=False)
    """Whether the handle has a session key, so that the thread is held."""

    def about(self, kind: Callable[..., R], **fields: Any) -> R:
        return message(kind, {"namespace": self.namespace, "thread": self.thread, **fields})

    def on_branch(self, kind: Callable[..., R], **fields: Any) -> R:
        return self.about(kind, branch=self.branch, **fields)

    def to_write(self, kind: Callable[..., R], **fields: Any) -> R:
        """Returns a request that writes the creation of the thread that the handle works on."""
        return self.about(kind, **{"expected_uid": self.held.uid, **fields})

    @property
    def start(self) -> checkpoint_pb2.VersionRef:
        """The version at which the branch begins, if it does not exist yet; 0 = the empty state."""
        return checkpoint_pb2.VersionRef(version=self.at or 0, digest=self.at_digest)


def check_options(options: Mapping[str, Any], known: Any, what: str) -> None:
    """Raises TypeError if an option is not in the TypedDict `known`."""
    if unknown := options.keys() - known.__optional_keys__:
        raise TypeError(f"{what} has no option {', '.join(sorted(unknown))}")


def thread_error(kind: type[E], thread: str, message: str, *, reason: str = "", **facts: str) -> E:
    """Returns an error that names a thread among its facts."""
    return kind(message, reason=reason, metadata={"thread": thread, **facts})


def read_pages(read: Callable[[Any], Operation[list[T]]], request: Any) -> Operation[list[T]]:
    """Returns all items of a list. `read` takes the request, returns a page, and sets the next page token."""
    found = yield from read(request)
    while request.page_token:
        found = found + (yield from read(request))
    return found


def limited(operation: Operation[T], left_s: Callable[[], float]) -> Operation[T]:
    """Returns the same operation; each of its calls, with its retries, takes at most `left_s()` seconds."""

    def perform(step: Step) -> Operation[object]:
        if isinstance(step, Call):
            most_s = left_s()
            step = replace(step, deadline_s=most_s if step.deadline_s is None else min(step.deadline_s, most_s))
        return (yield step)

    return through(operation, perform)


def new_request_id() -> str:
    """Returns 128 random bits, in hexadecimal."""
    return os.urandom(16).hex()


def expectation(expected: Checkpoint | ThreadInfo | int | None) -> dict[str, Any]:
    """Returns the fields that say which head is expected; none if any head is right."""
    if not isinstance(expected, Checkpoint | ThreadInfo):
        return {"expected_version": expected}
    return {"expected_version": expected.version, "expected_digest": expected.digest, **_uid_of(expected)}


def unchanged(shown: ThreadInfo | None) -> dict[str, Any]:
    """Returns the fields that say which journal is expected; none if any is right."""
    if shown is None:
        return {}
    instance(shown, "unchanged_since", ThreadInfo, "a ThreadInfo")
    return {"expected_sequence": shown.sequence, "expected_sequence_digest": shown.sequence_digest}


def _uid_of(checkpoint: Checkpoint | ThreadInfo) -> dict[str, Any]:
    return {"expected_uid": checkpoint.uid} if checkpoint.uid else {}


def version_ref(at: At | None, called: str = "at") -> checkpoint_pb2.VersionRef | None:
    """Returns the reference that names a version; None = the head. Errors name the argument that is `called` so."""
    if at is None:
        return None
    if isinstance(at, Checkpoint):
        given: dict[str, Any] = {"version": at.version, "digest": at.digest}
    elif isinstance(at, CheckpointId):
        given = {"checkpoint_id": at.id, "branch": "-" if at.any_branch else ""}
    elif isinstance(at, str):
        given = {"tag": at}
    elif isinstance(at, SupportsIndex):
        given = {"version": at}
    else:
        wanted = "a version, a Checkpoint, the name of a tag or a CheckpointId"
        raise TypeError(f"{called} takes {wanted}, not {at!r:.100}")
    return message(checkpoint_pb2.VersionRef, given)


def projection(
    slots: Iterable[str] | None, logs: Mapping[str, int | None] | Iterable[str] | None
) -> checkpoints.Projection | None:
    """Returns which parts of a state are to be read; None = all of it."""
    if slots is None and logs is None:
        return None
    if isinstance(slots, str) or isinstance(logs, str):
        raise TypeError("slots and logs take a list of names, not one name")
    chosen = logs if isinstance(logs, Mapping) else dict.fromkeys(several(logs or (), "logs", "names"))
    if wrong := {name: last for name, last in chosen.items() if not isinstance(last, (SupportsIndex, NoneType))}:
        raise TypeError(f"logs takes a number of entries, or None, for each log, not {wrong!r:.100}")
    selections = [message(checkpoints.LogSelection, {"log": name, "last": last}) for name, last in chosen.items()]
    return message(checkpoints.Projection, {"slots": slots or (), "logs": selections})


def timestamp(time: datetime | None) -> datetime | None:
    """Returns a time for a request, in UTC. A time without a time zone is local time, as everywhere in Python."""
    return None if time is None else time.astimezone(UTC)
