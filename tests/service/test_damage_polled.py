"""The danger: clients that poll a damaged thread make the daemon read all of it each time, and other threads wait."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.daemon.inside import WAIT_S, Inside, daemon_inside
from tests.daemon.store import rest
from tests.daemon.wire import appends, refused, text

from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.state_pb2 import Log, State
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import Corrupt, VersionPruned
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import LOOKS

DAMAGED = "damaged"


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path) as inside:
        yield inside


def save(daemon: Inside, thread: str, number: int = 0) -> None:
    daemon.wire.save(
        SaveRequest(thread=thread, diff=appends("x"), options=WriteOptions(request_id=f"{thread}-{number}"))
    )


def damage(daemon: Inside, version: int) -> None:
    """Makes a thread with a snapshot at version 1, spoils the entry of a later one, and forgets what is in memory."""
    large = State(logs={"messages": Log(entries=[text(os.urandom(50_000).hex()) for _ in range(8)])})
    daemon.wire.save(
        SaveRequest(thread=DAMAGED, state=large, options=WriteOptions(request_id="large", expected_version=0))
    )
    for number in range(1, version):
        save(daemon, DAMAGED, number)
    store = daemon.parts.store
    thread = store.threads.cached("default", DAMAGED)
    assert thread is not None
    rest(store)
    with store.context.engine.env.begin(write=True) as txn:
        keys, tip = thread.identity.keys, thread.head.tip_sequence
        record = blocks.get_entry(txn, keys, tip)
        assert record is not None
        blocks.shrink_entry(txn, keys, tip, record[:-1] + bytes([record[-1] ^ 1]))
    store.threads.forget(thread)


def read(daemon: Inside) -> str:
    return refused(daemon.wire.checkpoints.Hydrate, HydrateRequest(thread=DAMAGED)).reason


def test_damage_is_told_while_another_threads_commit_is_on_its_way(daemon: Inside) -> None:
    """The verdict does not wait until a slow commit of others has ended, and others do not wait for the verdict."""
    damage(daemon, 3)
    with daemon.parts.store.context.writer.publishing, ThreadPoolExecutor(1) as pool:
        assert pool.submit(read, daemon).result(WAIT_S) == "CORRUPT"


def test_asking_again_reads_what_is_whole_once(daemon: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """The state up to the damage is kept: the second answer is the same, and opens no snapshot and no older edits."""
    damage(daemon, 5)
    opened: list[int] = []
    real = replay.read_edits
    monkeypatch.setattr(
        replay, "read_edits",
        lambda txn, identity, entry, *rest: (opened.append(entry.header.version), real(txn, identity, entry, *rest))[1],
    )  # fmt: skip
    assert [read(daemon), read(daemon)] == ["CORRUPT", "CORRUPT"]
    assert opened[-1] == 5
    assert opened.count(5) >= 2  # a third time if a commit came in between
    assert all(opened.count(version) == 1 for version in set(opened) - {5})


def test_a_look_with_a_commit_in_between_is_no_verdict(daemon: Inside) -> None:
    """What a commit of the same thread makes look like damage is looked at again; one of another thread does not."""
    save(daemon, "same")
    store, looks = daemon.parts.store, list[int]()

    def look(thread: str, moves: int) -> str:
        looks.append(len(looks))
        if len(looks) <= moves:
            save(daemon, thread, len(looks))
            raise Corrupt("an entry is missing", "same")
        return "whole"

    assert store.read(look, "same", 2) == "whole"
    looks.clear()
    with pytest.raises(Corrupt):
        store.read(look, "other", 2)
    assert len(looks) == 1


def test_a_thread_that_changes_all_the_time_is_read_without_commits_in_the_end(daemon: Inside) -> None:
    """After some looks that were disturbed, the last one holds commits back, and what it sees is right."""
    store, looks = daemon.parts.store, list[int]()
    save(daemon, "busy")
    may_save = threading.Semaphore(0)
    saved = threading.Semaphore(0)

    def write() -> None:
        for number in range(1, LOOKS + 2):
            may_save.acquire(timeout=WAIT_S)
            save(daemon, "busy", number)
            saved.release()

    def look() -> str:
        looks.append(len(looks))
        if len(looks) > LOOKS:
            may_save.release()
            assert not saved.acquire(timeout=0.1)  # it waits for this look
            return "whole"
        may_save.release()
        assert saved.acquire(timeout=WAIT_S)
        raise VersionPruned("gone", thread="busy")

    writing = threading.Thread(target=write)
    writing.start()
    try:
        assert store.read(look) == "whole"
    finally:
        writing.join(WAIT_S)
    assert len(looks) == LOOKS + 1
