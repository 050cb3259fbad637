"""The danger: one caller of one method spoils it for all others, or keeps the daemon from its end.

The same walk as in ``test_methods_unbounded.py``. One caller sends what cannot be read on a stream that others share;
many send so slowly that they never come to an end, on every method whose client streams; scrapers do the same on the
port of the metrics, which is walked like one more method.
"""

from __future__ import annotations

import hashlib
import os
import socket
import threading
import urllib.request
import uuid
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from typing import Any

import grpc
import pytest
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from tests.daemon.wire import appends
from tests.metrics.scraped import ANY_PORT, find_url
from tests.service.rawhttp2 import RawConnection
from tests.service.walk import METHODS, NO_MEMORY, PATIENCE_S, THREAD, bounded, eventually, path_of

from stateward.testing import Daemon, run_daemon
from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin, ImportThreadRequest
from stateward.v1.backup_service_pb2_grpc import BackupServiceStub
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest
from stateward.v1.call_service_pb2 import RunCallsRequest, RunCallsResponse, StreamedCall
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.workspace_pb2 import TREE_OBJECT_KIND_CHUNK, TreeObject, TreeObjects
from stateward.v1.workspace_service_pb2 import ObjectsBegin, WriteObjectsRequest
from stateward.v1.workspace_service_pb2_grpc import WorkspaceServiceStub
from stateward.v1.write_pb2 import WriteOptions
from stateward.v1.writer_service_pb2 import OpenWriter, ResetWriter, WriteRequest, WriteResponse, WriterSave

pytestmark = [pytest.mark.slow, NO_MEMORY]
STREAMED = sorted(name for name, method in METHODS.items() if method.client_streaming)
# Streams on which calls do not depend on each other, or go on after one that was refused.
SHARED = {"RunCalls", "Write"}
CALLS = StreamedCall.DESCRIPTOR.oneofs_by_name["request"]
PAUSE_S = 0.25


def new_name() -> str:
    return uuid.uuid4().hex


# -- a wrong call beside innocent ones --------------------------------------------------------------------------------


def varint(number: int) -> bytes:
    return bytes([number]) if number < 128 else bytes([number & 127 | 128]) + varint(number >> 7)


def in_field(number: int, data: bytes) -> bytes:
    return varint(number << 3 | 2) + varint(len(data)) + data


def unreadable(kind: Any) -> Iterator[bytes]:
    """Bytes that are no message of this type: a text that is not UTF-8, one that is cut short, and no fields at all."""
    text = next(field for field in kind.fields if field.type == FieldDescriptor.TYPE_STRING)
    yield in_field(text.number, b"\xff")
    yield in_field(text.number, b"xx")[:-1]
    yield b"\xff"


def test_every_shared_stream_is_walked() -> None:
    """A new method with many calls on one stream needs a form here."""
    assert {name for name in STREAMED if METHODS[name].server_streaming} == SHARED


@pytest.mark.parametrize("asked", sorted(field.name for field in CALLS.fields))
def test_a_wrong_call_of_every_kind_beside_innocent_saves(walked: Daemon, asked: str) -> None:
    """Each wrong call is refused, and the saves around it are answered, in its message and in others."""
    field = next(field for field in CALLS.fields if field.name == asked)
    messages, saves, wrong = list[bytes](), list[int](), list[int]()
    thread = new_name()

    def save() -> bytes:
        saves.append(len(saves) + len(wrong) + 1)
        request = SaveRequest(thread=thread, options=WriteOptions(request_id=f"{saves[-1]}"), diff=appends("x"))
        return in_field(1, StreamedCall(call=saves[-1], save=request).SerializeToString())

    for body in unreadable(field.message_type):
        first = save()
        wrong.append(len(saves) + len(wrong) + 1)
        call = StreamedCall(call=wrong[-1]).SerializeToString() + in_field(field.number, body)
        messages += [first + in_field(1, call) + save(), save()]
    with bounded(walked, "RunCalls"), grpc.insecure_channel(walked.target) as channel:
        run = channel.stream_stream(path_of(METHODS["RunCalls"]), None, RunCallsResponse.FromString)
        answers = {each.call: each for found in run(iter(messages), timeout=PATIENCE_S) for each in found.answers}
    assert [number for number in saves if not answers[number].HasField("save")] == []
    assert [number for number in wrong if not answers[number].HasField("refused")] == []


def test_a_wrong_frame_ends_no_writer(walked: Daemon) -> None:
    """The frames before it are saved, and the writer goes on after a reset."""
    answers = [threading.Event() for _ in range(8)]
    token, thread = 0, new_name()

    def frame(number: int, *, wrong: bytes = b"") -> bytes:
        save = SaveRequest(options=WriteOptions(request_id=f"f{number}", lease_token=token), diff=appends("x"))
        good = WriteRequest(save=WriterSave(frame=number, save=save)).SerializeToString()
        return in_field(2, WriterSave(frame=number).SerializeToString() + in_field(2, wrong)) if wrong else good

    def frames() -> Iterator[bytes]:
        opened = OpenWriter(
            thread=thread, holder=Holder(name="h", incarnation="i"), options=WriteOptions(request_id="o")
        )
        yield WriteRequest(open=opened).SerializeToString()
        assert answers[0].wait(PATIENCE_S)
        number = 0
        for wrong in unreadable(SaveRequest.DESCRIPTOR):
            yield frame(number + 1)
            yield frame(number + 2, wrong=wrong)
            yield WriteRequest(reset=ResetWriter()).SerializeToString()
            number += 2
        yield frame(number + 1)

    with grpc.insecure_channel(walked.target) as channel:
        write = channel.stream_stream(path_of(METHODS["Write"]), None, WriteResponse.FromString)
        stream = write(frames(), timeout=PATIENCE_S)
        token = next(stream).opened.lease.token
        answers[0].set()
        kinds = [answer.WhichOneof("frame") for answer in stream]
    assert kinds == ["saved", "refused", "reset"] * 3 + ["saved"]


# -- callers that never come to an end --------------------------------------------------------------------------------

CROWD = 64


def opening(name: str) -> Message:
    """What the client of a stream sends first."""
    holder = Holder(name=new_name(), incarnation="i")
    save = SaveRequest(thread=new_name(), options=WriteOptions(request_id="r"), diff=appends("x"))
    blob = BlobBegin(
        thread=new_name(), sha256=os.urandom(32), size_bytes=10_000_000, options=WriteOptions(create=ThreadOptions())
    )
    return {
        "Write": WriteRequest(open=OpenWriter(thread=new_name(), holder=holder, options=WriteOptions(request_id="o"))),
        "RunCalls": RunCallsRequest(calls=[StreamedCall(call=1, save=save)]),
        "WriteBlob": WriteBlobRequest(begin=blob),
        "WriteObjects": WriteObjectsRequest(
            begin=ObjectsBegin(thread=new_name(), options=WriteOptions(create=ThreadOptions()))
        ),
        "ImportThread": ImportThreadRequest(begin=ImportBegin(thread=new_name(), options=WriteOptions(request_id="r"))),
    }[name]


def write(walked: Daemon) -> None:
    with walked.client(retry_timeout=PATIENCE_S) as client:
        thread = client.thread(new_name())
        state = thread.hydrate()
        with thread.writer() as writer:
            assert writer.save(state, step=1).version == 1


def run_calls(walked: Daemon) -> None:
    request = RunCallsRequest(
        calls=[
            StreamedCall(
                call=1, save=SaveRequest(thread=new_name(), options=WriteOptions(request_id="r"), diff=appends("x"))
            )
        ]
    )
    with grpc.insecure_channel(walked.target) as channel:
        run = channel.stream_stream(path_of(METHODS["RunCalls"]), None, RunCallsResponse.FromString)
        answers = run(iter([request.SerializeToString()]), timeout=PATIENCE_S)
        assert next(answers).answers[0].HasField("save")


def write_blob(walked: Daemon) -> None:
    with walked.client(retry_timeout=PATIENCE_S) as client:
        client.thread(THREAD).blobs.write(hashlib.sha256(os.urandom(8)).digest() * 10_000)


def import_thread(walked: Daemon) -> None:
    with grpc.insecure_channel(walked.target) as channel:
        backups: Any = BackupServiceStub(channel)
        export = backups.ExportThread(ExportThreadRequest(thread="neighbour"), timeout=PATIENCE_S)
        begin = ImportThreadRequest(begin=ImportBegin(thread=new_name(), options=WriteOptions(request_id="r")))
        parts = [ImportThreadRequest(parts=answer.parts) for answer in export]

        assert eventually(lambda: is_taken(backups.ImportThread, [begin, *parts]))


def is_taken(method: Any, parts: list[Message]) -> bool:
    """Whether there was a place for the call."""
    try:
        method(iter(parts), timeout=PATIENCE_S)
    except grpc.RpcError as error:
        if error.code() is not grpc.StatusCode.RESOURCE_EXHAUSTED:
            raise
        return False
    return True


def write_objects(walked: Daemon) -> None:
    begin = ObjectsBegin(thread=THREAD, options=WriteOptions(request_id=new_name()))
    data = os.urandom(1000)
    chunk = TreeObject(kind=TREE_OBJECT_KIND_CHUNK, digest=hashlib.sha256(data).digest(), data=data)
    parts = [WriteObjectsRequest(begin=begin), WriteObjectsRequest(objects=TreeObjects(objects=[chunk]))]
    with grpc.insecure_channel(walked.target) as channel:
        workspace: Any = WorkspaceServiceStub(channel)
        assert eventually(lambda: is_taken(workspace.WriteObjects, parts))


WELL: dict[str, Callable[[Daemon], None]] = {
    "Write": write, "RunCalls": run_calls, "WriteBlob": write_blob, "ImportThread": import_thread,
    "WriteObjects": write_objects,
}  # fmt: skip


# Messages that may be sent again and again.
SMALL: dict[str, Message] = {
    "Write": WriteRequest(reset=ResetWriter()),
    "RunCalls": RunCallsRequest(calls=[StreamedCall(traceparent="x" * 1000)]),  # it never comes whole
    "WriteBlob": WriteBlobRequest(data=b"x"),
    "ImportThread": ImportThreadRequest(),
    "WriteObjects": WriteObjectsRequest(objects=TreeObjects()),
}


@contextmanager
def trickling(daemon: Daemon, name: str, count: int = CROWD) -> Iterator[None]:
    """Callers that have begun a stream, and send a byte of its next messages now and then."""
    over, connection = threading.Event(), RawConnection(daemon.socket)
    streams = range(1, 2 * count, 2)
    for stream in streams:
        connection.begin(path_of(METHODS[name]), opening(name), stream)

    def send() -> None:
        with suppress(OSError):
            while not over.wait(PAUSE_S):
                connection.trickle(SMALL[name], streams)

    sending = threading.Thread(target=send)
    sending.start()
    try:
        yield
    finally:
        over.set()
        sending.join()
        connection.close()


@pytest.mark.parametrize("name", STREAMED)
def test_callers_who_never_end_hold_up_nobody(walked: Daemon, name: str) -> None:
    """Others call the same method beside them, and are answered."""
    with bounded(walked, name) as save:
        save()
        with trickling(walked, name):
            save()
            WELL[name](walked)


# -- the port of the metrics ------------------------------------------------------------------------------------------

SCRAPERS = 6  # with all others fewer than so many that the oldest one has to go


def port_of(daemon: Daemon) -> int:
    return int(find_url(daemon).rpartition(":")[2].partition("/")[0])


@contextmanager
def scraping_slowly(port: int) -> Iterator[socket.socket]:
    """A scraper whose request has no end."""
    over = threading.Event()
    with socket.create_connection(("127.0.0.1", port)) as scraper:
        scraper.sendall(b"GET /metrics HTTP/1.1\r\nX: ")

        def send() -> None:
            with suppress(OSError):
                while not over.wait(PAUSE_S):
                    scraper.sendall(b"x")

        sending = threading.Thread(target=send)
        sending.start()
        try:
            yield scraper
        finally:
            over.set()
            sending.join()


@pytest.fixture(scope="module", autouse=True)
def slow(walked: Daemon) -> Iterator[socket.socket]:
    """A scraper that begins before all other tests of this module."""
    with scraping_slowly(port_of(walked)) as scraper:
        yield scraper


def test_scrapers_who_never_end_hold_up_nobody(walked: Daemon, slow: socket.socket) -> None:
    """Others scrape beside them, beside half requests, and beside answers that nobody reads."""
    port = port_of(walked)
    with bounded(walked, "metrics") as save, ExitStack() as stack:
        stack.enter_context(scraping_slowly(port))
        for asked in (b"GET /metrics HTTP/1.1\r\n", b"GET /metrics HTTP/1.0\r\n\r\n"):
            for _ in range(SCRAPERS):
                scraper = stack.enter_context(socket.create_connection(("127.0.0.1", port)))
                scraper.sendall(asked)
            save()
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
                assert answer.status == 200
        slow.settimeout(PATIENCE_S)
        with suppress(ConnectionResetError):
            assert slow.recv(1) == b""  # its connection has an end


def test_the_end_waits_for_no_caller() -> None:
    """SIGTERM ends the daemon in its order beside callers of every stream, and a scraper, who never come to an end."""
    with run_daemon(metrics=ANY_PORT, grace=1) as daemon, ExitStack() as stack:
        for name in STREAMED:
            stack.enter_context(trickling(daemon, name, 2))
            WELL["RunCalls"](daemon)
        stack.enter_context(scraping_slowly(port_of(daemon)))
        daemon.stop()
        assert '"stopped"' in daemon.stderr
