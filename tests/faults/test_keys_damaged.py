"""The danger: a damaged key looks like a thread that never was, so an agent starts from nothing, under a new key over
the old data."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from tests.daemon.store import opened
from tests.faults.rig import GONE, HEALTHY, NAMES, OTHER, SPACE, Judge, Made, copy

from stateward.v1.error_reason_pb2 import ERROR_REASON_KEY_UNAVAILABLE
from stateward_sidecar.errors import KeyUnavailable, StartError
from stateward_sidecar.storage.keyslots import SLOT_BYTES
from stateward_sidecar.storage.keywraps import ERASED, NAMESPACE, THREAD

ALL = {*NAMES, HEALTHY}


def slots(made: Made) -> dict[int, bytes]:
    """The slots in use."""
    data = (made.directory / "keys").read_bytes()
    found = {at // SLOT_BYTES: data[at : at + SLOT_BYTES] for at in range(0, len(data), SLOT_BYTES)}
    return {number: slot for number, slot in found.items() if any(slot)}


def damaged_by(made: Made, slot: bytes) -> set[str]:
    """Names of the threads whose keys a slot holds."""
    with opened(made.directory, key=made.key, settles=False) as store:
        keys = store.context.keystore
        found = set()
        for space, name in made.saves:
            identity = keys.namespace_id(space)
            if slot[0] == NAMESPACE and slot[4:20] == identity:
                found.add(name)
            with store.context.engine.read() as txn:
                if slot[0] == THREAD and slot[4:20] == store.threads.get(txn, space, name).identity.uid:
                    found.add(name)
    return found


def change(judge: Judge, at: int, data: bytes) -> Path:
    directory = copy(judge.made, judge.scratch)
    with (directory / "keys").open("r+b") as file:
        file.seek(at)
        file.write(data)
    return directory


def test_the_slots_are_those_of_living_threads_and_namespaces(made: Made) -> None:
    """Two namespaces and four threads: the key of the deleted thread is gone, its slot is zeros."""
    kinds = [slot[0] for number, slot in slots(made).items() if number > 1]
    assert sorted(kinds) == [NAMESPACE] * 2 + [THREAD] * 4


def test_a_flipped_bit_is_key_unavailable_and_nothing_begins_anew(made: Made, judge: Judge) -> None:
    """A bit of a slot: its threads are KEY_UNAVAILABLE, also for saves, never THREAD_NOT_FOUND; others are fine."""
    for number, slot in slots(made).items():
        if number < 2:
            continue
        damaged = damaged_by(made, slot)
        assert damaged
        for place in sorted({0, 1, 2, 4, 11, 19, 20, 35, 36, 47, 48, 70, 95, 127}):
            for bit in (0, 1, 5) if place == 0 else (place % 8,):
                directory = change(judge, number * SLOT_BYTES + place, bytes((slot[place] ^ 1 << bit,)))
                judged = judge.judge_directory(damaged | {GONE}, directory)
                assert judged.faults == [], (number, place, bit)
                assert judged.findings or not judged.is_felt, (number, place, bit)


def test_swapped_slots_are_key_unavailable(made: Made, judge: Judge) -> None:
    """Keys that changed their owners' names open nothing."""
    used = [(number, slot) for number, slot in slots(made).items() if slot[0] == THREAD and number > 1]
    (one, first), (two, second) = used[:2]
    with_ids_kept = {one: first[:36] + second[36:], two: second[:36] + first[36:]}
    directory = copy(made, judge.scratch)
    with (directory / "keys").open("r+b") as file:
        for number, slot in with_ids_kept.items():
            file.seek(number * SLOT_BYTES)
            file.write(slot)
    judged = judge.judge_directory(damaged_by(made, first) | damaged_by(made, second), directory)
    assert judged.faults == []
    assert {finding.reason for finding in judged.findings} == {ERROR_REASON_KEY_UNAVAILABLE}


def test_a_cut_off_key_store_is_key_unavailable(made: Made, judge: Judge) -> None:
    """Slots that are missing at the end are keys that are missing."""
    used = slots(made)
    last = max(used)
    directory = copy(made, judge.scratch)
    with (directory / "keys").open("r+b") as file:
        file.truncate(last * SLOT_BYTES + 50)
    judged = judge.judge_directory(damaged_by(made, used[last]) | {GONE}, directory)
    assert judged.faults == []
    assert judged.findings


def test_a_damaged_root_is_refused_at_start(made: Made, judge: Judge) -> None:
    """Without the root key nothing can be read: the daemon does not start, and does not make a new one."""
    for place in (0, 4, 20, 36, 60, 100):
        at = SLOT_BYTES + place
        old = (made.directory / "keys").read_bytes()[at]
        directory = change(judge, at, bytes((old ^ 1,)))
        with pytest.raises(StartError, match="KEY_UNAVAILABLE"), opened(directory, key=made.key, settles=False):
            pass
        assert (directory / "keys").read_bytes()[at] == old ^ 1


def test_a_lost_namespace_key_is_not_replaced(made: Made, judge: Judge) -> None:
    """Where threads are wrapped for a namespace whose slot is gone, its name is not free for a new key."""
    with opened(made.directory, key=made.key, settles=False) as store:
        identity = store.context.keystore.namespace_id(OTHER)
    number = next(number for number, slot in slots(made).items() if slot[0] == NAMESPACE and slot[4:20] == identity)
    directory = change(judge, number * SLOT_BYTES, bytes(SLOT_BYTES))
    judged = judge.judge_directory({HEALTHY}, directory)
    assert judged.faults == []
    assert [finding.reason for finding in judged.findings] == [ERROR_REASON_KEY_UNAVAILABLE]
    assert not (directory / "keys").read_bytes()[number * SLOT_BYTES :][:SLOT_BYTES].strip(b"\0")


def test_old_data_cannot_be_read_once_the_key_is_gone(made: Made, judge: Judge) -> None:
    """A copy of the data from before a deletion, with the key store from after it, opens nothing of the thread."""
    directory = copy(made, judge.scratch)
    shutil.copytree(directory, old := directory.with_name("old"), dirs_exist_ok=True)
    with opened(directory, key=made.key, settles=False) as store:
        with store.context.engine.read() as txn:
            thread = store.threads.get(txn, SPACE, "alpha")
        from stateward.v1.thread_service_pb2 import DeleteThreadRequest
        from stateward_sidecar.storage.queue import Write

        delete = store.deleter.delete(DeleteThreadRequest(namespace=SPACE, thread="alpha"))
        store.context.writer.submit(Write(run=delete, frees_space=True), wait=True).wait()
        uid, data_key = (
            thread.identity.uid,
            store.context.keystore.thread_key(thread.identity.uid, thread.identity.namespace_keys),
        )
        assert data_key is None
    kept = (directory / "keys").read_bytes()
    assert not any(slot[0] in (THREAD, ERASED) and slot[4:20] == uid for slot in _all_slots(kept))
    shutil.copy(directory / "keys", old / "keys")
    with opened(old, key=made.key, settles=False) as store, store.context.engine.read() as txn:
        with pytest.raises(KeyUnavailable) as caught:
            store.threads.get(txn, SPACE, "alpha")
        assert caught.value.metadata["thread"] == "alpha"
        assert store.threads.get(txn, SPACE, "beta").name == "beta"
    shutil.rmtree(old)


def _all_slots(data: bytes) -> list[bytes]:
    return [data[at : at + SLOT_BYTES] for at in range(0, len(data), SLOT_BYTES)]
