"""The danger: a machine with an empty disk reads a copied thread as empty, because the state that was copied is not in
the bucket."""

from __future__ import annotations

import pytest
from tests.archive_model.faults import Fault
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.test_archive_model import Rules
from tests.daemon.driven import NAMESPACE

from stateward.v1.thread_service_pb2 import ForkThreadRequest
from stateward_sidecar.archive.objects.fetch import Fetcher
from stateward_sidecar.archive.objects.image import open_image, part_refs
from stateward_sidecar.archive.objects.packs import find_missing_snapshots, is_pack, open_tail

NONE: tuple[Fault, ...] = ()


def copy_and_work(history: Rules, *, size: int, packed: bool) -> None:
    """The first sidecar makes a copy, with more snapshots than its first one, and archives it."""
    history.fork(0, "a", NONE)
    for _ in range(3):
        history.work(0, "fork", 4, size, archived=packed)
        history.background(0, NONE)
    history.ship(0, NONE)


@pytest.mark.parametrize("packed", [True, False], ids=["in packs", "in HEAD"])
def test_an_empty_disk_gets_the_state_that_was_copied(history: Rules, packed: bool) -> None:
    """With the entries, in the same fetch, for a writer. The teardown reads each version on a third machine."""
    copy_and_work(history, size=60, packed=packed)
    history.take(1, "fork", NONE)
    copy = history.sidecars[1].find("fork")
    assert copy is not None
    assert not copy.floor_sequence
    assert 1 in copy.snapshots
    assert len(copy.snapshots) > 1


def test_a_copy_of_a_copy_is_as_whole(history: Rules) -> None:
    """All versions are copied on a machine that has fetched them, and go to the next one through the bucket."""
    copy_and_work(history, size=60, packed=True)
    history.take(1, "fork", NONE)
    request = ForkThreadRequest(namespace=NAMESPACE, thread="fork", new_thread="b", all_versions=True)
    history.act(1, "copy fork", lambda it: it.fork(request))
    history.ship(1, NONE)
    history.read_old(0, "b", 1, NONE)


def test_a_bucket_without_the_state_that_was_copied_is_flawed(history: Rules) -> None:
    """The check of the archive's structure names the snapshot, whether packs or HEAD have its entry."""
    for packed in (True, False):
        copy_and_work(history, size=60, packed=packed)
        assert flaws(history, history.sidecars[0]) >= {1}
        history.delete(0, "fork", NONE, now=True)


def flaws(history: Rules, sidecar: Sidecar) -> set[int]:
    """The versions that are named when no object is a snapshot; none is while they are there."""
    hold = sidecar.hold_of("fork")
    assert hold is not None
    identity, objects, fetcher = hold.thread.identity, history.net.bucket.objects, Fetcher(sidecar.wire)
    seen = fetcher.look(identity.namespace_keys, hold.place, with_key=False)
    assert seen is not None
    head = seen.head
    image = open_image(identity.cipher, head, [objects[hold.place.object(ref)] for ref in part_refs(head)])
    refs = [*(fetcher.indexed(hold.place, head.index) if head.HasField("index") else ()), *head.objects]
    tail = open_tail(head, identity.cipher)
    assert not list(find_missing_snapshots(head, image, refs, tail))
    packs = [ref for ref in refs if is_pack(ref)]
    return {flaw.version for flaw in find_missing_snapshots(head, image, packs, tail)}
