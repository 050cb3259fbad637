"""A client of generated stubs alone, for `stateward conformance`: the code of docs/protocol.md and the procedures.

    stateward conformance -- python -m tests.conformance.raw_client

A wrong client of the tests is this one with one method or function replaced.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
import time
import uuid
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import grpc
from tests.conformance.raw_coordinating import Coordinating
from tests.conformance.raw_trees import Trees
from tests.conformance.raw_values import canonical, text
from tests.conformance.raw_writer import Writer
from tests.messages import to_write

from stateward.v1 import (
    blob_service_pb2,
    blob_service_pb2_grpc,
    checkpoint_pb2,
    checkpoint_service_pb2,
    checkpoint_service_pb2_grpc,
    diff_pb2,
    effect_service_pb2_grpc,
    lease_pb2,
    lease_service_pb2_grpc,
    record_service_pb2_grpc,
    signal_service_pb2_grpc,
    state_pb2,
    thread_service_pb2,
    thread_service_pb2_grpc,
    workspace_service_pb2_grpc,
    writer_service_pb2_grpc,
)

PAGE = Path(__file__).resolve().parents[2] / "docs/protocol.md"
DEADLINE_S = 2.0
BLOB = (bytes(range(251)) * 10_000)[:2_500_000]
DELTA = 9007199254740993


def page_code() -> SimpleNamespace:
    """Returns what the Python blocks of docs/protocol.md define."""
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile("\n".join(blocks), PAGE, "exec"), names)
    return SimpleNamespace(**names)


class RawClient(Trees, Coordinating):
    """Runs the procedures: these, and those of Trees and Coordinating."""

    deadline_s = DEADLINE_S
    patience_s = 10.0
    stream_s = 20.0
    replaced: ClassVar[dict[str, Any]] = {}

    def __init__(self, target: str) -> None:
        self.code = page_code()
        whole = self.code.call
        self.code.call = partial(whole, deadline_s=self.deadline_s, patience_s=self.patience_s)
        # The blocks look their names up where they were defined.
        whole.__globals__.update(call=self.code.call, **self.replaced)
        self.code.__dict__.update(self.replaced)
        self.channel = grpc.insecure_channel(target)
        self.checkpoints = checkpoint_service_pb2_grpc.CheckpointServiceStub(self.channel)
        self.threads = thread_service_pb2_grpc.ThreadServiceStub(self.channel)
        self.blobs = blob_service_pb2_grpc.BlobServiceStub(self.channel)
        self.writers = writer_service_pb2_grpc.WriterServiceStub(self.channel)
        self.leases = lease_service_pb2_grpc.LeaseServiceStub(self.channel)
        self.effects = effect_service_pb2_grpc.EffectServiceStub(self.channel)
        self.signals = signal_service_pb2_grpc.SignalServiceStub(self.channel)
        self.records_of = record_service_pb2_grpc.RecordServiceStub(self.channel)
        self.workspaces = workspace_service_pb2_grpc.WorkspaceServiceStub(self.channel)
        self.holder = lease_pb2.Holder(name="conformance", incarnation=uuid.uuid4().hex)

    def run(self, scenario: str) -> None:
        self.thread, self.uid = f"conformance/{scenario}", ""
        try:
            getattr(self, scenario.partition("/")[0].replace("-", "_"))()
        except grpc.RpcError as error:
            self.report("error", self.name_of(error))

    # -- procedures ---------------------------------------------------------------------------------------------------

    def advance(self) -> None:
        while not self.step():
            pass

    def name_of(self, error: grpc.RpcError) -> str:
        return self.code.read_error(error)[0] or error.code().name

    def step(self) -> bool:
        """One round. Returns False after a conflict."""
        state, version, digest = self.read()
        return self.try_save(self.set_slot("seen", text(self.digest(state))), version, digest)

    def since(self) -> None:
        known, version, digest = self.read()
        request = self.hydrate_request(known_version=version, known_digest=digest)
        page, *removed = self.code.hydrate(self.checkpoints, request)
        state = self.code.apply_changes(known, page, *removed)
        edits = self.set_slot("seen", text(self.digest(state)))
        self.try_save(edits, page.checkpoint.version, page.checkpoint.digest)

    def splice(self) -> None:
        state, version, digest = self.read()
        data = state.slots["text"].data
        splices = [diff_pb2.Splice(offset=self.offset(data), delete=5, insert=b"Rome")]
        edit = diff_pb2.SpliceSlot(slot="text", base_sha256=self.sha256(data), splices=splices)
        self.try_save(diff_pb2.Edit(splice_slot=edit), version, digest)

    def count(self) -> None:
        edit = diff_pb2.Edit(add_number=diff_pb2.AddNumber(slot="count", delta=DELTA))
        answer = self.code.call(self.checkpoints.Save, self.save_request(edit))
        self.report("seen", self.digits(answer.numbers["count"]))

    def watch(self) -> None:
        request = thread_service_pb2.WatchRequest(thread=self.thread, after_sequence=0)
        seen: list[str] = []
        while not self.follow(request, seen):
            pass
        self.report("seen", ",".join(seen))

    def write_blob(self) -> None:
        blob = self.upload(BLOB)
        value = state_pb2.Value(media_type="application/octet-stream", blob=blob)
        self.code.call(self.checkpoints.Save, self.save_request(self.set_slot("file", value)))

    def read_blob(self) -> None:
        state, version, digest = self.read()
        data = self.download(state.slots["file"].blob)
        self.try_save(self.set_slot("seen", text(hashlib.sha256(data).hexdigest())), version, digest)

    def writer(self) -> None:
        Writer(self).write()

    # -- parts --------------------------------------------------------------------------------------------------------

    def hydrate_request(self, **fields: Any) -> checkpoint_service_pb2.HydrateRequest:
        return checkpoint_service_pb2.HydrateRequest(thread=self.thread, **fields)

    def read(self) -> tuple[state_pb2.State, int, bytes]:
        try:
            page, _, _ = self.code.hydrate(self.checkpoints, self.hydrate_request())
        except grpc.RpcError as error:
            if not self.is_new(error):
                raise
            self.uid = ""
            return state_pb2.State(), 0, b""
        self.uid = self.uid_of(page.checkpoint)
        return page.state, page.checkpoint.version, page.checkpoint.digest

    def is_new(self, error: grpc.RpcError) -> bool:
        return self.code.read_error(error)[0] == "THREAD_NOT_FOUND"

    def pause(self, error: grpc.RpcError) -> None:
        """Waits before a stream is opened again. Raises an error that is final."""
        pause_s = self.code.pause_after(error, 0)
        if pause_s is None:
            raise error
        time.sleep(pause_s)

    def digest(self, state: state_pb2.State) -> str:
        return hashlib.sha256(canonical(state)).hexdigest()

    def sha256(self, data: bytes) -> bytes:
        return hashlib.sha256(data).digest()

    def uid_of(self, checkpoint: checkpoint_pb2.Checkpoint) -> str:
        return checkpoint.uid

    def offset(self, data: bytes) -> int:
        return data.index(b"Paris")

    def digits(self, number: int) -> str:
        return str(number)

    def set_slot(self, slot: str, value: state_pb2.Value) -> diff_pb2.Edit:
        return diff_pb2.Edit(set_slot=diff_pb2.SetSlot(slot=slot, value=value))

    def request_id(self) -> str:
        return uuid.uuid4().hex

    def save_request(self, edit: diff_pb2.Edit | None, **fields: Any) -> checkpoint_service_pb2.SaveRequest:
        diff, fields = diff_pb2.Diff(edits=[edit] if edit else []), {"expected_uid": self.uid, **fields}
        return to_write(
            checkpoint_service_pb2.SaveRequest, thread=self.thread, diff=diff, request_id=self.request_id(), **fields
        )

    def try_save(self, edit: diff_pb2.Edit, version: int, digest: bytes) -> bool:
        """Returns False after VERSION_MISMATCH."""
        request = self.save_request(edit, expected_version=version, expected_digest=digest)
        try:
            self.code.call(self.checkpoints.Save, request)
        except grpc.RpcError as error:
            if self.code.read_error(error)[0] != "VERSION_MISMATCH":
                raise
            return False
        return True

    def report(self, slot: str, words: str) -> None:
        self.code.call(self.checkpoints.Save, self.save_request(self.set_slot(slot, text(words))))

    def follow(self, request: thread_service_pb2.WatchRequest, seen: list[str]) -> bool:
        """Reads one stream. Returns False if it broke."""
        stream = self.threads.Watch(request, timeout=self.stream_s)
        try:
            for message in stream:
                self.note_cursor(request, message)
                for event in message.events:
                    seen.append(str(event.sequence))
                    if event.checkpoint.status == checkpoint_pb2.WORK_STATUS_COMPLETED:
                        stream.cancel()
                        return True
        except grpc.RpcError as error:
            self.pause(error)
        return False

    def note_cursor(self, request: thread_service_pb2.WatchRequest, message: thread_service_pb2.WatchResponse) -> None:
        request.after_cursor = message.cursor

    def upload(self, data: bytes) -> state_pb2.BlobRef:
        def messages() -> Iterator[blob_service_pb2.WriteBlobRequest]:
            yield blob_service_pb2.WriteBlobRequest(begin=self.begin_blob(data))
            for at in range(0, len(data), 1 << 20):
                yield blob_service_pb2.WriteBlobRequest(data=data[at : at + (1 << 20)])

        while True:
            try:
                return self.blobs.WriteBlob(messages(), timeout=self.stream_s).blob
            except grpc.RpcError as error:
                self.pause(error)

    def begin_blob(self, data: bytes) -> blob_service_pb2.BlobBegin:
        return blob_service_pb2.BlobBegin(thread=self.thread, sha256=self.sha256(data), size_bytes=len(data))

    def download(self, blob: state_pb2.BlobRef) -> bytes:
        data = b""
        while True:
            request = blob_service_pb2.ReadBlobRequest(thread=self.thread, blob=blob, offset=self.next_byte(data))
            try:
                for message in self.blobs.ReadBlob(request, timeout=self.stream_s):
                    data += message.data
            except grpc.RpcError as error:
                self.pause(error)
            else:
                return data

    def next_byte(self, data: bytes) -> int:
        return len(data)


def main() -> int:
    scenario = sys.argv[-1]
    if not hasattr(RawClient, re.sub("-", "_", scenario.partition("/")[0])):
        return 77
    RawClient(os.environ["STATEWARD_TARGET"]).run(scenario)
    return 0


if __name__ == "__main__":
    sys.exit(main())
