"""One call to a daemon, and what it was answered, as a history records it."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import grpc
from tests.histories import pictures
from tests.histories.machines import Machine
from tests.histories.recorder import Words

from stateward._operations.failures import read_details
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, SaveRequest, SaveResponse
from stateward.v1.thread_service_pb2 import WaitDurableRequest, WaitDurableResponse

LOG, SLOT = "words", "last"
PAGE_BYTES = 64 << 20
# Errors that say that nothing was written.
REFUSALS = {"NOT_OWNER", "ARCHIVE_UNAVAILABLE", "SHUTTING_DOWN", "QUEUE_FULL", "LEASE_HELD"}
NEWER = "NEWER_FORMAT"  # another machine is of the next format
# A version may not name a blob that was lost with its line, or collected since it was written.
LACKS_BLOB = "write it first with WriteBlob"
# Errors without a reason come from gRPC: whether the call was done is unknown.
_UNKNOWN = {"DEADLINE_EXCEEDED", "OUTCOME_UNKNOWN"}
_LOST = {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.CANCELLED}

Attempt = dict[str, Any]


def attempt(machine: Machine, thread: str, call: Callable[[], Attempt]) -> Attempt:
    """Makes a call; its answer or its error, with machine and times."""
    disk, begun = (machine.disk(thread), machine.is_losing(thread)), time.monotonic_ns()
    try:
        answer = call()
    except grpc.RpcError as error:
        answer = classify(error)
        if answer["outcome"] == "broken" and answer["reason"].startswith(NEWER) and not machine.is_newer:
            is_kept = "sequence" in read_details(error.trailing_metadata() or ()).metadata
            answer = {"outcome": "unknown" if is_kept else "refused", "reason": NEWER}
    ended = time.monotonic_ns()
    is_same = disk == (machine.disk(thread), machine.is_losing(thread)) and disk[0] == disk[1]
    return {
        "machine": machine.name, "disk": disk[0] if is_same else -1, "stormy": machine.is_stormy(begun / 1e9),
        "call": begun, "return": ended, **answer,
    }  # fmt: skip


def classify(error: grpc.RpcError) -> Attempt:
    """What an error says of the call."""
    details = read_details(error.trailing_metadata() or ())
    reason, facts = details.reason, details.metadata
    if reason == "VERSION_MISMATCH":
        found = {"version": int(facts["current_version"]), "digest": facts["current_digest"]}
        return {"outcome": "mismatch", **found}
    if reason in ("THREAD_NOT_FOUND", "UID_MISMATCH", "VERSION_NOT_FOUND"):
        return {"outcome": "absent", "reason": reason}
    if reason == "FENCED":
        return {"outcome": "fenced", "reason": facts.get("orphan", "")}
    if reason in REFUSALS or (reason == "INVALID_FIELD" and LACKS_BLOB in (error.details() or "")):
        return {"outcome": "refused", "reason": reason}
    if reason in _UNKNOWN or (not reason and error.code() in _LOST):
        return {"outcome": "unknown", "reason": reason or error.code().name}
    return {"outcome": "broken", "reason": f"{reason or error.code().name}: {error.details()}"}


def saved(answer: SaveResponse) -> Attempt:
    """A save that was answered."""
    return {
        "outcome": "ok", "version": answer.version, "digest": answer.receipt.digest.hex(),
        "sequence": answer.receipt.sequence,
        "durability": "archived" if answer.receipt.durability == DURABILITY_ARCHIVED else "committed",
        "replayed": answer.receipt.replayed, "uid": answer.receipt.uid,
    }  # fmt: skip


def save(machine: Machine, request: SaveRequest, timeout_s: float) -> Attempt:
    """Sends a save."""

    def call() -> Attempt:
        return saved(machine.wire.checkpoints.Save(request, timeout=timeout_s))

    return attempt(machine, request.thread, call)


def wait_archived(machine: Machine, request: WaitDurableRequest, made: Attempt, timeout_s: float) -> Attempt:
    """Asks until a save that was answered is archived. If it is, the answer says so of the version that was made."""

    def call() -> Attempt:
        answer: WaitDurableResponse = machine.wire.threads.WaitDurable(request, timeout=timeout_s)
        if answer.receipt.durability != DURABILITY_ARCHIVED:
            return {"outcome": "unknown", "reason": "waited"}
        return {**{key: made[key] for key in ("version", "digest", "sequence")}, "outcome": "ok", "reason": "waited",
                "durability": "archived"}  # fmt: skip

    answered = attempt(machine, request.thread, call)
    if answered["outcome"] == "fenced":
        return {**answered, "version": made["version"], "digest": made["digest"]}
    if answered["outcome"] in ("mismatch", "absent", "refused"):
        answered["outcome"], answered["reason"] = "unknown", f"waited: {answered['outcome']}"
    return answered


def read(
    machine: Machine, words: Words, thread: str, version: int, timeout_s: float, *, is_patient: bool = False
) -> Attempt:
    """Reads the head, or with ``version`` that version. ``is_patient`` waits for a daemon that is starting."""
    request = HydrateRequest(thread=thread, max_bytes=PAGE_BYTES)
    if version:
        request.version.version = version

    def call() -> Attempt:
        answer = machine.wire.checkpoints.Hydrate(request, timeout=timeout_s, wait_for_ready=is_patient)
        assert not answer.next_page_token
        wrong = pictures.look(machine, thread, answer.state, timeout_s, is_patient=is_patient)
        return {"outcome": "broken", "reason": wrong} if wrong else shown(answer, words)

    return attempt(machine, thread, call)


def shown(answer: HydrateResponse, words: Words) -> Attempt:
    """A state that was read."""
    checkpoint = answer.checkpoint
    return {
        "outcome": "ok", "version": checkpoint.version, "digest": checkpoint.digest.hex(),
        "sequence": checkpoint.sequence, "archived_sequence": answer.archived_sequence, "owner": answer.owner_id,
        "log": tokens(answer.state, words),
    }  # fmt: skip


def tokens(state: Any, words: Words) -> list[str]:
    """The tokens in the log. A slot that does not name the last one is shown as a token that nobody wrote."""
    found = [words.read(entry.data) for entry in state.logs[LOG].entries] if LOG in state.logs else []
    slot = state.slots[SLOT].data.decode(errors="replace") if SLOT in state.slots else ""
    if found and slot != found[-1]:
        found.append(f"slot of {slot}")
    return found
