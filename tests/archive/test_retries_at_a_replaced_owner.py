"""The danger: a replaced owner judges a retry by its old head, or names itself as another sidecar."""

from __future__ import annotations

import pytest
from tests.daemon.driven import Driven, append
from tests.daemon.town import Town

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import ArchiveUnavailable, NotOwner, ThreadNotFound, VersionMismatch

DELETION = DeleteThreadRequest(namespace="default", thread="job")


@pytest.fixture
def replaced(driven: Town) -> tuple[Driven, Driven, SaveRequest]:
    """An owner that was replaced a moment ago, the one that did it, and the save that was made there."""
    first, second = driven.machine("first"), driven.machine("second")
    for version in range(3):
        first.put(append(after=version))
    first.ship_now()
    second.archive.own("default", "job", take_over=True)
    second.put(append(after=3))
    saved = append(b"once", after=4, request_id="once")
    second.put(saved)
    second.ship_now()
    return first, second, saved


def test_a_retry_of_what_was_applied_elsewhere(replaced: tuple[Driven, Driven, SaveRequest]) -> None:
    """It expects a version that this disk lacks: HEAD is asked, and the thread is another's, or its own again."""
    first, second, saved = replaced
    with pytest.raises(NotOwner):
        first.put(saved)
    first.archive.own("default", "job", take_over=True)
    answer = first.put(saved)
    assert (answer.version, answer.receipt.replayed) == (5, True)
    assert second.thread().head.last_version == 5


def test_a_retry_of_what_was_given_up_elsewhere(replaced: tuple[Driven, Driven, SaveRequest]) -> None:
    """The thread is free again: the retry is answered as the first time."""
    first, second, saved = replaced
    second.archive.detach("default", "job")
    answer = first.put(saved)
    assert (answer.version, answer.receipt.replayed) == (5, True)


def test_a_plain_conflict_asks_nobody(replaced: tuple[Driven, Driven, SaveRequest]) -> None:
    """Who expects less than there is has lost a race here; who expects more costs one request."""
    first, second, _ = replaced
    before = first.requests
    with pytest.raises(VersionMismatch):
        first.put(append(after=1))
    assert first.requests == before
    before = second.requests
    with pytest.raises(VersionMismatch):
        second.put(append(after=9))
    assert second.requests == before + 1


def test_a_write_to_the_next_thread_of_the_name(replaced: tuple[Driven, Driven, SaveRequest]) -> None:
    """The successor deleted the thread and made it again. The replaced owner has another creation than is expected, and
    asks HEAD before it says so."""
    first, second, _ = replaced
    second.delete(DELETION)
    second.put(append(after=0))
    second.ship_now()
    later = append(after=1)
    later.options.expected_uid = second.thread().identity.uid_text
    with pytest.raises(NotOwner):
        first.put(later)
    second.archive.detach("default", "job")
    assert first.put(later).version == 2


def test_a_late_write_claims_no_name(driven: Town, replaced: tuple[Driven, Driven, SaveRequest]) -> None:
    """The thread was deleted, here or elsewhere: a write that continues it leaves nothing in the archive."""
    _, second, _ = replaced
    late = append(after=3)
    late.options.expected_uid = second.thread().identity.uid_text
    second.delete(DELETION)
    for machine in (second, driven.machine("third")):
        heads = machine.wire.traffic.heads
        with pytest.raises(ThreadNotFound):
            machine.put(late)
        assert machine.archive.state.hooks.claims == {}
        assert machine.wire.traffic.heads == heads  # neither claimed nor given back


def test_unknown_is_no_conflict(replaced: tuple[Driven, Driven, SaveRequest], monkeypatch: pytest.MonkeyPatch) -> None:
    """While HEAD cannot be asked nobody can say what the thread's version is."""
    first, _, saved = replaced
    monkeypatch.setattr(first.archive.fetcher, "look", _away)
    with pytest.raises(ArchiveUnavailable):
        first.put(saved)


def _away(*_: object, **__: object) -> None:
    raise ArchiveUnavailable("away")


@pytest.mark.parametrize("is_new", [False, True], ids=["the process that wrote HEAD", "a later process"])
def test_who_gives_a_thread_up_is_nobody_else(is_new: bool, driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """While HEAD is on its way, after it landed and after a restart, no other sidecar is named."""
    first = driven.machine("first")
    first.put(append(after=0))
    first.ship_now()
    first = first.restart() if is_new else first
    put, seen = first.wire.replace, list[str]()

    def replace(*arguments: object) -> str:
        seen.append(first.state().owner_id)
        return put(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(first.wire, "replace", replace)
    first.archive.detach("default", "job")
    seen.append(first.state().owner_id)
    seen.append(first.restart().state().owner_id)
    second = driven.machine("second")
    seen.append(second.state().owner_id)
    assert seen == [""] * 4
