"""The danger: a copy of a thread goes from this disk during an upload and comes back, with a blob without bytes."""

from __future__ import annotations

from typing import Any

import pytest
from tests.archive.test_threads_deleted_here import delete_here
from tests.daemon.driven import NAMESPACE, Driven, append
from tests.daemon.town import Town

from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import ArchiveUnavailable, ThreadNotFound, UidMismatch

DATA = b"bytes of a blob" * 1000


def on_finish(machine: Driven, action: Any, *, is_published: bool) -> None:
    """Runs an action once, before or after the next file is made durable."""
    real = machine.store.blobs.begin_write

    def begin(*arguments: Any) -> Any:
        machine.store.blobs.begin_write = real  # type: ignore[method-assign]
        write = real(*arguments)
        finish = write.finish

        def finished(rest: bytes) -> None:
            if is_published:
                finish(rest)
                action()
                return
            write._sealing.add(rest)
            action()
            finish(b"")

        write.finish = finished  # type: ignore[method-assign]
        return write

    machine.store.blobs.begin_write = begin  # type: ignore[method-assign]


@pytest.mark.parametrize("is_published", [False, True], ids=["unpublished", "published"])
def test_the_bytes_must_be_sent_again(driven: Town, *, is_published: bool) -> None:
    """The upload is refused so that its caller sends everything again; nothing is left of the first one."""
    machine = driven.machine("first")
    machine.put(append())
    machine.ship_now()
    on_finish(machine, lambda: delete_here(machine), is_published=is_published)
    with pytest.raises(ArchiveUnavailable, match="send them again"):
        machine.write_blob("job", DATA, announced=False)
    assert machine.findings() == []
    answer = machine.write_blob("job", DATA, announced=False)
    assert not answer.existed
    assert machine.read_blob("job", answer.blob.sha256) == DATA


@pytest.mark.parametrize("is_published", [False, True], ids=["unpublished", "published"])
def test_a_thread_that_is_gone_stays_gone(driven: Town, *, is_published: bool) -> None:
    """It was deleted everywhere: no retry makes it again."""
    machine = driven.machine("first")
    machine.put(append())
    machine.ship_now()
    request = DeleteThreadRequest(namespace=NAMESPACE, thread="job")
    on_finish(machine, lambda: machine.delete(request), is_published=is_published)
    with pytest.raises(ThreadNotFound):
        machine.write_blob("job", DATA, announced=False)
    assert machine.find("job") is None


def test_a_thread_that_was_made_again_is_named(driven: Town) -> None:
    """Another creation has the name by now: the error has its uid, and does not say that there is no thread."""
    machine, other = driven.machine("first"), driven.machine("second")
    machine.put(append())
    machine.ship_now()

    def replace() -> None:
        other.archive.own(NAMESPACE, "job", take_over=True)
        other.delete(DeleteThreadRequest(namespace=NAMESPACE, thread="job"))
        other.put(append())
        other.ship_now()
        other.archive.detach(NAMESPACE, "job")
        driven.time.sleep(60)
        machine.archive.confirm(NAMESPACE, "job")

    on_finish(machine, replace, is_published=True)
    with pytest.raises(UidMismatch, match="made again") as caught:
        machine.write_blob("job", DATA, announced=False)
    assert caught.value.metadata["uid"] == other.thread().identity.uid_text
