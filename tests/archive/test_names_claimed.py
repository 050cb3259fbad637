"""The danger: a name that was claimed once for a save that failed is believed free for ever, and its thread forks."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.daemon.driven import NAME, NAMESPACE
from tests.daemon.town import Twins, twins

from stateward.v1.backup_service_pb2 import BackupEnd, BackupThread, ImportBegin, ThreadPart
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import NotOwner, VersionMismatch


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Twins]:
    """``a`` claimed the name, and its save failed afterwards."""
    with twins(tmp_path) as made:
        made.a.archive.own(NAMESPACE, NAME)
        with pytest.raises(VersionMismatch):
            made.a.put("x", after=3)
        yield made


def taken(pair: Twins) -> None:
    """``b`` has waited for the lease, and made the thread."""
    with pytest.raises(NotOwner):
        pair.b.put("one")
    pair.wait_for_lease()
    for word in ("one", "two", "three"):
        pair.b.put(word)
    pair.b.archive_all()


def test_whoever_claimed_it_may_use_it(pair: Twins) -> None:
    """At once, and also later, where nobody else has come: HEAD is asked."""
    pair.wait_for_lease()
    pair.a.put("one", after=0)
    pair.a.archive_all()
    assert pair.b.words() == ["one"]


def test_a_first_save_after_somebody_else_made_the_thread(pair: Twins) -> None:
    """It is not acknowledged: it would be an orphan."""
    taken(pair)
    with pytest.raises(NotOwner):
        pair.a.put("a one", after=0)
    assert pair.a.words() == ["one", "two", "three"]
    assert pair.a.orphans() == []


def test_a_save_that_expects_what_somebody_else_saved(pair: Twins) -> None:
    """It is told who has the thread, not that there is none, and passes once the thread is free."""
    taken(pair)
    with pytest.raises(NotOwner):
        pair.a.put("four", after=3)
    pair.wait_for_lease()
    pair.a.put("four", after=3)
    assert pair.a.words() == ["one", "two", "three", "four"]


def test_a_restore_after_somebody_else_made_the_thread(tmp_path: Path) -> None:
    """A restore or a copy may take longer than the lease of its name: it is not acknowledged, and leaves nothing."""
    with twins(tmp_path) as pair:
        a = pair.a
        a.archive.own(NAMESPACE, NAME)
        made = a.store.importer.begin(
            ImportBegin(namespace=NAMESPACE, thread=NAME, options=WriteOptions(request_id="restore"))
        )
        made.take([ThreadPart(thread=BackupThread())])
        taken(pair)
        made.take([ThreadPart(end=BackupEnd())])
        with pytest.raises(NotOwner):
            made.finish()
        made.discard()
        assert a.words() == ["one", "two", "three"]
        assert a.orphans() == []


def test_a_restore_under_a_second_claim(tmp_path: Path) -> None:
    """The name was lost and claimed again during the restore: HEAD goes on from the newest claim."""
    with twins(tmp_path) as pair:
        a, b = pair.a, pair.b
        a.archive.own(NAMESPACE, NAME)
        made = a.store.importer.begin(
            ImportBegin(namespace=NAMESPACE, thread=NAME, options=WriteOptions(request_id="restore"))
        )
        made.take([ThreadPart(thread=BackupThread())])
        for machine in (b, a):
            with suppress(NotOwner):
                machine.archive.own(NAMESPACE, NAME)
            pair.wait_for_lease()
            machine.archive.own(NAMESPACE, NAME)
        made.take([ThreadPart(end=BackupEnd())])
        made.finish()
        a.archive_all()
        hold = a.hold_of(NAME)
        assert hold is not None
        assert hold.head.epoch == 3
