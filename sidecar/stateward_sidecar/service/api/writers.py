"""WriterService: saves over one stream that holds the thread's lease.

Frames are prepared and queued in their order, without waiting for the frame before. Answers are sent in the same order.
A frame is written only if the frame before it was written. The frame checks this when it runs, so nothing lands on a
gap, whatever made the earlier frame fail.

If the client waits for a frame and nobody else writes, the frame is committed at once. The task that took such a frame
answers it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from time import perf_counter

import grpc.aio
import lmdb
from google.protobuf.message import DecodeError
from google.rpc.status_pb2 import Status
from grpc import StatusCode

from stateward.v1.checkpoint_pb2 import DURABILITY_COMMITTED
from stateward.v1.checkpoint_service_pb2 import SaveResponse
from stateward.v1.lease_pb2 import Lease
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest, ReleaseLeaseRequest, RenewLeaseRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward.v1.writer_service_pb2 import (
    OpenWriter,
    WriteRequest,
    WriteResponse,
    WriterOpened,
    WriterRefused,
    WriterReset,
    WriterSave,
    WriterSaved,
)
from stateward_sidecar import spans
from stateward_sidecar.errors import (
    HistoryElsewhere,
    InvalidField,
    NotOwner,
    QueueFull,
    ShuttingDown,
    StatewardError,
    ThreadNotFound,
    UidMismatch,
    VersionMismatch,
)
from stateward_sidecar.service.api.leases import Leasing
from stateward_sidecar.service.calls.calls import INLINE_BYTES_MAX, Calls
from stateward_sidecar.service.calls.exchange import Exchange, Frame, Stream, check_turn
from stateward_sidecar.service.calls.saving import Saving
from stateward_sidecar.service.calls.status import as_expected, name_of, saying_expected, to_status
from stateward_sidecar.service.checks import check, checkparts
from stateward_sidecar.service.checks.apart import frame_of
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.thread.thread import MAIN
from stateward_sidecar.store.versions.save import SaveWrite
from stateward_sidecar.telemetry import failures, log, show_request_id

# The name of a frame's span.
FRAME = "stateward.v1.WriterService/Frame"
# The wait after the end of a stream. A broken stream first looks like an ended one, until gRPC cancels the call.
GONE_S = 0.05
# A lease is renewed after this part of its term.
RENEWAL_SHARE = 0.3
# What may be otherwise once HEAD was asked.
WRITTEN_AGAIN = (VersionMismatch, NotOwner, HistoryElsewhere)


class WriterService:
    """Saves over streams, the fastest way to save."""

    def __init__(self, calls: Calls, leasing: Leasing) -> None:
        self._calls = calls
        self._store = calls.store
        self._saving = Saving(calls)
        self._leasing = leasing
        self._open: set[asyncio.Task[None]] = set()
        self._is_stopping = False

    def close(self) -> None:
        """Takes no more frames, because the daemon stops. Taken frames are still answered."""
        self._is_stopping = True
        self._leasing.close()
        for taking in self._open:
            taking.cancel()

    async def write(
        self, exchange: Exchange[WriteRequest, WriteResponse], context: grpc.aio.ServicerContext
    ) -> None:
        first = await exchange.read()
        if first is None or first.WhichOneof("frame") != "open":
            raise InvalidField("open", "is required in the first message")
        place = first.open
        _check_open(place)
        with saying_expected(place):
            granted = await self._leasing.acquire(_lease_request(place), context)
        # All that follows is meant for this creation of the thread: the next one may give out the same token.
        place.options.expected_uid = granted.receipt.uid
        stream = Stream(place, granted.lease.token, exchange, context)
        version, digest, last_version = await self._calls.read(self._find_head, place)
        opened = WriterOpened(
            receipt=granted.receipt, lease=granted.lease, version=version, version_digest=digest,
            last_version=last_version,
        )  # fmt: skip
        await exchange.write(WriteResponse(opened=opened))
        if self._is_stopping:
            raise ShuttingDown("the daemon is stopping; open the writer again when it is back")
        taking = asyncio.ensure_future(self._take_all(stream))
        self._open.add(taking)
        keeping = asyncio.ensure_future(self._keep(place, granted.lease))
        try:
            while (frame := await stream.taken.get()) is not None:
                await self._reply(frame, stream)
                stream.in_line -= 1
                stream.fewer.set()
                stream.room.release()
            if not taking.cancelled():
                taking.result()  # raises the error that ended the stream
                await asyncio.sleep(GONE_S)  # if the stream broke, gRPC cancels this, and the lease lives on
                with suppress(ThreadNotFound, UidMismatch):  # deleted, and the lease with it
                    await self._leasing.release(_release_of(place, stream.token), None)
            elif self._is_stopping:
                raise ShuttingDown("the daemon is stopping; open the writer again when it is back")
        finally:
            keeping.cancel()
            taking.cancel()
            self._open.discard(taking)
            while not stream.taken.empty():
                if (left := stream.taken.get_nowait()) is not None:
                    left.leave()
                    if left.end_span is not None:
                        left.end_span(StatusCode.CANCELLED.name)

    def _find_head(self, place: OpenWriter) -> tuple[int, bytes, int]:
        """Returns version and digest of the branch's head, and the thread's last version, after which frames count."""
        with self._store.context.engine.read() as txn:
            thread = self._store.threads.find(txn, place.namespace, place.thread)
        if thread is None:
            return 0, b"", 0
        branch = thread.branches.get(place.branch or MAIN)
        version, digest = (branch.version, branch.digest) if branch is not None else (0, b"")
        return version, digest, thread.head.last_version

    # -- taking frames ----------------------------------------------------------------------------------------------

    async def _take_all(self, stream: Stream) -> None:
        try:
            while (data := await self._next(stream)) is not None:
                try:
                    request = await stream.exchange.open(data)
                except (InvalidField, QueueFull) as error:
                    frame = self._wrong(data, error, stream)
                else:
                    frame = await self._frame(request, stream)
                if frame.is_done and not stream.in_line:
                    await self._reply(frame, stream)
                    continue
                try:
                    await stream.room.acquire()
                except asyncio.CancelledError:
                    frame.leave()
                    raise
                stream.in_line += 1
                stream.taken.put_nowait(frame)
        finally:
            stream.taken.put_nowait(None)

    @staticmethod
    async def _next(stream: Stream) -> bytes | None:
        """Returns the next message. It is received when its save may be made: one that waits would hold memory that
        others need."""
        await stream.exchange.pace()
        return await stream.exchange.receive()

    async def _frame(self, request: WriteRequest, stream: Stream) -> Frame:
        kind = request.WhichOneof("frame")
        if kind == "save":
            return await self._take(request.save, stream)
        if kind == "reset":
            return await self._begin_anew(stream)
        raise InvalidField("frame", "must be save or reset after the first message")

    @staticmethod
    def _wrong(data: bytes, error: StatewardError, stream: Stream) -> Frame:
        """Returns the frame of a message that cannot be taken, to be refused as any other. Raises the error if the
        message names no frame."""
        try:
            number = frame_of(data)
        except DecodeError:
            raise error from None
        if not number:
            raise error
        _check_number(number, stream)
        frame = stream.before = Frame(number, error=error)
        return frame

    async def _begin_anew(self, stream: Stream) -> Frame:
        while stream.in_line:  # a refused frame may still be written again
            stream.fewer.clear()
            await stream.fewer.wait()
        stream.before = None
        version, digest, last_version = await self._calls.read(self._find_head, stream.place)
        return Frame(0, reset=WriterReset(version=version, version_digest=digest, last_version=last_version))

    async def _keep(self, place: OpenWriter, lease: Lease) -> None:
        """Renews the lease while the stream lives. A client that hangs loses its connection, and so its stream."""
        renewal = RenewLeaseRequest(
            namespace=place.namespace, thread=place.thread, expected_uid=place.options.expected_uid,
            lease_token=lease.token,
        )  # fmt: skip
        with suppress(StatewardError):  # somebody took the lease; the next frame gets the error
            while True:
                await asyncio.sleep(lease.term.ToMicroseconds() / 1e6 * RENEWAL_SHARE)
                try:
                    await self._calls.read(self._store.leases.renew_by_name, renewal)
                except StatewardError:
                    raise
                except Exception:  # noqa: BLE001  (the next renewal may be in time)
                    failures.note("renewal")

    async def _take(self, item: WriterSave, stream: Stream) -> Frame:
        """Checks, prepares and queues a frame."""
        began_s = perf_counter() if self._calls.measures is not None else 0.0
        frame = Frame(item.frame, began_s=began_s, share=stream.exchange.take_share())
        try:
            if spans.tracer is None or not item.traceparent:
                await self._queued(frame, item, stream)
            else:
                with spans.kept():
                    frame.end_span = spans.tracer.begin_call(FRAME, (("traceparent", item.traceparent),))
                    frame.span = spans.active.get()
                    await self._queued(frame, item, stream)
        except BaseException:
            frame.leave()
            raise
        if frame.error is not None:
            frame.lighten()
        return frame

    async def _queued(self, frame: Frame, item: WriterSave, stream: Stream) -> None:
        before, stream.before = stream.before, frame
        try:
            self._check_frame(item, stream)
            check_turn(before)
            request, place = item.save, stream.place
            request.namespace, request.thread, request.branch = place.namespace, place.thread, place.branch
            named = await self._saving.check(request)
            frame.is_archived = self._calls.ownership.asks_for_archived(request.options.durability)
            save = self._saving.prepare_hot(request, named)
            self._calls.ownership.gate.check()
            if frame.is_archived:
                self._calls.ownership.check_archivable(place.namespace, place.thread)
            may_write = self._calls.ownership.may_write(place.namespace, place.thread)
            if save is None or request.effects or save.size_bytes > INLINE_BYTES_MAX or not may_write:
                await self._take_slowly(frame, item, stream, before)
                return
            frame.save, frame.request, frame.before = save, request, before
            self._queue(frame, save, stream, before, at_once=item.awaited)
        except (asyncio.CancelledError, InvalidFrame):
            raise
        except Exception as error:  # noqa: BLE001  (the answer to this frame)
            frame.error = error

    async def _take_slowly(self, frame: Frame, item: WriterSave, stream: Stream, before: Frame | None) -> None:
        """Runs a frame that is large, not in memory, or may have to be fetched, after all earlier frames have ended."""
        await self._settle(stream)
        check_turn(before)  # a frame behind a refused one is told so, whoever owns the thread by now
        request, place = item.save, stream.place
        named = await self._saving.check(request)

        async def save_now() -> SaveResponse:
            frame.save = await self._saving.prepare(request, named)
            self._queue(frame, frame.save, stream, before)
            assert frame.future is not None
            return await asyncio.shield(frame.future)

        try:
            answer = await self._calls.ownership.write(
                place.namespace, place.thread, save_now, must_exist=True, is_archived=frame.is_archived
            )
        except StatewardError as error:
            frame.error = error
            return
        frame.future = asyncio.get_running_loop().create_future()
        frame.future.set_result(answer)

    def _queue(
        self, frame: Frame, save: SaveWrite, stream: Stream, before: Frame | None, *, at_once: bool = False
    ) -> None:
        # Read now, because a frame that is written again gets another write, which may come after this one.
        ahead = before.write if before is not None else None

        def run(txn: lmdb.Transaction, batch: Batch) -> SaveResponse:
            check_turn(before, ahead)
            return save.run(txn, batch)

        def is_retry(txn: lmdb.Transaction, batch: Batch) -> bool:
            check_turn(before, ahead)  # raises WriterAborted, also if there is no room for the frame
            return save.is_retry(txn, batch)

        frame.write, frame.future = self._calls.submit(
            run, None, size_bytes=save.size_bytes, is_retry=is_retry, at_once=at_once
        )
        stream.queued = frame.future
        frame.future.add_done_callback(partial(self._end, frame))

    def _end(self, frame: Frame, written: asyncio.Future[SaveResponse]) -> None:
        """Drops what a frame whose write is over no longer needs."""
        error = None if written.cancelled() else written.exception()
        if isinstance(error, WRITTEN_AGAIN) and frame.request is not None:
            frame.give_way()
        elif written is frame.future and (error is None or isinstance(error, StatewardError)):
            if error is None and frame.save is not None:
                self._saving.after(frame.save)
            frame.lighten()

    @staticmethod
    def _check_frame(item: WriterSave, stream: Stream) -> None:
        _check_number(item.frame, stream)
        request, place = item.save, stream.place
        if request.namespace or request.thread or request.branch:
            for name in ("namespace", "thread", "branch"):
                if getattr(request, name) not in ("", getattr(place, name)):
                    raise InvalidField(f"save.{name}", "differs from the stream's; leave it empty")
        if not request.options.request_id:
            raise InvalidField("save.options.request_id", "is required: a frame may have to be sent again")
        request.options.expected_uid = request.options.expected_uid or place.options.expected_uid
        checkparts.check_in_writer(request)
        if not request.options.lease_token:
            raise InvalidField("save.options.lease_token", "is required on every frame")

    @staticmethod
    async def _settle(stream: Stream) -> None:
        """Waits until all queued frames are written or refused."""
        if stream.queued is not None:
            await asyncio.wait([stream.queued])

    # -- answering --------------------------------------------------------------------------------------------------

    async def _reply(self, frame: Frame, stream: Stream) -> None:
        try:
            if frame.end_span is None:
                answer = await self._answer(frame, stream)
            else:
                answer = await self._traced(frame, frame.end_span, stream)
            frame.lighten()  # nobody knows when the client reads the answer
            if self._calls.measures is not None and frame.reset is None:
                self._calls.measures.frames[answer.HasField("saved")].add(perf_counter() - frame.began_s)
            await stream.exchange.write(answer)
        except BaseException:
            frame.leave()
            raise
        frame.let_go()

    async def _traced(self, frame: Frame, end: Callable[[str], None], stream: Stream) -> WriteResponse:
        code = StatusCode.CANCELLED.name
        with spans.kept():
            spans.active.set(frame.span)
            try:
                answer = await self._answer(frame, stream)
                code = "OK" if answer.HasField("saved") else name_of(answer.refused.status.code)
            finally:
                end(code)
        return answer

    async def _answer(self, frame: Frame, stream: Stream) -> WriteResponse:
        place = stream.place
        if frame.reset is not None:
            return WriteResponse(reset=frame.reset)
        try:
            if frame.error is not None:
                raise frame.error
            saved = await self._saved(frame, stream)
            if frame.is_archived:
                await self._calls.ownership.reach(place, saved.receipt, stream.context)
        except StatewardError as error:
            return WriteResponse(refused=_refused(frame.number, as_expected(error, place)))
        except asyncio.CancelledError:
            raise
        except Exception:  # noqa: BLE001  (the boundary)
            given = frame.request.options.request_id if frame.request is not None else ""
            log.exception("a frame failed unexpectedly", request_id=show_request_id(given))
            unforeseen = StatewardError("the server failed unexpectedly; see its log")
            return WriteResponse(refused=_refused(frame.number, unforeseen))
        return WriteResponse(saved=WriterSaved(frame=frame.number, save=saved))

    async def _saved(self, frame: Frame, stream: Stream) -> SaveResponse:
        """Returns the answer of the frame's write, or raises its error.

        A sidecar that replaced this one may have applied a frame that expects more than this disk has. So HEAD is asked
        before such a frame is refused, as for every save, and the frame is written again if HEAD had more. A frame is
        also written again if its thread was given up when it came, or if it needs older history. The frames behind it
        were refused with it, and stay refused.
        """
        assert frame.future is not None
        try:
            return await frame.future
        except WRITTEN_AGAIN as error:
            first: list[StatewardError] = [error]
        if frame.error is not None:  # it gave way meanwhile
            raise frame.error
        if frame.share is not None:
            frame.share.arrive()
        request, place = frame.request, stream.place
        if request is None:
            raise first[0]

        async def save_again() -> SaveResponse:
            if first:
                raise first.pop()
            await self._settle(stream)
            frame.save = await self._saving.prepare(request, await self._saving.check(request))
            self._queue(frame, frame.save, stream, frame.before)
            assert frame.future is not None
            return await asyncio.shield(frame.future)

        return await self._calls.ownership.write(
            place.namespace, place.thread, save_again, must_exist=True, is_archived=frame.is_archived
        )


class InvalidFrame(InvalidField):
    """A frame number does not rise. Ends the stream, because its frames can no longer be told apart."""


def _check_number(number: int, stream: Stream) -> None:
    if number <= stream.last_number:
        raise InvalidFrame("save.frame", f"{number} is not larger than {stream.last_number} before it")
    stream.last_number = number


def _refused(number: int, error: StatewardError) -> WriterRefused:
    _, _, details = to_status(error)
    return WriterRefused(frame=number, status=Status.FromString(details))


def _check_open(place: OpenWriter) -> None:
    try:
        check.check_write(place)
        checkparts.check_holder(place.holder, "holder")
        checkparts.check_term(place, "term", checkparts.HOUR_US)
        checkparts.check_wait(place)
    except InvalidField as error:
        raise check.in_item(error, "open") from None


def _release_of(place: OpenWriter, token: int) -> ReleaseLeaseRequest:
    options = WriteOptions(
        expected_uid=place.options.expected_uid, lease_token=token, durability=DURABILITY_COMMITTED
    )
    return ReleaseLeaseRequest(namespace=place.namespace, thread=place.thread, options=options)


def _lease_request(place: OpenWriter) -> AcquireLeaseRequest:
    request = AcquireLeaseRequest(
        namespace=place.namespace, thread=place.thread, holder=place.holder, take_over=place.take_over,
        options=place.options,
    )  # fmt: skip
    for field_name in ("term", "wait"):
        if place.HasField(field_name):
            getattr(request, field_name).CopyFrom(getattr(place, field_name))
    return request
