"""The bridge between the event loop and the threads that do the work. Small writes are committed together.

Two Python threads share the interpreter, and LMDB's binding releases it at every put. So a writer thread that runs the
writes beside a busy loop spends most of its time waiting for the interpreter (measured with 64 saves in flight: 50
hand-overs for each save, and half the throughput). Therefore the loop gathers writes until it has nothing else to do,
and runs them together. The writer thread does the commit; meanwhile the loop serves other calls and gathers the next
batch. The writer thread runs large writes itself, all writes if it is busy for long, and a lone one that comes after a
pause, when it has no transaction open.

Reads that may take a while run on workers. Writes are gathered or go to the writer's queue. The writer thread returns a
whole finished batch to the loop in one call.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sized
from contextlib import AbstractContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial
from typing import Any, TypeVar

import grpc.aio
import lmdb
from google.protobuf.message import Message

from stateward_sidecar import spans
from stateward_sidecar.errors import DeadlineExceeded, QueueFull, StatewardError
from stateward_sidecar.measures import CallMeasures
from stateward_sidecar.service.admission.memory import ANSWER_SHARE, FREE_ANSWER_BYTES, STREAMED_SHARE, Budget, Reserved
from stateward_sidecar.service.admission.order import Turns
from stateward_sidecar.service.calls.localcall import LocalCall
from stateward_sidecar.service.calls.ownership import Ownership
from stateward_sidecar.storage.queue import BATCH_BYTES_MAX, BATCH_WRITES_MAX, Batch, Write
from stateward_sidecar.storage.writer import Writer
from stateward_sidecar.store.read.listing import PAGE_SIZE
from stateward_sidecar.store.store import WORKERS, Store
from stateward_sidecar.store.thread.paging import page_bytes, with_pages

# How long a batch may grow while the loop has other work, which may bring more writes. Under such a load every call
# waits longer than this anyway.
PATIENCE_S = 0.01
# After this many turns of the loop without other work, no more writes are expected.
IDLE_TURNS = 1
# How long a batch waits while the writer is busy. Then its writes join the writer's queue.
BUSY_S = 0.02


class Gather:
    """Collects the writes of the calls that are being served."""

    def __init__(self, loop: asyncio.AbstractEventLoop, writer: Writer) -> None:
        self._loop = loop
        self._writer = writer
        # The callbacks that the loop is about to run. Not a public attribute; without it every batch is committed at
        # its first turn.
        self._ready: Sized = getattr(loop, "_ready", ())
        self._writes: list[Write] = []
        self._size_bytes = 0
        self._idle_turns = 0
        self._until = 0.0
        # Those that come while a block keeps them back, and whether each may be committed at once.
        self._held: list[tuple[Write, bool]] = []
        self._is_held = False
        # Ends the wait for the writer.
        self._waiting: asyncio.TimerHandle | None = None

    def add(self, write: Write, *, at_once: bool = False) -> None:
        """Takes a write, to be committed soon. ``at_once``: now, unless other writes may be coming."""
        if self._is_held:
            if not self._held:
                self._writer.wake()
            self._held.append((write, at_once))
            return
        if at_once and not self._writes and not self._ready:
            if write.prepare is not None and not _prepare(write):
                return
            if self._writer.is_asleep:
                # Its thread has to begin a transaction first, and then runs the write sooner than this one could.
                self._submit(write)
                return
            if self._writer.apply([write]):
                return
        if not self._writes:
            self._until = self._loop.time() + PATIENCE_S
            self._idle_turns = 0
            self._loop.call_soon(self._turn)
            self._writer.wake()
        self._writes.append(write)
        self._size_bytes += write.size_bytes
        if self._waiting is not None and self._is_full:
            self._give_up()

    def __enter__(self) -> None:
        """Keeps writes back until the end of a block: what has come together in it is committed together."""
        self._is_held = True

    def __exit__(self, *error: object) -> None:
        self._is_held = False
        held, self._held = self._held, []
        if len(held) == 1 or self._writes:
            for write, at_once in held:
                self.add(write, at_once=at_once)
        elif held:
            self._begin([write for write, _ in held])

    def _begin(self, writes: list[Write]) -> None:
        """Takes writes that have come together: runs them now, unless others may be coming."""
        self._writes = writes
        self._size_bytes = sum(write.size_bytes for write in writes)
        self._until = self._loop.time() + PATIENCE_S
        self._idle_turns = 0
        if self._ready:
            self._loop.call_soon(self._turn)
        else:
            self._run()

    @property
    def _is_full(self) -> bool:
        return len(self._writes) >= BATCH_WRITES_MAX or self._size_bytes >= BATCH_BYTES_MAX

    def _turn(self) -> None:
        """Runs the gathered writes if no more are expected or their time is over; else looks again in the next turn."""
        self._idle_turns = 0 if self._ready else self._idle_turns + 1
        if self._idle_turns < IDLE_TURNS and not self._is_full and self._loop.time() < self._until:
            self._loop.call_soon(self._turn)
        else:
            self._run()

    def _run(self) -> None:
        """Runs the first batch. The rest waits for the writer, and more writes may join meanwhile."""
        self._writes = [write for write in self._writes if write.prepare is None or _prepare(write)]
        parts = _batches(self._writes) if len(self._writes) > 1 else [self._writes]
        if self._writes and self._writer.apply(parts[0]):
            del parts[0]
            self._writes = list(itertools.chain(*parts))
        if not self._writes:
            self._size_bytes = 0
            return
        self._size_bytes = sum(write.size_bytes for write in self._writes)
        self._waiting = self._loop.call_later(BUSY_S, self._give_up)
        if self._is_full or not self._writer.call_when_free(self._call_freed):
            self._give_up()

    def _call_freed(self) -> None:
        """Called on the writer thread."""
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._freed)

    def _freed(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
            self._run()

    def _give_up(self) -> None:
        """Leaves the writes to the writer thread, behind its queue."""
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None
        writes, self._writes, self._size_bytes = self._writes, [], 0
        for write in writes:
            if write.prepare is None or _prepare(write):
                self._submit(write)

    def _submit(self, write: Write) -> None:
        try:
            self._writer.submit(write)
        except StatewardError as error:  # the queue is full, or the daemon stops
            write.error = error
            if write.on_done is not None:
                write.on_done(write)


def _prepare(write: Write) -> bool:
    """Prepares a write, once. Returns False if the write failed and does not run.

    Writes are prepared here, one after the other, and not when they come: between the turns of gRPC the same code takes
    longer, because the processor's caches hold other code.
    """
    prepare, write.prepare = write.prepare, None
    try:
        if prepare is not None:
            prepare()
    except Exception as error:  # noqa: BLE001  (an error of one write concerns only that write)
        write.error = error
        if write.on_done is not None:
            write.on_done(write)
        return False
    return True


def _batches(writes: list[Write]) -> list[list[Write]]:
    """Divides writes into batches, in their order. A write that must be alone has a batch of its own."""
    parts = itertools.groupby(enumerate(writes), key=lambda each: each[0] if each[1].is_alone else -1)
    return [[write for _, write in part] for _, part in parts]


_NOTHING: AbstractContextManager[None] = nullcontext()
T = TypeVar("T")
M = TypeVar("M", bound=Message | None)
P = TypeVar("P", bound=Message)
LOADED_AT_ONCE, SCANNED_AT_ONCE = 2, 1
# How long a page waits for memory before a small one is made, and its size. The checkpoint in it may add as much again.
SMALLER_AFTER_S, SMALLER_BYTES = 0.5, FREE_ANSWER_BYTES // 2
# Larger writes do not run on the event loop.
INLINE_BYTES_MAX = 256 << 10


class Delivery:
    """Wakes the calls whose writes are done, and then those that watch."""

    def __init__(self, loop: asyncio.AbstractEventLoop, on_commit: Callable[[], None]) -> None:
        """``on_commit`` wakes those that watch. Called on the writer thread."""
        self._loop = loop
        self._on_commit = on_commit

    def deliver(self, writes: list[Write]) -> None:
        """Passes a finished batch to the loop. Called on the writer thread."""
        for write in writes:
            if write.on_done is not None:
                with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                    self._loop.call_soon_threadsafe(_finish, writes)
                break
        self._on_commit()


class Calls:
    """Runs verbs for handlers."""

    def __init__(self, store: Store, gather: Gather, ownership: Ownership, answers: Budget, turns: Turns) -> None:
        self.store = store
        self.gather = gather
        self.ownership = ownership
        self._answers = answers
        self._turns = turns
        # Set if metrics are on.
        self.measures: CallMeasures | None = None
        # Bounds the loads of states, whose size is unknown before. Leaves most workers to others.
        self._loading = asyncio.Semaphore(LOADED_AT_ONCE)
        # Bounds reads that compute for long.
        self._scanning = asyncio.Semaphore(SCANNED_AT_ONCE)
        # Bounds the answers of streams that are being made.
        self._making = asyncio.Semaphore(WORKERS)
        # Bounds those that are made and wait for room.
        self._waiting_made = asyncio.Semaphore(WORKERS)

    async def read(self, verb: Callable[..., T], *args: Any) -> T:
        """Runs a reading verb on a worker."""
        with self._turns.reading():
            return await self._on_worker(with_pages(self.store.read), verb, *args)

    async def load(self, verb: Callable[..., T], *args: Any) -> T:
        """Runs a read that may load a large state."""
        with self._turns.reading():
            async with self._loading:
                return await self._on_worker(with_pages(self.store.read), verb, *args)

    async def scan(self, verb: Callable[..., T], *args: Any) -> T:
        """Runs a read that walks over many rows. Leaves the processor and the workers to others."""
        with self._turns.reading():
            async with self._scanning:
                return await self._on_worker(with_pages(self.store.read), verb, *args)

    async def scan_visible(
        self, verb: Callable[..., P], request: Any, items: str, may_read: Callable[[str], bool] | None
    ) -> P:
        """Runs the scan of a list, whose page has the field ``items``. ``may_read``: what its caller may see; None =
        everything.

        A scan ends early behind many rows that it leaves out. If its caller may not see them, another scan fills the
        page, because a short page would tell that they are there.
        """
        answer = await self.scan(verb, request, may_read)
        part: Any = answer
        while may_read is not None and part.next_page_token:
            found = getattr(answer, items)
            left, size_bytes = (request.page_size or PAGE_SIZE) - len(found), sum(each.ByteSize() for each in found)
            if left <= 0 or size_bytes >= page_bytes():
                break
            rest = type(request)()
            rest.CopyFrom(request)
            rest.page_token, rest.page_size = part.next_page_token, left
            part = await self.scan(verb, rest, may_read, size_bytes)
            answer.MergeFrom(part)
            answer.next_page_token = part.next_page_token  # type: ignore[attr-defined]
        return answer

    async def look(self, verb: Callable[..., T], *args: Any) -> T:
        """Runs a verb on a worker. The verb itself repeats reads that meet a commit."""
        with self._turns.reading():
            return await self._on_worker(with_pages(verb), *args)

    async def _on_worker(self, verb: Callable[..., T], *args: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.store.workers, verb, *args)

    async def work(self, verb: Callable[..., T], *args: Any) -> T:
        """Runs a long verb on a background worker, where it delays no read."""
        return await asyncio.get_running_loop().run_in_executor(self.store.background, verb, *args)

    async def step(self, steps: Iterator[T]) -> T | None:
        """Runs the next step of a long read on a worker. Returns None after the last step."""
        return await asyncio.get_running_loop().run_in_executor(self.store.workers, next, steps, None)

    async def reserve(self, size_bytes: int, make: Callable[[int], Awaitable[bytes]]) -> bytes | Reserved:
        """Makes a page, the only answer of a call, when there is memory for it. ``size_bytes`` is its approximate size.

        ``make`` gets the largest size of the page; 0 = the size that the request asks for. If untaken answers leave no
        memory, the page is a small one. Its reader asks for the next page anyway.
        """
        if size_bytes <= FREE_ANSWER_BYTES:
            return await make(0)
        try:
            share = await self._answers.take(ANSWER_SHARE * size_bytes, SMALLER_AFTER_S)
        except QueueFull:
            return await make(SMALLER_BYTES)
        try:
            return Reserved(await make(0), share)
        except BaseException:
            share.close()
            raise

    @asynccontextmanager
    async def sending(self, make: Callable[[], Awaitable[M]]) -> AsyncIterator[M]:
        """Makes an answer of a stream, and counts the memory of a large one until it is sent.

        If there is no room for the answer, drops it, waits for room and makes it again. Raises QueueFull if no room
        becomes free in time, and the errors of ``make``.
        """
        answer = await self._make(make)
        size_bytes = answer.ByteSize() if answer is not None else 0
        if size_bytes <= FREE_ANSWER_BYTES:
            yield answer
            return
        need_bytes = STREAMED_SHARE * size_bytes
        if self._answers.has_room(need_bytes):
            with self._answers.grant(need_bytes):
                yield answer
            return
        del answer
        with await self._answers.take(need_bytes):
            yield await self._make(make)

    @asynccontextmanager
    async def sending_next(self, steps: Iterator[M]) -> AsyncIterator[M | None]:
        """Makes the next answer of a stream whose steps cannot be repeated; None = it was the last one.

        Counts the memory of a large answer until it is sent. Few of them are made or wait for room at a time, because a
        waiting one is in memory already. Raises QueueFull if no room becomes free in time.
        """
        share = None
        async with self._waiting_made:
            answer = await self.step(steps)
            size_bytes = answer.ByteSize() if answer is not None else 0
            if size_bytes > FREE_ANSWER_BYTES:
                share = await self._answers.take(STREAMED_SHARE * size_bytes)
        with share or nullcontext():
            yield answer

    async def _make(self, make: Callable[[], Awaitable[T]]) -> T:
        async with self._making:
            return await make()

    async def write(
        self,
        run: Callable[[lmdb.Transaction, Batch], T],
        context: grpc.aio.ServicerContext | None,
        *,
        size_bytes: int = 0,
        frees_space: bool = False,
        is_alone: bool = False,
        is_retry: Callable[[lmdb.Transaction, Batch], bool] | None = None,
        prepare: Callable[[], None] | None = None,
    ) -> T:
        """Queues a write and waits until it is committed. Raises the error of the write. No context: no deadline.

        ``prepare`` is called on the event loop before the batch runs, if the write is small.
        """
        write, future = self.submit(
            run,
            context,
            size_bytes=size_bytes,
            frees_space=frees_space,
            is_alone=is_alone,
            is_retry=is_retry,
            prepare=prepare,
            at_once=True,
        )
        self._turns.begin_commit()
        try:
            with context if isinstance(context, LocalCall) else _NOTHING:
                return await future
        except asyncio.CancelledError:
            write.cancelled = True  # dropped if the writer has not taken it yet
            raise
        finally:
            self._turns.end_commit()

    def submit(
        self,
        run: Callable[[lmdb.Transaction, Batch], T],
        context: grpc.aio.ServicerContext | None,
        *,
        size_bytes: int = 0,
        frees_space: bool = False,
        is_alone: bool = False,
        is_retry: Callable[[lmdb.Transaction, Batch], bool] | None = None,
        prepare: Callable[[], None] | None = None,
        at_once: bool = False,
    ) -> tuple[Write, asyncio.Future[T]]:
        """Queues a write. Small writes are committed in the order of these calls.

        ``at_once``: the same client sends nothing more meanwhile, so the commit may begin before this method returns.
        """
        remaining = context.time_remaining() if context is not None else None
        deadline = float("inf") if remaining is None else time.monotonic() + remaining
        if remaining is not None and remaining <= 0:
            raise DeadlineExceeded("the deadline had passed before the write was taken; nothing was written")
        write = Write(
            run=run, size_bytes=size_bytes, frees_space=frees_space, is_alone=is_alone, deadline=deadline,
            is_retry=is_retry, prepare=prepare,
        )  # fmt: skip
        # Pruning and deletion give no size, and may take long.
        is_small = not frees_space and size_bytes <= INLINE_BYTES_MAX
        future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        write.on_done = partial(_resolve, future)
        if spans.tracer is not None:
            write.times = spans.WriteTimes(time.time_ns())
            write.on_done = partial(_trace, spans.tracer, write.on_done)
        if is_small:
            self.gather.add(write, at_once=at_once)
        else:
            self.store.context.writer.submit(write)
        return write, future


def _finish(writes: list[Write]) -> None:
    for write in writes:
        if write.on_done is not None:
            write.on_done(write)


def _trace(tracer: spans.Tracer, resolve: Callable[[Write], None], write: Write) -> None:
    if write.times is not None:
        tracer.note_write(write.times, _uid_of(write.result) if write.error is None else "")
    resolve(write)


def _resolve(future: asyncio.Future[Any], write: Write) -> None:
    if future.done():
        return  # the caller has left
    if write.error is not None:
        future.set_exception(write.error)
    else:
        future.set_result(write.result)


def _uid_of(answer: Any) -> str:
    """Returns the uid in the receipt of an answer; "" = it has none."""
    receipt = getattr(answer, "receipt", None)
    return receipt.uid if receipt is not None else ""
