"""The danger: one frame that cannot be read ends a writer's stream, and takes the frames around it along."""

from __future__ import annotations

import threading
from typing import Any

import grpc
from tests.daemon.wire import THREAD, TIMEOUT_S, Wire, appends
from tests.messages import reason_of
from tests.service.conftest import Place

from stateward.v1 import writer_service_pb2 as w
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.write_pb2 import WriteOptions


def test_a_frame_that_cannot_be_read_is_refused_as_any_other(place: Place, wire: Wire) -> None:
    """The frames before it are saved, those behind it wait for a reset, and the stream goes on after that."""
    token, is_open = 0, threading.Event()

    def frame(number: int) -> bytes:
        save = SaveRequest(options=WriteOptions(request_id=f"f{number}", lease_token=token), diff=appends("x"))
        return w.WriteRequest(save=w.WriterSave(frame=number, save=save)).SerializeToString()

    def frames() -> Any:
        holder = Holder(name="ada", incarnation="1")
        opened = w.OpenWriter(
            namespace=place.namespace, thread=THREAD, holder=holder, options=WriteOptions(request_id="o")
        )
        yield w.WriteRequest(open=opened).SerializeToString()
        assert is_open.wait(TIMEOUT_S)
        yield frame(1)
        yield b"\x12\x07\x08\x02\x12\x03\x12\x01\xff"  # frame 2: its thread is not UTF-8
        yield frame(3)
        yield w.WriteRequest(reset=w.ResetWriter()).SerializeToString()
        yield frame(4)

    write = wire.channel.stream_stream("/stateward.v1.WriterService/Write", None, w.WriteResponse.FromString)
    stream = write(frames(), timeout=TIMEOUT_S)
    token = next(stream).opened.lease.token
    is_open.set()
    saved, wrong, behind, _, again = stream
    assert (saved.saved.frame, again.saved.frame) == (1, 4)
    assert (wrong.refused.frame, reason_of(wrong.refused.status)) == (2, "INVALID_FIELD")
    assert wrong.refused.status.code == grpc.StatusCode.INVALID_ARGUMENT.value[0]
    assert (behind.refused.frame, reason_of(behind.refused.status)) == (3, "WRITER_ABORTED")
