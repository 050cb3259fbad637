"""The Python client under `stateward conformance`: each procedure in a few lines.

stateward conformance -- python -m tests.conformance.with_client
"""

from __future__ import annotations

import hashlib
import sys
import time
import uuid
from collections.abc import Callable
from typing import Any

from stateward import Client, Status, Text
from stateward.changes import SpliceSlot
from stateward.conformance.canonical import digest_of
from stateward.errors import DeadlineExceeded, RecordConflict, StatewardError, VersionMismatch
from stateward.v1 import state_pb2

DEADLINE_S = 2.0
FRAMES = 4
BLOB = (bytes(range(251)) * 10_000)[:2_500_000]
DELTA = 9007199254740993
TERM_S, WORK_S = 1.0, 2.0
POLL_S = 0.02


def seen(state: Any) -> Text:
    """The digest of a state's canonical form."""
    message = state_pb2.State()
    for name, value in state.slots._stored.items():
        message.slots[name].CopyFrom(value)
    for name, log in state.logs._logs.items():
        message.logs[name].first_index = log.first_index
        message.logs[name].rewritten_version = log.rewritten_version
        message.logs[name].entries.extend(log._stored)
    return Text(digest_of(message))


def repeated(save: Callable[[str], Any]) -> Any:
    """Saves with one request id, also after a deadline: the save may have happened."""
    request_id = uuid.uuid4().hex
    while True:
        try:
            return save(request_id)
        except DeadlineExceeded:
            pass


def save_digest(thread: Any, state: Any) -> None:
    state.slots["seen"] = seen(state)
    repeated(lambda request_id: thread.save(state, request_id=request_id))


def advance(thread: Any) -> None:
    while True:
        try:
            return save_digest(thread, thread.hydrate())
        except VersionMismatch:
            pass


def since(thread: Any) -> None:
    known = thread.hydrate()
    save_digest(thread, thread.hydrate(since=known))


def splice(thread: Any) -> None:
    state = thread.hydrate()
    data = state.slots.raw("text").data
    change = SpliceSlot("text", ((data.index(b"Paris"), 5, b"Rome"),), hashlib.sha256(data).digest())
    thread.apply([change], parent=state.checkpoint)


def count(thread: Any) -> None:
    thread.set_slot("seen", Text(thread.increment("count", DELTA)))


def watch(thread: Any) -> None:
    sequences = []
    with thread.watch(after_sequence=0) as events:
        for event in events:
            sequences.append(str(event.sequence))
            if event.checkpoint is not None and event.checkpoint.status == Status.COMPLETED:
                break
    thread.set_slot("seen", Text(",".join(sequences)))


def write_blob(thread: Any) -> None:
    thread.set_slot("file", thread.blobs.write(BLOB))


def read_blob(thread: Any) -> None:
    state = thread.hydrate()
    state.slots["seen"] = Text(hashlib.sha256(state.slots["file"].read()).hexdigest())
    thread.save(state)


def writer(thread: Any) -> None:
    with thread.writer() as stream:
        state = thread.hydrate()
        while int(state.slots["seen"]) < FRAMES:
            state.slots["seen"] = Text(int(state.slots["seen"]) + 1)
            try:
                stream.save(state)
            except VersionMismatch:
                state = thread.hydrate()


def lease(thread: Any) -> None:
    with thread.lease(term=TERM_S) as held:
        time.sleep(WORK_S)
        if held.lost is None:
            thread.set_slot("seen", Text("held"))


def guard(thread: Any, client: Client) -> None:
    with client.lock(thread.name) as lock:
        thread.set_slot("seen", Text("guarded"), guard=lock)


def effect(thread: Any) -> None:
    paid = thread.effects.run("pay", lambda: Text("paid"), check=lambda: Text("found"))
    thread.set_slot("seen", Text(paid))


def ask(thread: Any) -> None:
    thread.ask(thread.hydrate(), "May it cost 300?", wait_id="budget")
    while (state := thread.hydrate()).answer is None:
        time.sleep(POLL_S)
    state.slots["seen"] = Text(state.answer.payload)
    thread.save(state)


def answer(thread: Any) -> None:
    thread.signals.send("answer", Text("yes"), wait_id="budget")


def record(thread: Any) -> None:
    while True:
        found = thread.records.get("count")
        try:
            if found is None:
                return thread.records.put("count", Text(1), expected=0)
            return thread.records.put("count", Text(int(found.value) + 1), expected=found.revision)
        except RecordConflict:
            pass


def records(thread: Any) -> None:
    keys = [record.key for record in thread.records.list("users/", values=False)]
    found = thread.records.get_many(keys)
    thread.set_slot("seen", Text(",".join(f"{key}={found[key].value}" for key in keys if key in found)))


def run(target: str | None, scenario: str) -> None:
    """Runs the procedure of a scenario."""
    procedure = globals()[scenario.partition("/")[0].replace("-", "_")]
    with Client(target, call_timeout=DEADLINE_S) as client:
        thread = client.thread(f"conformance/{scenario}")
        try:
            procedure(thread, client) if procedure is guard else procedure(thread)
        except StatewardError as error:
            thread.set_slot("error", Text(error.reason or error.code))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        run(None, name)
