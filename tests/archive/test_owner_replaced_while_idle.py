"""The danger: a thread was deleted elsewhere and made again while its owner was idle. The owner deletes what no longer
exists and says that the thread is deleted, or refuses a blob that belongs to the next thread of the name."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from tests.daemon.driven import CALLER, NAMESPACE, Driven, append
from tests.daemon.town import Town
from tests.daemon.unthreaded import run

from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest, WriteBlobResponse
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, DeleteThreadResponse
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import NotOwner, ThreadNotFound, UidMismatch


def delete(machine: Driven, *, uid: str = "") -> DeleteThreadResponse:
    return machine.delete(
        DeleteThreadRequest(
            namespace=NAMESPACE, thread="job", options=WriteOptions(expected_uid=uid), allow_missing=True
        )
    )


def write(machine: Driven, uid: str, data: bytes = b"a picture, " * 50) -> WriteBlobResponse:
    async def messages() -> AsyncIterator[WriteBlobRequest]:
        yield WriteBlobRequest(
            begin=BlobBegin(namespace=NAMESPACE, thread="job", options=WriteOptions(expected_uid=uid))
        )
        yield WriteBlobRequest(data=data)

    return run(machine.blobs.write_blob(messages(), CALLER))


@pytest.fixture
def idle(driven: Town) -> tuple[Driven, Driven, str]:
    """An owner that was replaced while it was idle; the sidecar that deleted its thread, made it again and gave it up;
    and the uid of the deleted thread."""
    first, second = driven.machine("first"), driven.machine("second")
    first.put(append(after=0))
    first.ship_now()
    old = first.thread().identity.uid_text
    second.archive.own(NAMESPACE, "job", take_over=True)
    delete(second)
    second.wire.background()
    second.put(append(after=0))
    second.ship_now()
    second.archive.detach(NAMESPACE, "job")
    assert first.thread().identity.uid_text == old != second.thread().identity.uid_text
    return first, second, old


@pytest.mark.parametrize("by_uid", [True, False], ids=["by its uid", "by its name"])
def test_the_thread_that_exists_is_deleted(idle: tuple[Driven, Driven, str], by_uid: bool) -> None:
    """The answer names the thread of the archive, and nobody finds it afterwards."""
    first, second, _ = idle
    uid = second.thread().identity.uid_text
    assert delete(first, uid=uid if by_uid else "").receipt.uid == uid
    for machine in (first, second):
        with pytest.raises(ThreadNotFound):
            machine.state()


def test_the_next_thread_is_not_deleted_for_the_last_one(idle: tuple[Driven, Driven, str]) -> None:
    """A deletion that names the deleted thread finds nothing to do."""
    first, second, old = idle
    assert delete(first, uid=old).receipt.uid == ""
    assert second.state().checkpoint.version == 1


def test_a_blob_of_the_thread_that_exists_is_taken(idle: tuple[Driven, Driven, str]) -> None:
    """HEAD is asked before a blob is refused, as for every other write; while others own the thread, they are named."""
    first, second, old = idle
    uid = second.thread().identity.uid_text
    second.archive.own(NAMESPACE, "job")
    with pytest.raises(NotOwner):
        write(first, uid)
    second.archive.detach(NAMESPACE, "job")
    assert write(first, uid).receipt.uid == uid
    with pytest.raises(UidMismatch):
        write(first, old)
