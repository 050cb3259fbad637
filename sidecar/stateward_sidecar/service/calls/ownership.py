"""Wraps every call on a thread: who may write it, how new this disk must be, and how durable its entry.

A verb of the store runs against this disk. ``Ownership`` makes sure that the disk is up to date: before a write, that
this process holds the thread; before a read, that this disk has what the archive has. If a verb fails because the
thread was given up, taken or deleted meanwhile, or because only the archive has the history, Ownership mends that and
runs the verb again. Without an archive it does nothing.

Whoever waits for a durability level names the entry by its digest, on a line that has a number on this disk. A thread
is not looked up by its name a second time, because after a takeover another line has the name. The loop looks in memory
and at entries that were written a moment ago. Another thread looks for all other entries, because that may wait for the
disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable, Sequence
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeVar

import grpc.aio

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, DURABILITY_COMMITTED, Durability
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    Corrupt,
    HistoryElsewhere,
    NewerFormat,
    NoArchive,
    NotOwner,
    StatewardError,
    ThreadNotFound,
    UidMismatch,
    Unclaimed,
    VersionMismatch,
    VersionPruned,
    kept_until_upgrade,
)
from stateward_sidecar.service.admission.gate import Gate
from stateward_sidecar.service.admission.held import HeldGate, held_call
from stateward_sidecar.service.checks.check import in_item
from stateward_sidecar.service.methods import WriteRequest, must_exist
from stateward_sidecar.spans import span
from stateward_sidecar.store.journal.finding import Written
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.thread import Thread

if TYPE_CHECKING:  # a daemon without an archive does not load it
    from stateward_sidecar.archive.archive import Archive

T = TypeVar("T")
# How long an answer waits for the archive without a deadline, and how long before a deadline it is sent.
WAIT_MAX_S = 30.0
MARGIN_S, MARGIN_SHARE = 0.5, 0.1


def session_key() -> bytes:
    """Returns the session key of the current call; empty if it has none."""
    call = held_call.get()
    return call.key if call is not None else b""


class _Request(Protocol):
    namespace: str
    thread: str


def written(request: _Request, receipt: Receipt) -> Written:
    """Returns the entry that a receipt is about."""
    return Written(request.namespace, request.thread, receipt.sequence, receipt.uid, receipt.digest)


async def archived(
    store: Store, archive: Archive, entry: Written, context: grpc.aio.ServicerContext | None
) -> tuple[Durability, int]:
    """After a commit, waits until the entry is archived, or the deadline is near.

    Returns the level reached, and the sequence up to which the line is archived. Raises Fenced if a takeover left the
    entry out of history, and NewerFormat if nobody here can tell.
    """
    line = store.lines.find_hot(entry)
    if line is None:
        try:
            async with asyncio.timeout(timeout_s(context)):
                line = await _aside(archive, entry, store.read, store.lines.find, entry)
        except (HistoryElsewhere, VersionPruned, TimeoutError):
            line = None
    if line is None:  # deleted in the meantime
        return DURABILITY_COMMITTED, 0
    return await await_archived(archive, line, entry.sequence, context)


async def await_archived(
    archive: Archive, line: Thread, sequence: int, context: grpc.aio.ServicerContext | None
) -> tuple[Durability, int]:
    """Waits like ``archived``, for a sequence of a line."""
    future: Future[None] | None = None
    try:
        async with asyncio.timeout(timeout_s(context)):
            if archive.in_memory(line) is None:
                await _aside(archive, line.number, archive.line, line)
            future = archive.wait(line, sequence)
            if future is not None:
                with span("archive"):
                    await asyncio.wrap_future(future)
    except NewerFormat as error:  # like Fenced: this entry may never become history
        raise kept_until_upgrade(error, sequence) from None
    except (TimeoutError, Corrupt):  # too late, or HEAD was set back: the level reached is COMMITTED
        if future is not None:
            archive.state.waiters.drop(line.number, future)
        return DURABILITY_COMMITTED, (archive.in_memory(line) or line).archived_sequence
    except asyncio.CancelledError:  # the caller left; while the bucket is away, its waiter would be kept for hours
        if future is not None:
            archive.state.waiters.drop(line.number, future)
        raise
    return DURABILITY_ARCHIVED, max((archive.in_memory(line) or line).archived_sequence, sequence)


def timeout_s(context: grpc.aio.ServicerContext | None) -> float:
    """Returns how long an answer may wait for the archive. ``context``: None = a stream, which has no deadline."""
    remaining = context.time_remaining() if context is not None else None
    return WAIT_MAX_S if remaining is None else max(remaining - min(MARGIN_S, remaining * MARGIN_SHARE), 0.0)


async def _aside(archive: Archive, name: Hashable, verb: Callable[..., T], *arguments: Any) -> T:
    """Runs a verb that may wait for a disk, where it delays neither the loop nor the agents' threads."""
    return await asyncio.wrap_future(archive.lanes.call(("level", name), verb, *arguments))


class _Answer(Protocol):
    @property
    def receipt(self) -> Receipt:
        """What every write answers."""


A = TypeVar("A", bound=_Answer)
FETCHED_TOGETHER = 4
ROUNDS = 4
# How long reads wait for HEAD to show whether another sidecar has taken the thread. A slower bucket counts as away:
# until it answers, later reads of the thread wait for MOMENT_S only.
CHECK_WAIT_S, MOMENT_S = 1.0, 0.01


class Place(NamedTuple):
    """A thread that a verb writes."""

    namespace: str
    thread: str
    must_exist: bool = False
    # The call asks for ARCHIVED, so it must be possible.
    is_archived: bool = False
    item: str = ""  # the item of a batch that errors name


class Ownership:
    """Runs verbs on threads that this process may write or read."""

    def __init__(
        self, store: Store, archive: Archive | None, default_durability: Durability, held: HeldGate | None = None
    ) -> None:
        self._store = store
        self.archive = archive
        self.default_durability = default_durability
        self.gate = Gate()
        self._held = held
        # Questions under way whether threads that this process holds are still its own, and until when reads wait for
        # them. Reads of one thread ask together.
        self._checks: dict[tuple[str, str], tuple[asyncio.Future[None], float]] = {}

    async def block(self, name: Hashable, verb: Callable[..., T], *arguments: Any) -> T:
        """Runs a verb that waits for the bucket. It delays only tasks of the same name."""
        return await asyncio.wrap_future(self.need().lanes.call(name, verb, *arguments))

    def need(self) -> Archive:
        """Returns the archive. Raises NoArchive."""
        if self.archive is None:
            raise NoArchive("this daemon has no archive; start it with: stateward-sidecar --archive URL")
        return self.archive

    # -- before and around a verb ---------------------------------------------------------------------------------

    def is_held(self, namespace: str, thread: str) -> bool:
        """Whether this process holds a thread, or has no archive. Asks nobody."""
        return self.archive is None or self.archive.holds(namespace, thread) is not None

    def may_write(self, namespace: str, thread: str) -> bool:
        """Whether the next write passes without asking the archive."""
        return self.archive is None or self.archive.may_write(namespace, thread)

    def is_fresh(self, namespace: str, thread: str) -> bool:
        """Whether a thread can be read from memory without asking the archive."""
        return self.archive is None or self.archive.is_fresh(namespace, thread)

    async def write(
        self,
        namespace: str,
        thread: str,
        verb: Callable[[], Awaitable[T]],
        *,
        must_exist: bool = False,
        is_archived: bool = False,
    ) -> T:
        """Takes the thread if needed, then runs a writing verb on it.

        ``is_archived``: the call asks for ARCHIVED, so it must be possible. Raises NotOwner, Fenced, ShuttingDown, and
        the errors of the verb.
        """
        return await self.write_all([Place(namespace, thread, must_exist, is_archived)], verb)

    async def write_one(
        self, request: WriteRequest, verb: Callable[[], Awaitable[A]], context: grpc.aio.ServicerContext | None
    ) -> A:
        """Runs the verb of a write on the thread that the request names, and waits for the level that it asks for."""
        is_archived = self.asks_for_archived(request.options.durability)
        if self.archive is None:  # the gate was asked at the door, and a drain ships nothing
            return await verb()
        answer = await self.write(
            request.namespace, request.thread, verb, must_exist=must_exist(request), is_archived=is_archived
        )
        if is_archived:
            await self.reach(request, answer.receipt, context)
        return answer

    async def reach(self, request: WriteRequest, receipt: Receipt, context: grpc.aio.ServicerContext | None) -> None:
        """Waits until the entry of a write is archived, or until its caller's deadline is near. Changes the receipt."""
        await self.reach_of(request.namespace, request.thread, receipt, context)

    async def reach_of(
        self, namespace: str, thread: str, receipt: Receipt, context: grpc.aio.ServicerContext | None
    ) -> None:
        """Does the same for a thread that the request does not name as its own."""
        if receipt.sequence:
            entry = Written(namespace, thread, receipt.sequence, receipt.uid, receipt.digest)
            receipt.durability, receipt.archived_sequence = await self.archived(entry, context)

    async def write_all(self, places: Sequence[Place], verb: Callable[[], Awaitable[T]]) -> T:
        """Like ``write``, for a verb that writes several threads."""
        with self.gate:
            if self.archive is None:
                return await verb()
            claimed = list[Place]()
            try:
                return await self._write(places, verb, claimed)
            except (Exception, asyncio.CancelledError):
                for place in claimed:
                    self.give_back(place.namespace, place.thread)
                raise

    def give_back(self, namespace: str, thread: str) -> None:
        """Gives a name back, in the background, that was claimed for a write that failed. See ``Attacher.unclaim``."""
        self.need().lanes.call((namespace, thread), self.need().unclaim, namespace, thread)

    async def _write(self, places: Sequence[Place], verb: Callable[[], Awaitable[T]], claimed: list[Place]) -> T:
        """Runs one loop for all threads, so that the rounds of one thread do not multiply with those of another.

        A name without a thread is claimed only when the verb is about to make the thread. So a save that must fail, for
        example under a wrong name, leaves nothing in the archive. ``claimed`` gets the names that were claimed.
        """
        archive = self.need()
        rounds: dict[str, Rounds] = {}
        confirmed, claims = set[str](), False  # names for which HEAD was read after the verb failed
        asked = [place for place in places if archive.holds(place.namespace, place.thread) is None]
        while True:
            for place in asked:
                self.gate.check()  # a write under way must not take back what a drain gave up
                if await self._own_place(place, claims=claims):
                    claimed.append(place)
            for place in places:
                if place.is_archived:
                    self._check_place(place)
            held = [archive.holds(place.namespace, place.thread) for place in places if place.thread in confirmed]
            try:
                return await verb()
            except (HistoryElsewhere, NotOwner, ThreadNotFound, UidMismatch, VersionMismatch) as error:
                name = error.metadata.get("thread", "")
                count = rounds.setdefault(name, Rounds()).count(error)
                claims = claims or isinstance(error, Unclaimed)  # all that the write checks is right
                if not isinstance(error, VersionMismatch) and not _may_be_behind(error):
                    asked = await self._ask_again(error, places, count)
                    continue
                # A copy that was deleted on this disk during the call says nothing of the thread. It may be back.
                still = [archive.holds(place.namespace, place.thread) for place in places if place.thread in confirmed]
                is_proven = name in confirmed and held == still
                if is_proven or not _may_be_behind(error) or count == ROUNDS:
                    raise
                confirmed.add(name)
                asked = [place for place in places if place.thread == name and not await self._is_ours_still(place)]

    async def _ask_again(self, error: StatewardError, places: Sequence[Place], count: int) -> list[Place]:
        """Mends what a verb failed for, for the ``count``-th time. Returns the threads to own before it runs again."""
        archive, name = self.need(), error.metadata.get("thread", "")
        if isinstance(error, HistoryElsewhere):
            await self.complete(error, count)
            return []
        # The thread was given up, taken or deleted during the call. The next round asks who owns it now.
        if count == ROUNDS or all(place.thread != name for place in places):
            raise error
        return [
            place for place in places
            if place.thread == name or archive.holds(place.namespace, place.thread) is None
        ]  # fmt: skip

    async def _is_ours_still(self, place: Place) -> bool:
        name = place.namespace, place.thread
        try:
            return await self.block(name, self.need().confirm, *name)
        except StatewardError as error:
            raise in_item(error, place.item) from None

    async def _own_place(self, place: Place, *, claims: bool) -> bool:
        try:
            return await self._own(place.namespace, place.thread, must_exist=place.must_exist, claims=claims)
        except StatewardError as error:
            raise in_item(error, place.item) from None

    def _check_place(self, place: Place) -> None:
        try:
            self.check_archivable(place.namespace, place.thread)
        except StatewardError as error:
            raise in_item(error, place.item) from None

    async def try_hold(self, place: Place) -> StatewardError | None:
        """Takes a thread that exists, if needed, once. Returns the error if this process does not get it.

        For a thread that only guards a save: the save may be a retry, which is answered without it. A lock is often
        idle, and another sidecar may have taken it unnoticed. Nothing would fence the save, so HEAD is asked as for a
        read.
        """
        archive, name = self.archive, (place.namespace, place.thread)
        if archive is None or archive.is_fresh(*name):
            return None
        with self.gate:
            try:
                if archive.holds(*name) is not None:
                    await self.know(*name)
                if archive.holds(*name) is None:
                    await self._own(*name, must_exist=True)
            except StatewardError as error:
                return error
        return None

    async def hold(self, namespace: str, thread: str, *, must_exist: bool, claims: bool = True) -> bool:
        """Takes the thread if needed, once. For work that cannot be repeated. Returns whether it claimed the name: if
        the work fails, the caller gives it back. With ``claims=False`` a name that has no thread is left alone."""
        if self.archive is None or self.archive.holds(namespace, thread) is not None:
            return False
        return await self._own(namespace, thread, must_exist=must_exist, claims=claims)

    async def hold_now(self, namespace: str, thread: str, *, must_exist: bool) -> None:
        """Asks HEAD, and takes the thread that the archive has unless it is this process's already."""
        if self.archive is not None and not await self._is_ours_still(Place(namespace, thread)):
            await self._own(namespace, thread, must_exist=must_exist)

    async def _own(self, namespace: str, thread: str, *, must_exist: bool, claims: bool = True) -> bool:
        """Takes the thread. Returns whether it claimed a name that has no thread."""
        archive = self.need()
        was_claimed = archive.has_claimed(namespace, thread)

        key = session_key()

        def own() -> None:
            archive.own(namespace, thread, must_exist=must_exist, claims=claims, session_key=key)

        await self.block((namespace, thread), own)
        self.ask(namespace, thread)
        return not was_claimed and archive.has_claimed(namespace, thread)

    async def read(self, namespace: str, thread: str, verb: Callable[[], Awaitable[T]]) -> T:
        """Brings this disk up to date unless the thread is fresh, then runs a reading verb and raises its errors."""
        archive = self.archive
        if archive is None:
            return await verb()
        is_healed, rounds = False, Rounds()
        while rounds.left():
            if not archive.is_fresh(namespace, thread):
                await self.know(namespace, thread)
            try:
                return await verb()
            except HistoryElsewhere as error:
                rounds.count(error)
                await self._complete(error)
            except (ThreadNotFound, UidMismatch):
                # The thread was deleted on this disk during the call. The next round asks whether the archive has it.
                rounds.count()
                if not rounds.left():
                    raise
            except Corrupt:
                # Perhaps an object was missing because the bucket did not answer at the time.
                if is_healed or not await self._heal(namespace, thread):
                    raise
                is_healed = True
                rounds.count()
        raise _unfetched(thread)

    async def know(self, namespace: str, thread: str) -> None:
        """Asks HEAD. For a thread that this process holds, waits for the answer only ``CHECK_WAIT_S``."""
        archive, name = self.need(), (namespace, thread)
        if archive.holds(namespace, thread) is None:
            await self.block(name, archive.know, namespace, thread, session_key())
            self.ask(namespace, thread)
            return
        now = asyncio.get_running_loop().time()
        checking, until = self._checks.get(name, (None, 0.0))
        if checking is None:
            asking = self.block(name, archive.know, *name, session_key())
            checking, until = asyncio.ensure_future(asking), now + CHECK_WAIT_S
            self._checks[name] = checking, until
            checking.add_done_callback(lambda _: self._checks.pop(name, None))
            checking.add_done_callback(lambda done: done.cancelled() or done.exception())
        await asyncio.wait((checking,), timeout=max(until - now, MOMENT_S))
        if checking.done():
            checking.result()
        self.ask(namespace, thread)

    def ask(self, namespace: str, thread: str) -> None:
        """Asks the current call for the session key of a thread that has come to this disk. Raises Locked,
        InvalidField."""
        if self._held is not None:
            self._held.ask(namespace, thread)

    async def _heal(self, namespace: str, thread: str) -> bool:
        with suppress(StatewardError):  # the first error is the one to raise
            return await self.block((namespace, thread), self.need().heal, namespace, thread)
        return False

    async def complete(self, error: HistoryElsewhere, count: int) -> None:
        """Fetches the history that a verb missed, for the ``count``-th time in a row. Raises ArchiveUnavailable if that
        does not help."""
        if self.archive is None or count == ROUNDS:
            raise _unfetched(error.metadata["thread"])
        await self._complete(error)

    async def _complete(self, error: HistoryElsewhere) -> None:
        try:
            await self._fetch(error)
        except ThreadNotFound:  # the copy was deleted on this disk meanwhile, or is of a creation that was deleted
            name = error.metadata["namespace"], error.metadata["thread"]
            await self.block(name, self.need().confirm, *name)

    async def _fetch(self, error: HistoryElsewhere) -> None:
        archive, name = self.need(), (error.metadata["namespace"], error.metadata["thread"])
        if "blobs" not in error.metadata:
            complete = partial(archive.complete, for_retry=bool(error.metadata["for_retry"]))
            await self.block(name, complete, *name)
            return
        missed = list(map(bytes.fromhex, error.metadata["blobs"].split(",")))

        async def fetch(sha256: bytes) -> None:
            await self.block((*name, sha256), archive.fetch_blob, *name, sha256)

        for at in range(0, len(missed), FETCHED_TOGETHER):
            if len(missed) == 1:  # nearly always
                await fetch(missed[0])
                continue
            done = await asyncio.gather(*map(fetch, missed[at : at + FETCHED_TOGETHER]), return_exceptions=True)
            for result in done:  # all have ended
                if isinstance(result, BaseException):
                    raise result

    # -- durability -----------------------------------------------------------------------------------------------

    def asks_for_archived(self, durability: int) -> bool:
        """Whether a call asks for ARCHIVED. Raises NoArchive or ArchiveUnavailable, before anything is written."""
        wanted = durability or self.default_durability
        if wanted != DURABILITY_ARCHIVED:
            return False
        if self.archive is None:
            raise NoArchive("the call asks for ARCHIVED, and this daemon has no archive; nothing was written")
        self.archive.check_reachable()
        return True

    def check_archivable(self, namespace: str, thread: str) -> None:
        """Raises an error if a thread that this process holds cannot be archived."""
        self.need().check_archivable(namespace, thread)

    async def archived(
        self, written: Written, context: grpc.aio.ServicerContext | None
    ) -> tuple[Durability, int]:
        """See ``levels.archived``."""
        return await archived(self._store, self.need(), written, context)


class Rounds:
    """How often a verb may be tried again. Blobs that were not missed before do not count: the verb has got further."""

    def __init__(self) -> None:
        self._done = 0
        self._missed = set[str]()

    def left(self) -> bool:
        """Whether there is a round left."""
        return self._done < ROUNDS

    def count(self, error: StatewardError | None = None) -> int:
        """Counts a round that ended with an error. Returns how many were counted."""
        missed = set((error.metadata.get("blobs") or "").split(",")) - {""} if error is not None else set[str]()
        if not missed or missed & self._missed:
            self._done += 1
        self._missed |= missed
        return max(self._done, 1)


def _may_be_behind(error: StatewardError) -> bool:
    """Whether a caller expects what this sidecar's successor may have: a later version, or another creation."""
    if isinstance(error, UidMismatch):
        return True
    facts = error.metadata
    is_mismatch = isinstance(error, VersionMismatch)
    return is_mismatch and int(facts.get("expected_version", 0)) >= int(facts.get("current_version", 0))


def _unfetched(thread: str) -> ArchiveUnavailable:
    return ArchiveUnavailable(f"the history of thread {thread!r} could not be fetched from the archive; try again")
