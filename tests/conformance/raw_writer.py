"""The procedure `writer` of the client of generated stubs."""

from __future__ import annotations

import queue
import uuid
from typing import TYPE_CHECKING, Any

import grpc
from tests.conformance.raw_values import text

from stateward.v1 import lease_pb2, writer_service_pb2
from stateward.v1.write_pb2 import WriteOptions

if TYPE_CHECKING:
    from tests.conformance.raw_client import RawClient

FRAMES = 4


class Writer:
    """The writer's procedure: four frames, all under way at once, kept until they are answered."""

    def __init__(self, client: RawClient) -> None:
        self.client = client
        self.open_id, self.uid = client.request_id(), ""
        self.incarnation = uuid.uuid4().hex
        self.unanswered: dict[int, writer_service_pb2.WriterSave] = {}
        self.number = 0
        self.next_text = 1

    def write(self) -> None:
        while not self.stream():
            pass

    def opening(self) -> writer_service_pb2.WriteRequest:
        holder = lease_pb2.Holder(name="conformance", incarnation=self.incarnation)
        options = WriteOptions(request_id=self.open_id, expected_uid=self.uid)
        opening = writer_service_pb2.OpenWriter(thread=self.client.thread, holder=holder, options=options)
        return writer_service_pb2.WriteRequest(open=opening)

    def stream(self) -> bool:
        """Runs one stream. Returns False if it broke."""
        out: queue.Queue[Any] = queue.Queue()
        out.put(self.opening())
        answers = self.client.writers.Write(iter(out.get, None), timeout=self.client.stream_s)
        try:
            opened = next(answers).opened
            self.uid = self.client.uid_of(opened.receipt)
            for frame in list(self.unanswered.values()):
                out.put(writer_service_pb2.WriteRequest(save=self.repeated(frame)))
            self.send_new(out, opened.lease.token, opened.last_version + len(self.unanswered))
            is_resetting = False
            for answer in answers:
                kind = answer.WhichOneof("frame")
                if kind == "saved":
                    del self.unanswered[answer.saved.frame]
                elif kind == "refused":
                    refused = self.unanswered.pop(answer.refused.frame)
                    words = int(refused.save.diff.edits[0].set_slot.value.data)
                    self.next_text = min(self.next_text, words)
                    if not is_resetting:
                        is_resetting = True
                        self.reset(out)
                elif kind == "reset":
                    self.send_new(out, opened.lease.token, answer.reset.last_version)
                if not self.unanswered and self.next_text > FRAMES:
                    self.end(out, answers)
        except grpc.RpcError as error:
            out.put(None)
            self.client.pause(error)
            return False
        return True

    def send_new(self, out: queue.Queue[Any], token: int, last_version: int) -> None:
        for words in range(self.next_text, FRAMES + 1):
            self.number += 1
            save = self.client.save_request(
                self.client.set_slot("seen", text(str(words))), lease_token=token, expected_version=last_version
            )
            save.ClearField("thread")  # the stream's
            last_version += 1
            frame = writer_service_pb2.WriterSave(frame=self.number, save=save)
            self.unanswered[self.number] = frame
            out.put(writer_service_pb2.WriteRequest(save=frame))
        self.next_text = FRAMES + 1

    def repeated(self, frame: writer_service_pb2.WriterSave) -> writer_service_pb2.WriterSave:
        return frame

    def reset(self, out: queue.Queue[Any]) -> None:
        out.put(writer_service_pb2.WriteRequest(reset=writer_service_pb2.ResetWriter()))

    def end(self, out: queue.Queue[Any], answers: Any) -> None:
        out.put(None)
