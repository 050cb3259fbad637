"""The danger: the archive drops a snapshot that later entries are compressed against, so nobody can ever open those
entries."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.archive_model.faults import Fault
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.test_archive_model import Rules
from tests.daemon import small
from tests.daemon.driven import NAMESPACE

from stateward._operations.threads import numbers_of, spans_of
from stateward.storage.v1.archive_pb2 import OBJECT_KIND_SNAPSHOT
from stateward.v1.thread_pb2 import Retention
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.thread import Thread, rows

NONE: tuple[Fault, ...] = ()


@pytest.fixture
def history() -> Iterator[Rules]:
    """Thread `a` of the first sidecar, with snapshots that later versions name as dictionary, all archived."""
    made = Rules()
    try:
        made.first_steps(size=10, archived=True)
        made.work(0, "a", count=5, size=1000, archived=True)
        yield made
    finally:
        small.restore()


def thread_of(sidecar: Sidecar) -> Thread:
    found = sidecar.find("a")
    assert found is not None
    return found


def dictionary(sidecar: Sidecar) -> int:
    """A snapshot that a version names, and that is no branch's own."""
    thread = thread_of(sidecar)
    with sidecar.store.context.engine.read() as txn:
        named = {
            replay.read_version(txn, thread, version).header.dictionary_version
            for version in range(1, thread.head.last_version + 1)
        }
    heads = {branch.snapshot_version for branch in thread.branches.values()}
    return min(named - heads - {0})


def archived_snapshots(sidecar: Sidecar) -> set[int]:
    hold = sidecar.archive.state.holds[thread_of(sidecar).number]
    found = {ref.first_version for ref in hold.head.objects if ref.kind == OBJECT_KIND_SNAPSHOT}
    return found | (hold.indexed_snapshots or set())


@pytest.mark.parametrize("is_here", [True, False], ids=["here", "lacking"])
def test_a_needed_snapshot_stays_in_the_archive(history: Rules, is_here: bool) -> None:
    """Its version was pruned, later ones need it, and one time it could not be fetched to this disk."""
    sidecar = history.sidecars[0]
    version = dictionary(sidecar)
    assert version in archived_snapshots(sidecar)
    request = PruneThreadRequest(namespace=NAMESPACE, thread="a", versions=spans_of([version]))
    assert list(numbers_of(sidecar.prune(request).pruned)) == [version]
    assert version in thread_of(sidecar).snapshots
    if not is_here:
        forget_snapshot(sidecar, version)
    history.work(0, "a", count=1, size=10, archived=True)
    history.ship(0, NONE)
    assert version in archived_snapshots(sidecar)


def test_an_unneeded_snapshot_leaves_the_archive(history: Rules) -> None:
    """Once nothing that stays names it, HEAD does not either."""
    sidecar = history.sidecars[0]
    version = dictionary(sidecar)
    history.prune(0, "a", keep=1, plan=NONE)
    history.work(0, "a", count=1, size=10, archived=True)
    history.ship(0, NONE)
    assert version not in thread_of(sidecar).snapshots
    hold = sidecar.archive.state.holds[thread_of(sidecar).number]
    assert version not in {ref.first_version for ref in hold.head.objects if ref.kind == OBJECT_KIND_SNAPSHOT}


def test_a_rule_takes_only_what_is_archived(history: Rules) -> None:
    """Newer versions stay, however old they are and however few are to be kept, until the archive has them."""
    sidecar = history.sidecars[0]
    last = thread_of(sidecar).head.last_version
    history.work(0, "a", count=3, size=10, archived=False)
    thread, chooser = thread_of(sidecar), sidecar.store.pruner.chooser
    assert thread.head.last_version == last + 3
    assert thread.archived_sequence < thread.head.tip_sequence
    assert chooser.by_rule(thread, Retention(keep_last=1)) == list(range(1, last + 1))


def forget_snapshot(sidecar: Sidecar, version: int) -> None:
    """As after the thread's history was fetched while one object could not be read."""
    thread = thread_of(sidecar)

    def run(txn: object, batch: Batch) -> None:
        del batch
        for key, _ in list(rows(txn, thread.identity.keys.snapshot_pieces(version))):  # type: ignore[arg-type]
            txn.delete(key)  # type: ignore[attr-defined]

    sidecar.write(run)
    thread.snapshots -= {version}
