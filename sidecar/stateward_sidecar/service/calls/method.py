"""Receives a call's messages and returns its answer: limits before parsing, and shares of memory.

A small message is parsed at once. A larger one is counted first (``weight.py``) and takes a share of the budget
(``memory.py``). A very large one is parsed on the parser thread.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from time import time
from typing import TypeVar, cast

import grpc.aio
from google.protobuf.message import DecodeError, Message

from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest
from stateward.v1.thread_pb2 import ThreadInfo
from stateward_sidecar.errors import InvalidField, QueueFull, StateTooLarge
from stateward_sidecar.service.admission.callers import Callers, Peer, peer_of_certificate
from stateward_sidecar.service.admission.grants import Caller, Need
from stateward_sidecar.service.admission.held import HeldCall, HeldGate
from stateward_sidecar.service.admission.limits import Places
from stateward_sidecar.service.admission.memory import ANSWER_SHARE, FREE_ANSWER_BYTES, Reserved, Room, Share
from stateward_sidecar.service.admission.order import Turns, flow_of
from stateward_sidecar.service.admission.weight import count_items
from stateward_sidecar.service.calls.localcall import LocalCall
from stateward_sidecar.service.methods import READ, Facts
from stateward_sidecar.spans import call_id
from stateward_sidecar.store.thread.paging import small_pages

T = TypeVar("T")
B = TypeVar("B", bound=bytes | bytearray)
Answer = Message | bytes | Reserved
# Messages up to this size are parsed at once, and their memory is not counted.
FREE_BYTES = 4 << 10
# Larger messages are counted before they are parsed. For smaller ones the worst case is assumed.
COUNTED_FROM_BYTES = 64 << 10
# Larger messages are parsed on the parser thread.
ASIDE_BYTES = 1 << 20
# Bytes of memory that a request needs until it is on disk, for each of its bytes and items (tests/soak/hostile.py).
WORST_SHARE, BYTE_SHARE, ITEM_SHARE = 16, 5, 200
# A message that is being received: gRPC has three copies of it for a moment. If memory has no room for TIGHT_MESSAGES
# messages, they are received one after another, unless one takes longer than RECEIVING_S. Until such a slow message is
# whole, gRPC has one copy of the received part.
RECEIVING_SHARE, TIGHT_MESSAGES, RECEIVING_S, SLOW_SHARE = 3, 8, 1.0, 1

# Who makes the call that the current task works on; None = anybody may do everything.
caller_of_call: ContextVar[Caller | None] = ContextVar("caller_of_call", default=None)

# Through which principal's socket a call over gRPC has come; None = one of everybody.
socket_of_call: ContextVar[Path | None] = ContextVar("socket_of_call", default=None)

# The size of the message that the current task works on. To ask the message itself would encode it again, which takes
# three times its memory.
message_bytes: ContextVar[int] = ContextVar("message_bytes", default=0)


@dataclass(frozen=True, slots=True)
class Method:
    """The limits and resources of a method's calls."""

    name: str
    request_class: type[Message]
    # The size of the largest message.
    bytes_max: int
    # Entered before the message is read. Raises the error that refuses the call.
    door: AbstractContextManager[None]
    room: Room
    turns: Turns
    # Whether a call makes work. The other calls are reads.
    is_write: bool
    # Whether such messages are received one after another, because a few of them would take all memory.
    is_tight: bool
    # Whether the call may be made again without another effect. Then its answer may be, too.
    is_repeatable: bool = False
    # Whether a call keeps memory from one message to the next.
    is_holding: bool = False
    # Whether the message has a request id, which log lines about the call then have.
    has_options: bool = False
    # Whether a call may wait for hours, so that it ends as streams do when what allows it is taken away.
    may_wait: bool = False
    # Who may call; None = anybody.
    callers: Callers | None = None
    # What a caller needs.
    needs: tuple[Need, ...] = ()
    # What is true of the method.
    facts: Facts = READ
    # Whether calls are calls of others, which have limits of their own.
    carries_calls: bool = False
    # Asks for the keys of held threads; None = the method needs none.
    held: HeldGate | None = None

    @property
    def has_held(self) -> bool:
        """Whether there are held threads that calls may name."""
        return self.held is not None and self.held.has_threads

    def begin_held(self, context: grpc.aio.ServicerContext) -> HeldCall | None:
        """A call begins: the held threads that it names stay open until ``end_held``. Raises InvalidField."""
        return self.held.begin(context) if self.held is not None else None

    @staticmethod
    def end_held(call: HeldCall | None) -> None:
        """The call has ended."""
        if call is not None:
            call.close()

    @contextmanager
    def keeping(self, context: grpc.aio.ServicerContext) -> Iterator[HeldCall | None]:
        """Surrounds a stream: the held threads that it names stay open until its end. Raises InvalidField."""
        if self.held is None:
            yield None
            return
        call = self.held.begin_stream(context)
        try:
            yield call
        finally:
            call.close()

    def enter(self, context: grpc.aio.ServicerContext) -> Places | None:
        """Returns the place that a call has taken of its principal's; None = there is no limit. Raises Unauthenticated,
        QuotaExceeded."""
        found = self.identify(context)
        if found is None or found.principal.allowance is None:
            return None
        places = found.principal.allowance.places_of(self.facts)
        places.enter()
        return places

    def spend(self, request: Message) -> None:
        """Counts the saves of a request. Raises QuotaExceeded."""
        if self.facts.stores and (found := caller_of_call.get()) is not None:
            spend(found, request)

    def follow(self, request: Message) -> None:
        """Gives a call that follows something the place of a stream. Raises QuotaExceeded."""
        if not self.facts.follows or not request.HasField("wait"):
            return
        found = caller_of_call.get()
        if found is not None and found.place is not None and found.principal.allowance is not None:
            found.place.move(found.principal.allowance.streams)

    async def pace(self) -> None:
        """Counts a save of a stream, and waits until it may be made."""
        if self.facts.stores and (found := caller_of_call.get()) is not None and found.principal.allowance is not None:
            await found.principal.allowance.pace.wait()

    def identify(self, context: grpc.aio.ServicerContext) -> Caller | None:
        """Returns who calls; None = anybody may. Raises Unauthenticated."""
        if self.callers is None:
            return None
        found = self.callers.identify(context.invocation_metadata(), peer_of(context))
        caller_of_call.set(found)
        return found

    @contextmanager
    def holding(self, context: grpc.aio.ServicerContext) -> Iterator[Caller | None]:
        """Surrounds a stream, which ends when what allows it is taken away. Raises Unauthenticated, QuotaExceeded."""
        if self.callers is None:
            yield None
            return
        with self.callers.holding(context.invocation_metadata(), peer_of(context)) as found:
            caller_of_call.set(found)
            allowance = found.principal.allowance
            if allowance is None:
                yield found
                return
            if self.carries_calls:  # each of its calls has a place of its own
                yield found
                return
            # A call that waits is held as a stream is, and counts as a call, unless it follows something.
            with (allowance.places_of(self.facts) if self.may_wait else allowance.streams).taken() as found.place:
                yield found

    def admit(self, request: Message, *, is_kept: bool = False) -> None:
        """Raises PermissionDenied if the caller lacks what a request needs."""
        if (found := caller_of_call.get()) is not None:
            found.admit(self.needs, request, is_kept=is_kept)

    def admit_now(self, request: Message, context: grpc.aio.ServicerContext) -> None:
        """The same, by the files as they are now: a call may have waited for its message, or for its answer. Raises
        Unauthenticated, too."""
        found = caller_of_call.get()
        assert self.callers is not None
        has_changed = found is None or (found.changes != self.callers.changes and not self.may_wait)
        if has_changed or (found is not None and found.ends_s <= time()):
            self.identify(context)
        self.admit(request, is_kept=self.may_wait)

    async def read(self, context: grpc.aio.ServicerContext) -> tuple[Message | None, Share | None]:
        """Returns the next message of a stream (None after the last one), and the share of memory of a large message.

        Raises InvalidField, StateTooLarge, QueueFull.
        """
        if isinstance(context, LocalCall):
            arrived = await context.take()
            return await self.open_counted(*arrived) if arrived is not None else (None, None)
        data = await self.receive(context)
        return await self.open(data) if data is not None else (None, None)

    async def receive(self, context: grpc.aio.ServicerContext, held: Share | None = None) -> bytes | None:
        """Returns the bytes of the next message; None after the last one. Raises StateTooLarge, QueueFull.

        A client that sends its only message slowly loses its place. If others need the memory of the unfinished
        message, the call is refused.
        """
        waiting, slow = self.room.unfinished.begin(is_stream=held is None), None
        if held is not None:
            size_bytes = SLOW_SHARE * self.bytes_max
            slow = asyncio.get_running_loop().call_later(RECEIVING_S, held.slow_down, size_bytes, waiting.refuse)
        try:
            data = await context.read()
        except asyncio.CancelledError:
            # Written out, because ``asyncio.timeout`` would cost every call as much as its check.
            if not waiting.is_refused or waiting.task is None or waiting.task.uncancel():
                raise
            what = "the message did not come in time, and others need the memory; try again"
            raise QueueFull(what, queued=0) from None
        finally:
            self.room.unfinished.end(waiting)
            if held is not None and slow is not None:
                slow.cancel()
                if held.size_bytes:  # that of a message that was not slow is not counted, and nobody refuses it
                    held.arrive()
        if data is grpc.aio.EOF:
            return None
        if len(data) > self.bytes_max:
            what = f"the {self.request_class.DESCRIPTOR.name} has {len(data)} bytes, more than the limit of"
            raise StateTooLarge(len(data), self.bytes_max, f"{what} {self.bytes_max}")
        return cast(bytes, data)

    async def open(self, data: bytes, held: Share | None = None) -> tuple[Message, Share | None]:
        """Returns a message, and the share of memory of a large one. Raises InvalidField, QueueFull."""
        message_bytes.set(len(data))
        if len(data) <= FREE_BYTES:
            return self.parse(data), None
        share = await self._weigh(data, held)
        try:
            request = await self.aside(data, self.parse)
        except BaseException:
            share.close()
            raise
        self.room.tidy(len(data))  # gRPC had copies of it
        return request, share

    async def open_counted(self, data: bytes | bytearray, share: Share | None) -> tuple[Message, Share | None]:
        """Returns a message of the local wire, and its share of memory.

        ``share``: what a large one was given for its bytes before it came. Its items are counted now. Raises
        InvalidField, QueueFull.
        """
        if share is None:
            return await self.open(cast(bytes, data))  # a small one is
        message_bytes.set(len(data))
        try:
            items_bytes = ITEM_SHARE * await self.aside(data, self._count)
            await self.room.requests.enlarge(share, items_bytes)
            return await self.aside(data, self.parse), share
        except BaseException:
            share.close()
            raise

    async def read_only(self, context: grpc.aio.ServicerContext) -> tuple[Message, Share | None]:
        """Returns the only message of a call, when the call may begin. Raises the errors of ``read``."""
        if isinstance(context, LocalCall):
            request, share = await self.read(context)
        else:
            requests, request, share = self.room.requests, None, None
            # If memory is scarce, a large message is received only when there is room for it.
            held = await requests.take(RECEIVING_SHARE * self.bytes_max) if self.is_tight else Share(requests, 0)
            try:
                if (data := await self.receive(context, held)) is not None:
                    request, share = await self.open(data, held)
            finally:
                if held.size_bytes and held is not share:
                    held.close()
        if request is None:
            raise InvalidField("request", "no message was sent")
        if self.has_options:
            call_id.set(request.options.request_id)  # type: ignore[attr-defined]
        if isinstance(context, LocalCall) and context.has_turn:
            return request, share
        if self.turns.passes(is_write=self.is_write):
            return request, share
        try:
            await self.turns.wait_in_line(flow_of(request, self.name), is_write=self.is_write)
        except BaseException:
            if share is not None:
                share.close()
            raise
        return request, share

    def parse(self, data: bytes | bytearray) -> Message:
        """Parses a message. Raises InvalidField."""
        try:
            return self.request_class.FromString(cast(bytes, data))  # it takes both
        except DecodeError:
            raise InvalidField("request", f"the bytes are not a {self.request_class.DESCRIPTOR.name}") from None

    async def _weigh(self, data: bytes, held: Share | None) -> Share:
        """Returns the share of memory for a message. Raises QueueFull, and InvalidField if it has too many items."""
        size_bytes = WORST_SHARE * len(data)
        if len(data) > COUNTED_FROM_BYTES:
            items = await self.aside(data, self._count)
            size_bytes = BYTE_SHARE * len(data) + ITEM_SHARE * items
        if held is None or not self.is_tight:
            if held is not None:
                held.settle(0)  # else a slow message would wait for its own room
            return await self.room.requests.take(size_bytes, is_ahead=self.is_holding)
        held.settle(size_bytes)
        return held

    async def aside(self, data: B, verb: Callable[[B], T]) -> T:
        """Runs a verb with the bytes of a message: of a large one on the parser thread."""
        if len(data) <= ASIDE_BYTES:
            return verb(data)
        return await asyncio.get_running_loop().run_in_executor(self.room.parser, verb, data)

    def _count(self, data: bytes | bytearray) -> int:
        try:
            return count_items(self.request_class.DESCRIPTOR, data)
        except DecodeError:
            raise InvalidField("request", f"the bytes are not a {self.request_class.DESCRIPTOR.name}") from None

    async def hand_out(
        self, answer: Answer, again: Callable[[], Awaitable[Answer]], context: grpc.aio.ServicerContext
    ) -> bytes:
        """Returns an answer as bytes for gRPC. The memory of a large one is counted until its client has taken it.

        If untaken answers leave no room for it, it is dropped and made again by ``again``: first with a small page, and
        then, if it has no pages, when there is room. Raises QueueFull, and the errors of ``again``.
        """
        data, share = _as_bytes(answer) if isinstance(answer, Reserved) else (answer, None)
        del answer
        if isinstance(data, Message):
            data = data.SerializeToString()
        need_bytes, answers = ANSWER_SHARE * len(data), self.room.answers
        if len(data) <= FREE_ANSWER_BYTES:
            if share is not None:
                share.close()
            return data
        if share is None:
            if answers.has_room(need_bytes):
                share = answers.grant(need_bytes)
            elif self.is_repeatable:
                del data
                with small_pages():
                    data, share = await self._made_again(again)
            else:
                share = await answers.take(need_bytes)
        share.settle(ANSWER_SHARE * len(data))
        context.add_done_callback(share.close)
        return data

    async def _made_again(self, again: Callable[[], Awaitable[Answer]]) -> tuple[bytes, Share]:
        answers = self.room.answers
        data = _as_bytes(await again())[0]
        need_bytes = ANSWER_SHARE * len(data)
        if len(data) <= FREE_ANSWER_BYTES or answers.has_room(need_bytes):
            return data, answers.grant(need_bytes)
        del data
        share = await answers.take(need_bytes)
        try:
            return _as_bytes(await again())[0], share
        except BaseException:
            share.close()
            raise


def spend(caller: Caller, request: Message) -> None:
    """Counts the saves of a request that stores something. Raises QuotaExceeded."""
    if caller.principal.allowance is not None:
        saves = len(request.saves) if isinstance(request, BatchSaveRequest) else 1
        caller.principal.allowance.pace.spend(saves)


def peer_of(context: grpc.aio.ServicerContext) -> Peer:
    """Returns what is known of a caller beside its token."""
    if isinstance(context, LocalCall):
        peer = context.peer
        return Peer((peer.uid, peer.gid) if peer.uid >= 0 else None, socket=peer.socket)
    if (own := socket_of_call.get()) is not None:
        return Peer(socket=own)
    return peer_of_certificate(context.auth_context())


def reading_of(namespace: str, *, is_stream: bool = False) -> Callable[[str], bool] | None:
    """Returns what says which threads the caller of the current call may read; None = every one. ``is_stream``: what it
    says changes with the file of principals."""
    found = caller_of_call.get()
    return None if found is None else found.reading(namespace, is_stream=is_stream)


def hide(view: ThreadInfo, may_read: Callable[[str], bool] | None) -> None:
    """Removes from a view of a thread what its caller may not read: its content, or the name of its origin."""
    if may_read is None:
        return
    if not may_read(view.thread):
        view.CopyFrom(ThreadInfo(namespace=view.namespace, thread=view.thread, uid=view.uid))
    elif view.HasField("forked_from") and not may_read(view.forked_from.thread):
        view.ClearField("forked_from")


def _as_bytes(answer: Answer) -> tuple[bytes, Share | None]:
    share = None
    if isinstance(answer, Reserved):
        answer, share = answer
    return answer if isinstance(answer, bytes) else answer.SerializeToString(), share
