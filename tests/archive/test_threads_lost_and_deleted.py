"""The danger: a deletion that meets something else takes the wrong thing away, or says that nothing is left."""

from __future__ import annotations

import pytest
from tests.archive.test_threads_deleted_here import delete_here
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.v1.thread_pb2 import THREAD_ACCESS_REMOTE
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import Corrupt, ThreadNotFound

REQUEST = DeleteThreadRequest(namespace=NAMESPACE, thread="job", allow_missing=True)


def begun(driven: Town) -> Driven:
    """A machine with an archived thread."""
    machine = driven.machine("first")
    machine.put(append())
    machine.ship_now()
    return machine


def test_a_deletion_leaves_the_key_of_the_next_thread(driven: Town) -> None:
    """The bucket lost the thread, and another machine made one of its name. Who deletes the lost one leaves the key of
    the other, which has the same name in the bucket."""
    first = begun(driven)
    for key in [key for key in driven.bucket.objects if key.startswith(("v1/t/", "v1/_keys/t/"))]:
        driven.bucket.delete(key)
    driven.time.sleep(60)
    first.state()
    second = driven.machine("second")
    second.put(append(b"other"))
    second.ship_now()
    first.delete(REQUEST)
    first.wire.background()
    third = driven.machine("third")
    assert third.state().state.logs["m"].entries[0].data == b"other"


def test_a_copy_goes_while_the_thread_is_deleted(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """The deletion everywhere is not answered before the archive has a tombstone."""
    first = begun(driven)
    is_current = first.archive._remover._is_current

    def then_delete_here(name: tuple[str, str]) -> bool:
        monkeypatch.undo()
        found = is_current(name)
        delete_here(first)
        return found

    monkeypatch.setattr(first.archive._remover, "_is_current", then_delete_here)
    first.delete(REQUEST)
    first.wire.background()
    with pytest.raises(ThreadNotFound):
        driven.machine("second").state()


@pytest.mark.parametrize("deleted", [False, True])
def test_a_copy_of_a_lost_thread_stays_a_copy(driven: Town, deleted: bool) -> None:
    """The bucket lost the thread in its third epoch, and another machine made one of its name, and perhaps deleted it.
    A reader of the lost one does not become its owner."""
    first = begun(driven)
    second = driven.machine("second")
    second.archive.own(NAMESPACE, "job", take_over=True)
    second.put(append(b"A"))
    second.ship_now()
    first.archive.own(NAMESPACE, "job", take_over=True)
    first.put(append(b"B"))
    first.ship_now()
    reader = driven.machine("reader")
    reader.state()
    for key in [key for key in driven.bucket.objects if key.startswith(("v1/t/", "v1/_keys/t/"))]:
        driven.bucket.delete(key)
    driven.end(first)
    other = driven.machine("other")
    other.put(append(b"other"))
    other.ship_now()
    if deleted:
        other.delete(REQUEST)
    driven.time.sleep(60)
    for _ in range(2):
        with pytest.raises(Corrupt, match="delete only this copy"):
            reader.state()
        with pytest.raises(Corrupt, match="delete only this copy"):
            reader.put(append())
    assert reader.thread().access == THREAD_ACCESS_REMOTE
    delete_here(reader)
    if deleted:
        assert reader.put(append()).version == 1
    else:
        assert reader.state().state.logs["m"].entries[0].data == b"other"
