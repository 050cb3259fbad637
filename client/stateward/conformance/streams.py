"""The streams of the scripted daemon: watches, writers, and blobs in both directions.

`cut` resets the connection in the middle of the message with the given bytes, which is sent next.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator

import grpc

from stateward.conformance.compare import difference
from stateward.conformance.failing import fail, status_of
from stateward.conformance.play import Play
from stateward.conformance.v1.scenario_pb2 import Failure, Turn, WriterStream
from stateward.v1.blob_service_pb2 import ReadBlobRequest, ReadBlobResponse, WriteBlobRequest
from stateward.v1.state_pb2 import BlobRef
from stateward.v1.thread_service_pb2 import WatchRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward.v1.writer_service_pb2 import WriteRequest, WriteResponse, WriterRefused

PIECE_BYTES = 4
POLL_S = 0.05
CANCELLED_S = 0.3
OPEN_MAX_S = 60.0
TAKEN_S = 0.3
"""Before a cut: the client takes what has come. Libraries drop messages that come together with the end."""

Cut = Callable[[bytes], None]


def cut_before(cut: Cut, message: bytes) -> bytes:
    """Returns the message, in the middle of which the connection is cut."""
    time.sleep(TAKEN_S)
    cut(message)
    return message


def watch(play: Play, request: WatchRequest, _: object, context: grpc.ServicerContext, cut: Cut) -> Iterator[bytes]:
    """Sends the events of a watch. A stream that does not fail stays open until the client ends it."""
    turn = play.take("Watch", request)
    for at, message in enumerate(turn.events, 1):
        data = message.SerializeToString() + turn.unknown_fields
        if at == len(turn.events):  # the client may end the stream as soon as it has this message
            play.end_stream()
            data = cut_before(cut, data) if turn.cut else data
        yield data
    if turn.HasField("failure"):
        fail(context, turn.failure)
    stay_open(play, context)


def stay_open(play: Play, context: grpc.ServicerContext) -> None:
    """Waits until the client ends the stream, or the scenario is over."""
    ended = threading.Event()
    if not context.add_callback(ended.set):
        return
    for _ in range(int(OPEN_MAX_S / POLL_S)):
        if ended.wait(POLL_S) or play.is_done or play.failure:
            return


def write(
    play: Play, first: WriteRequest, messages: Iterator[WriteRequest], context: grpc.ServicerContext, cut: Cut
) -> Iterator[bytes]:
    """Plays a writer's stream."""
    if not first.HasField("open"):
        raise play.fail("the first message of a writer's stream is not `open`")
    turn = play.take("Write", first.open)
    yield WriteResponse(opened=turn.write.opened).SerializeToString()
    for answer in _answer_frames(play, turn.write, messages):
        if turn.cut and answer.saved.frame and answer.saved.save == turn.write.frames[-1].answer.saved.save:
            play.end_stream()
            yield cut_before(cut, answer.SerializeToString())
            stay_open(play, context)
            return
        yield answer.SerializeToString()
    if turn.HasField("failure"):
        play.end_stream()
        fail(context, turn.failure)
    for message in messages:
        raise play.fail(f"a further frame came: {message.WhichOneof('frame')}")
    ended = threading.Event()  # a cancelled stream looks like an ended one for a moment
    if not context.add_callback(ended.set) or ended.wait(CANCELLED_S):
        raise play.fail("the client cancelled the writer's stream instead of ending it")
    play.end_stream()


def _answer_frames(play: Play, stream: WriterStream, messages: Iterator[WriteRequest]) -> Iterator[WriteResponse]:
    is_refusing, last = False, 0
    for frame in stream.frames:
        message = next(messages, None)
        while is_refusing and message is not None and message.HasField("save"):
            yield _aborted(message.save.frame)
            last, message = message.save.frame, next(messages, None)
        if message is None:
            raise play.fail(f"the client ended the stream before its frame {frame.request.WhichOneof('frame')}")
        play.take_frame(frame, message, last)
        last = message.save.frame or last
        if not frame.HasField("answer"):
            continue
        answer = WriteResponse()
        answer.CopyFrom(frame.answer)
        kind = answer.WhichOneof("frame")
        if kind in ("saved", "refused"):
            getattr(answer, kind).frame = message.save.frame
        is_refusing = kind == "refused"
        yield answer


def _aborted(number: int) -> WriteResponse:
    return WriteResponse(
        refused=WriterRefused(
            frame=number,
            status=status_of(
                Failure(code="ABORTED", reason="WRITER_ABORTED"), "an earlier frame was refused; reset the writer"
            ),
        )
    )


def read_blob(
    play: Play, request: ReadBlobRequest, _: object, context: grpc.ServicerContext, cut: Cut
) -> Iterator[bytes]:
    """Sends a blob from the asked offset on, in small messages."""
    turn = play.take("ReadBlob", request)
    blob = turn.read_blob
    content, at = blob.content, request.offset
    if not 0 <= at <= len(content) or (request.HasField("length") and request.length < 0):
        raise play.fail(f"offset is {at}, outside the blob's {len(content)} bytes")
    end = min(at + request.length, len(content)) if request.HasField("length") else len(content)
    ref = BlobRef(sha256=hashlib.sha256(content).digest(), size_bytes=len(content))
    yield ReadBlobResponse(blob=ref, media_type=blob.media_type, offset=at).SerializeToString()
    stop = blob.broken_at or end
    for start in range(at, stop, PIECE_BYTES):
        data = content[start : min(start + PIECE_BYTES, stop)]
        yield ReadBlobResponse(offset=start, data=data).SerializeToString()
    play.end_stream()
    if turn.cut:
        piece = ReadBlobResponse(offset=stop, data=content[stop : stop + PIECE_BYTES])
        yield cut_before(cut, piece.SerializeToString())
        stay_open(play, context)
        return
    if turn.HasField("failure"):
        fail(context, turn.failure)


def take_blob(play: Play, first: WriteBlobRequest, messages: Iterator[WriteBlobRequest]) -> Turn:
    """Takes a blob, up to the place where the stream breaks. Returns the turn."""
    turn = play.take("WriteBlob", first)
    upload = turn.write_blob
    begin, hasher, size_bytes = first.begin, hashlib.sha256(), 0
    if problem := difference(WriteOptions(), begin.options):
        raise play.fail(f"begin.options.{problem}")
    if begin.sha256 and begin.sha256 != upload.sha256:
        raise play.fail("begin.sha256 is not that of the bytes")
    if begin.HasField("size_bytes") and begin.size_bytes != upload.size_bytes:
        raise play.fail(f"begin.size_bytes is {begin.size_bytes}, not {upload.size_bytes}")
    for message in messages:
        if not message.HasField("data"):
            raise play.fail("a message after the first one has no data")
        hasher.update(message.data)
        size_bytes += len(message.data)
        if 0 < upload.broken_after_bytes <= size_bytes:
            break
    else:
        if (hasher.digest(), size_bytes) != (upload.sha256, upload.size_bytes):
            raise play.fail(f"the client sent {size_bytes} bytes that are not those of the blob")
    play.end_stream()
    return turn
