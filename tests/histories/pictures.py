"""Large values of a history: a few contents that come again and again, as blobs in a slot that no order is checked of.

Many are written and never named, so daemons collect them after some seconds. Whoever reads a version that names one
wants its bytes as well.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from hashlib import sha256

import grpc
from tests.histories.machines import Machine

from stateward._operations.failures import read_details
from stateward.v1.blob_service_pb2 import BlobBegin, ReadBlobRequest, WriteBlobRequest
from stateward.v1.state_pb2 import BlobRef, State

SLOT = "picture"
CONTENTS = [random.Random(f"picture {number}").randbytes(2000 + number) for number in range(6)]
# They take long to upload where that has a limit.
HUGE_BYTES = 160_000
HUGE = [random.Random(f"huge picture {number}").randbytes(HUGE_BYTES + number) for number in range(12)]
_BY_DIGEST = {sha256(content).digest(): content for content in (*CONTENTS, *HUGE)}
BROKEN = ("CORRUPT", "INTERNAL")


def reference(content: bytes) -> BlobRef:
    """What names a content."""
    return BlobRef(sha256=sha256(content).digest(), size_bytes=len(content))


def write(machine: Machine, thread: str, content: bytes, timeout_s: float) -> None:
    """Writes a content to a thread that there is. What fails is tried again by the save that needs it."""

    def messages() -> Iterator[WriteBlobRequest]:
        ref = reference(content)
        yield WriteBlobRequest(begin=BlobBegin(thread=thread, sha256=ref.sha256, size_bytes=ref.size_bytes))
        yield WriteBlobRequest(data=content)

    try:
        machine.wire.blobs.WriteBlob(messages(), timeout=timeout_s)
    except grpc.RpcError as error:
        if (details := read_details(error.trailing_metadata() or ())).reason in BROKEN:
            machine.complaints.append(f"a blob was refused: {details.reason}: {error.details()}")


def look(machine: Machine, thread: str, state: State, timeout_s: float, *, is_patient: bool) -> str:
    """Reads the bytes that a state names. Returns what is wrong with them; empty = nothing.

    ``is_patient``: all is well, so every error is wrong. Else calls may fail, and the thread may be taken meanwhile.
    """
    if SLOT not in state.slots:
        return ""
    value = state.slots[SLOT]
    request = ReadBlobRequest(thread=thread, blob=value.blob)
    try:
        found = b"".join(
            each.data for each in machine.wire.blobs.ReadBlob(request, timeout=timeout_s, wait_for_ready=is_patient)
        )
    except grpc.RpcError as error:
        reason = read_details(error.trailing_metadata() or ()).reason
        if is_patient or reason in BROKEN:
            return f"the blob of a state: {reason or error.code().name}: {error.details()}"
        return ""
    return "" if found == _BY_DIGEST.get(value.blob.sha256) else "the blob of a state has other bytes"
