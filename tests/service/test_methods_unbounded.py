"""The danger: one method of the contract takes memory that no limit counts, and its callers take all of it.

One walk over all methods, which are those of the descriptors: a new method is in it by itself. At one memory limit,
callers leave answers unread, send half of a message, or send on a stream whose answers they do not read; the saves of a
neighbour go on beside them.
"""

from __future__ import annotations

import os
import queue
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.message import Message
from google.protobuf.message_factory import GetMessageClass
from tests.daemon.wire import appends
from tests.service.rawhttp2 import RawConnection
from tests.service.walk import (
    BLOB,
    LIMIT_MIB,
    METHODS,
    MIB,
    NO_MEMORY,
    PATIENCE_S,
    bounded,
    eventually,
    path_of,
    request_for,
    status_bytes,
)
from tests.trees.yard import chunk

from stateward.testing import Daemon
from stateward.v1.backup_service_pb2 import ImportThreadRequest
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest
from stateward.v1.call_service_pb2 import RunCallsRequest, StreamedCall
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.diff_pb2 import Diff, Edit, SetSlot
from stateward.v1.lease_pb2 import Holder
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.workspace_pb2 import TreeObjects
from stateward.v1.workspace_service_pb2 import ObjectsBegin, WriteObjectsRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward.v1.writer_service_pb2 import OpenWriter, WriteRequest, WriterSave

pytestmark = [pytest.mark.slow, NO_MEMORY]
CALLERS = 90
# Calls that end the walk, or wait by themselves.
LEFT_OUT = {"Drain", "DeleteThread"}
# Methods whose answers were seen to be large: so the walk looks where it matters.
HEAVY = {
    "Hydrate", "ListCheckpoints", "DiffCheckpoints", "ReadLog", "ReadHistory", "ListRecords", "GetRecords",
    "ListEffects", "ExportThread", "ReadBlob", "ListSignals",
}  # fmt: skip


# -- unread answers ---------------------------------------------------------------------------------------------------


def test_the_walk_sees_large_answers(walked: Daemon) -> None:
    """The requests of the walk have the answers that it is about."""
    with grpc.insecure_channel(walked.target, [("grpc.max_receive_message_length", -1)]) as channel:
        sizes = dict.fromkeys(HEAVY, 0)
        for name in HEAVY:
            request = request_for(METHODS[name]).SerializeToString()
            if METHODS[name].server_streaming:
                sizes[name] = max(map(len, channel.unary_stream(path_of(METHODS[name]))(request, timeout=PATIENCE_S)))
            else:
                sizes[name] = len(channel.unary_unary(path_of(METHODS[name]))(request, timeout=PATIENCE_S))
        assert {name: size for name, size in sizes.items() if size < 700_000} == {}


@pytest.mark.parametrize("name", sorted(METHODS.keys() - LEFT_OUT))
def test_unread_answers_of_every_method(walked: Daemon, name: str) -> None:
    """Many callers ask, and none reads its answer."""
    method = METHODS[name]
    request = request_for(method)
    with ExitStack() as stack, bounded(walked, name) as save:
        for number in range(CALLERS if name in HEAVY else CALLERS // 4):
            caller = RawConnection(walked.socket)
            stack.callback(caller.close)
            caller.call(path_of(method), request)
            if not number % 10:
                save()
        for _ in range(10):
            save()


# -- half messages ----------------------------------------------------------------------------------------------------

SENT_BYTES, MESSAGE_BYTES = 30 * MIB, 31 * MIB
SENDERS = 5


class HalfSender:
    """A caller that sends most of a message as the daemon takes it, and then nothing more."""

    def __init__(self, path: Path, method: str) -> None:
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.connect(os.fspath(path))
        names = {
            ":method": "POST", ":scheme": "http", ":path": method, ":authority": "localhost", "te": "trailers",
            "content-type": "application/grpc",
        }  # fmt: skip
        fields = b"".join(b"\0" + _text(name) + _text(value) for name, value in names.items())
        self._socket.sendall(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + _frame(4) + _frame(1, 4, fields, 1))
        self._head, self._pending, self._sent = struct.pack(">BI", 0, MESSAGE_BYTES), b"", 0
        self._windows = {0: 65535, 1: 65535}
        self.is_over = False
        self.is_sent = threading.Event()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while not self.is_over:
                while (room := min(16384, *self._windows.values(), SENT_BYTES - self._sent)) > 0:
                    data, self._head = (self._head + bytes(room))[:room], b""
                    self._socket.sendall(_frame(0, 0, data, 1))
                    self._sent += room
                    self._windows = {stream: window - room for stream, window in self._windows.items()}
                if self._sent >= SENT_BYTES:
                    self.is_sent.set()
                if not (got := self._socket.recv(1 << 16)):
                    break
                self._pending += got
                self._take()
        self.is_over = True
        self.is_sent.set()

    def _take(self) -> None:
        while len(self._pending) >= 9 and len(self._pending) >= 9 + (size := int.from_bytes(self._pending[:3])):
            kind, flags, stream = self._pending[3], self._pending[4], int.from_bytes(self._pending[5:9])
            body, self._pending = self._pending[9 : 9 + size], self._pending[9 + size :]
            if kind == 4 and not flags & 1:
                for at in range(0, size, 6):
                    setting, value = struct.unpack(">HI", body[at : at + 6])
                    if setting == 4:
                        self._windows[1] += value - 65535
                self._socket.sendall(_frame(4, 1))
            elif kind == 6 and not flags & 1:
                self._socket.sendall(_frame(6, 1, body))
            elif kind == 8:
                self._windows[stream] = self._windows.get(stream, 0) + int.from_bytes(body)
            elif kind in (3, 7) or (kind == 1 and flags & 1):
                self.is_over = True

    def close(self) -> None:
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)
        self._socket.close()


def _frame(kind: int, flags: int = 0, payload: bytes = b"", stream: int = 0) -> bytes:
    return len(payload).to_bytes(3) + struct.pack(">BBI", kind, flags, stream) + payload


def _text(text: str) -> bytes:
    return bytes([len(text)]) + text.encode()


def groups() -> Iterator[list[str]]:
    """Methods whose senders are refused together, `SENDERS` at a time, and each method of streams alone, because of
    streams the newer half is refused."""
    single = sorted(name for name, method in METHODS.items() if not method.client_streaming)
    for first in range(0, len(single), SENDERS):
        yield (single + single)[first : first + SENDERS]
    for name in sorted(METHODS.keys() - set(single)):
        yield [name] * SENDERS


@pytest.mark.parametrize("names", list(groups()), ids=lambda names: f"{names[0]}-{names[-1]}")
def test_half_a_message_of_every_method(walked: Daemon, names: list[str]) -> None:
    """The memory that half messages take beyond the limit comes back, though nobody hangs up. Each method's call is
    refused, or one at least of those of a method of streams."""
    with ExitStack() as stack, bounded(walked, names[0]) as save:
        senders: dict[str, list[HalfSender]] = {name: [] for name in names}

        def send(name: str) -> None:
            sender = HalfSender(walked.socket, path_of(METHODS[name]))
            stack.callback(sender.close)
            assert sender.is_sent.wait(PATIENCE_S)
            senders[name].append(sender)
            save()

        for name in names:
            send(name)
        near = (LIMIT_MIB + LIMIT_MIB // 8) * MIB
        assert eventually(lambda: status_bytes(walked, "RssAnon") <= near, save)

        def spared() -> list[str]:
            return [name for name, sent in senders.items() if not any(sender.is_over for sender in sent)]

        # A call that has only just begun to wait is spared while the others are enough: more are sent beside it.
        for _ in range(SENDERS):
            if not spared():
                break
            # On a slow machine none of them may have begun to wait yet.
            send(next((name for name in names if name not in spared()), names[0]))
            assert eventually(lambda: status_bytes(walked, "RssAnon") <= near, save)
        assert eventually(lambda: not spared(), save), spared()


# -- unread streams ---------------------------------------------------------------------------------------------------


# So many answers fill what gRPC takes of them though nobody reads. Large frames follow.
UNREAD, STILL_S = 40, 1.0


def write(number: int, call: Any) -> Iterator[Message]:
    holder = Holder(name=f"h{number}", incarnation="x")
    yield WriteRequest(
        open=OpenWriter(thread=f"silent-{number}", holder=holder, options=WriteOptions(request_id=f"o{number}"))
    )
    token = next(call()).opened.lease.token
    for frame in range(1, 2000):
        content = b"a" if frame < UNREAD else os.urandom(60_000)
        diff = Diff(edits=[Edit(set_slot=SetSlot(slot="s", value=Value(data=content)))])
        save = SaveRequest(
            options=WriteOptions(request_id=f"{frame}", expected_version=frame - 1, lease_token=token), diff=diff
        )
        yield WriteRequest(save=WriterSave(frame=frame, save=save))


def run_calls(number: int, call: Any) -> Iterator[Message]:
    for each in range(1, 2000):
        diff = appends("a" if each < 450 else "x" * 60_000)
        save = SaveRequest(thread=f"called-{number}-{each % 7}", options=WriteOptions(request_id=f"{each}"), diff=diff)
        yield RunCallsRequest(calls=[StreamedCall(call=each, save=save)])


def write_blob(number: int, call: Any) -> Iterator[Message]:
    begin = BlobBegin(
        thread=f"blob-{number}", sha256=BLOB, size_bytes=1 << 40, options=WriteOptions(create=ThreadOptions())
    )
    yield WriteBlobRequest(begin=begin)
    for _ in range(40):
        yield WriteBlobRequest(data=bytes(MIB))


def write_objects(number: int, call: Any) -> Iterator[Message]:
    yield WriteObjectsRequest(
        begin=ObjectsBegin(thread=f"objects-{number}", options=WriteOptions(create=ThreadOptions()))
    )
    for each in range(40):
        yield WriteObjectsRequest(objects=TreeObjects(objects=[chunk(b"%d " % each + bytes(MIB - 10))]))


def import_thread(number: int, call: Any) -> Iterator[Message]:
    yield ImportThreadRequest()


STREAMS: dict[str, Callable[[int, Any], Iterator[Message]]] = {
    "Write": write, "RunCalls": run_calls, "WriteBlob": write_blob,
    "WriteObjects": write_objects, "ImportThread": import_thread,
}  # fmt: skip


def test_every_stream_of_a_client_is_walked() -> None:
    """A new method whose client sends many messages needs a sender here."""
    assert {name for name, method in METHODS.items() if method.client_streaming} == set(STREAMS)


@pytest.mark.parametrize("name", sorted(STREAMS))
def test_unread_streams_of_every_method(walked: Daemon, name: str) -> None:
    """Clients send as much as the daemon takes, and read no answer."""
    method = METHODS[name]
    with ExitStack() as stack, bounded(walked, name):
        sent = [0] * 6
        for number in range(len(sent)):
            options = [("grpc.use_local_subchannel_pool", 1), ("grpc.http2.bdp_probe", 0)]
            options.append(("grpc.http2.lookahead_bytes", 1024))  # what comes unread
            channel = stack.enter_context(grpc.insecure_channel(walked.target, options))
            begun = queue.SimpleQueue[Any]()

            def counted(number: int = number, begun: queue.SimpleQueue[Any] = begun) -> Iterator[bytes]:
                for message in STREAMS[name](number, begun.get):
                    sent[number] += 1
                    yield message.SerializeToString()
                threading.Event().wait(PATIENCE_S)

            deserialize = GetMessageClass(method.output_type).FromString
            kind = channel.stream_stream if method.server_streaming else channel.stream_unary
            stub = kind(path_of(method), None, deserialize)
            call = stub(counted()) if method.server_streaming else stub.future(counted())
            begun.put(call)
            stack.callback(call.cancel)
        looking = stack.enter_context(walked.client())
        progress = [0, 0.0]

        def is_still() -> bool:
            """Nobody sends, and the daemon, which may be slow, has done all that it has taken."""
            stats = looking.stats()
            now, has_come = time.monotonic(), sum(sent) + stats.saves
            if has_come != progress[0] or stats.queued_writes:
                progress[:] = has_come, now
            return now > progress[1] + STILL_S

        assert eventually(is_still, patience_s=10 * PATIENCE_S)
