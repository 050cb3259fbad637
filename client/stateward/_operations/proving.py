"""Proves that a thread continues a version whose digest somebody kept: reads all digests behind it, and compares."""

from __future__ import annotations

from stateward._operations.steps import Call, Operation, ThreadRef, version_ref
from stateward.arguments import instance, whole_number
from stateward.errors import Corrupt
from stateward.models import Checkpoint, EntryDigest, Proof
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1.thread_service_pb2 import ReadDigestsRequest, ReadDigestsResponse


def prove(ref: ThreadRef, since: Checkpoint | tuple[int, bytes] | None) -> Operation[Proof]:
    """Returns the entries behind a version; None = all entries that are there. Raises Corrupt if one does not continue
    the one before it."""
    request = ref.about(ReadDigestsRequest)
    if since is not None:
        version, digest = _place(since)
        asked = ref.about(checkpoints.GetCheckpointRequest, version=version_ref(version))
        asked.version.digest = digest
        found = (yield Call("GetCheckpoint", asked)).checkpoint
        request.uid, request.after_sequence, request.after_digest = found.uid, found.sequence, found.digest
    entries: list[EntryDigest] = []
    while True:
        answer: ReadDigestsResponse = yield Call("ReadDigests", request)
        for each in map(EntryDigest.from_proto, answer.entries):
            if each.sequence == request.after_sequence + 1 and each.previous_digest != request.after_digest:
                raise Corrupt(
                    f"entry {each.sequence} of thread {ref.thread!r} does not continue the entry before it",
                    reason="CORRUPT", metadata={"thread": ref.thread},
                )  # fmt: skip
            request.uid, request.after_sequence, request.after_digest = answer.uid, each.sequence, each.digest
            entries.append(each)
        if not answer.entries or request.after_sequence >= answer.newest_sequence:
            return Proof(answer.uid, tuple(entries))


def _place(since: Checkpoint | tuple[int, bytes]) -> tuple[int, bytes]:
    if isinstance(since, Checkpoint):
        return since.version, since.digest
    what = "a Checkpoint, or a version and its digest"
    if len(instance(since, "since", tuple, what)) != len(("version", "digest")):
        raise TypeError(f"since takes {what}, not {since!r:.100}")
    return whole_number(since[0], "since"), instance(since[1], "since", bytes, what)
