"""The Python client under `stateward conformance`: each procedure in a few lines.

stateward conformance -- python -m tests.conformance.with_client
"""

from __future__ import annotations

import hashlib
import os
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from stateward import Client, Rules, Status, Text
from stateward.changes import SetSlot, SpliceSlot
from stateward.conformance.canonical import digest_of
from stateward.errors import (
    Corrupt,
    DeadlineExceeded,
    InvalidField,
    RecordConflict,
    RestoreUnfinished,
    StatewardError,
    VersionMismatch,
)
from stateward.v1 import state_pb2

DEADLINE_S = 2.0
FRAMES = 4
BLOB = (bytes(range(251)) * 10_000)[:2_500_000]
DELTA = 9007199254740993
TERM_S, WORK_S = 1.0, 2.0
POLL_S = 0.02
TIME_NS = 1_700_000_000_123_456_789


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


def write_tree(thread: Any) -> None:
    write_files(thread, lay_small_files)


def write_large(thread: Any) -> None:
    data = b"".join(hashlib.sha256(b"%d" % number).digest() for number in range(93_750))
    write_files(thread, lambda root: lay(root, {b"large": data}))


def write_many(thread: Any) -> None:
    write_files(thread, lambda root: lay(root, {b"%d" % number: b"%d" % number for number in range(33_000)}))


def lay_small_files(root: Path) -> None:
    for name in ("a/empty", "n"):
        (root / name).mkdir(parents=True)
    (root / "a/link").symlink_to("../B")
    files = {b"B": b"", b"a/run.sh": b"#!/bin/sh\n", b"a.txt": b"text", b"old": b"old", b"\xff": b"raw"}
    files |= {b"n/%d" % number: b"%d" % number for number in range(9)}
    lay(root, files | {name.encode(): name.encode() for name in ("\uff5e", "\U0001f600")})
    (root / "a/run.sh").chmod(0o755)
    for name, time_ns in (("old", -1_000_000_001), ("a/link", TIME_NS)):
        os.utime(root / name, ns=(0, time_ns), follow_symlinks=False)


def lay(root: Path, files: dict[bytes, bytes]) -> None:
    for name, data in files.items():
        path = root / os.fsdecode(name)
        path.write_bytes(data)
        os.utime(path, ns=(TIME_NS, TIME_NS))


def write_files(thread: Any, lay_files: Callable[[Path], None]) -> None:
    """Keeps the files of a directory in a version."""
    with TemporaryDirectory() as place:
        lay_files(Path(place))
        workspace = thread.workspace(place, Rules(left_out=(), secrets=()))
        while True:
            shot = workspace.snapshot()
            try:
                return thread.apply([SetSlot("seen", Text(shot.tree.digest.hex()))], workspace=shot)
            except InvalidField as error:
                if error.field != "workspace":
                    raise


def read_tree(thread: Any) -> None:
    with TemporaryDirectory() as place:
        try:
            thread.trees.fork_into(f"{place}/files")
        except (Corrupt, RestoreUnfinished) as error:
            if not isinstance(error.__cause__ or error, Corrupt):
                raise
            thread.set_slot("error", Text("CORRUPT"))
        else:
            form = b"".join(b"%d:%b" % (len(field), field) for field in tree_form(os.fsencode(f"{place}/files")))
            thread.set_slot("seen", Text(hashlib.sha256(form).hexdigest()))


def tree_form(top: bytes) -> Iterator[bytes]:
    """The fields of the form of a tree."""
    below = [place + b"/" + name for place, *names in os.walk(top) for name in names[0] + names[1]]
    for path in sorted(below, key=lambda path: path.split(b"/")):
        facts = os.lstat(path)
        is_directory, is_link = stat.S_ISDIR(facts.st_mode), stat.S_ISLNK(facts.st_mode)
        yield path[len(top) + 1 :]
        yield b"directory" if is_directory else b"symlink" if is_link else b"file"
        yield b"%d" % (not is_directory and not is_link and bool(facts.st_mode & stat.S_IXUSR))
        yield b"%d" % (0 if is_directory else facts.st_mtime_ns)
        shown = Path(os.fsdecode(path))
        yield b"" if is_directory else os.fsencode(shown.readlink()) if is_link else shown.read_bytes()


def diff_trees(thread: Any) -> None:
    signs = {"make": "+", "replace": "~", "delete": "-"}
    changes = thread.trees.diff(1, 2)
    thread.set_slot("seen", Text(",".join(signs[each.action] + each.path.decode() for each in changes)))


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
