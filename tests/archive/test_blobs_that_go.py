"""The danger: blobs come and go, and their entries stay in the journal and in the bucket for ever."""

from __future__ import annotations

from typing import Any

import pytest
from tests.archive.test_blobs_collected_elsewhere import archive_verified, name, read, take
from tests.daemon import small
from tests.daemon.driven import Driven, append
from tests.daemon.small import BLOB_KEPT_S
from tests.daemon.town import Town

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_BLOB, ENTRY_KIND_BLOB_REMOVED
from stateward_sidecar.store.journal import journal, replay

KINDS = {ENTRY_KIND_BLOB, ENTRY_KIND_BLOB_REMOVED}
LIVING = b"a picture that is shown, " * 20
ENTRIES_MAX, OBJECTS_MAX = 20, 16


def entries(machine: Driven) -> int:
    """How many entries of blobs are on a disk."""
    thread = machine.thread()
    with machine.store.context.engine.read() as txn:
        return sum(entry.header.kind in KINDS for entry in replay.read_entries(txn, thread.identity, 1))


def come_and_go(town: Town, machine: Driven, rounds: int) -> None:
    """Each round a blob that no version names, and the living one is written again."""
    for number in range(rounds):
        machine.write_blob("job", b"%d" % number)
        machine.write_blob("job", LIVING)
        machine.ship_now()
        town.time.sleep(BLOB_KEPT_S + 1)
        machine.sweep()
        machine.ship_now()


def test_a_thread_whose_blobs_go_stays_small(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rows say which blobs a thread has, so the entries go as those of tags do. The blob that is left is whole on
    every machine."""
    small.shrink(window=2)
    monkeypatch.setattr(journal, "LOOSE_MAX", 10)
    first = driven.machine("first")
    first.put(append())
    first.write_blob("job", LIVING)
    name(first, LIVING)
    for _ in range(2):
        come_and_go(driven, first, 15)
        assert entries(first) <= ENTRIES_MAX
        driven.time.sleep(700)
        first.put(append())
        first.ship_now()
        assert len(driven.bucket.objects) <= OBJECTS_MAX
    assert (first.findings(), archive_verified(first)) == ([], [])
    second = driven.machine("second")
    take(second)
    assert read(second, LIVING) == LIVING
    assert second.findings() == []
    assert second.write_blob("job", LIVING).existed
    come_and_go(driven, second, 15)
    assert entries(second) <= ENTRIES_MAX
    first.state()
    assert (read(first, LIVING), first.findings()) == (LIVING, [])


def test_a_blob_of_a_line_that_was_set_aside_is_written_again(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread is lost and comes back between the look at the blob and its renewal: only the orphan has the blob."""
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append())
    first.ship_now()
    first.write_blob("job", LIVING)
    blobs = first.store.blobs
    renew = blobs.renew

    def late(*arguments: Any, **how: Any) -> Any:
        verb = renew(*arguments, **how)
        second.archive.own("default", "job", take_over=True)
        second.put(append())
        second.ship_now()
        first.ship_now()
        first.archive.own("default", "job", take_over=True)
        monkeypatch.setattr(blobs, "renew", renew)
        return verb

    monkeypatch.setattr(blobs, "renew", late)
    assert not first.write_blob("job", LIVING).existed
    name(first, LIVING)
    first.ship_now()
    assert (first.findings(), archive_verified(first)) == ([], [])
    third = driven.machine("third")
    take(third)
    assert read(third, LIVING) == LIVING
