"""The danger: a refused batch asks the bucket again for each of its items, which costs money and time with every
retry."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.wire import Refusal, appends, refused
from tests.messages import to_write

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, VersionRef
from stateward.v1.checkpoint_service_pb2 import BatchSaveRequest, SaveRequest
from stateward.v1.thread_service_pb2 import ForkThreadRequest

ITEMS = 8


@pytest.fixture
def two(tmp_path: Path) -> Iterator[tuple[Inside, Inside]]:
    """Two sidecars on one archive; the second one has a thread that the first one may not write."""
    archive = f"file://{tmp_path}/bucket"
    flags = {"archive": archive, "archive_lease": "3600"}
    with daemon_inside(tmp_path, name="A", **flags) as one, daemon_inside(tmp_path, name="B", **flags) as other:
        other.wire.save(save("held", expected_version=0, durability=DURABILITY_ARCHIVED))
        yield one, other


def save(thread: str, **fields: object) -> SaveRequest:
    if "expected_version" not in fields:
        fields["request_id"] = f"only-{thread}"
    return to_write(SaveRequest, thread=thread, diff=appends("x"), **fields)  # type: ignore[arg-type]


def succeed(daemon: Inside) -> int:
    """What a batch of new threads costs in requests to the bucket, the namespace's key among them."""
    before = daemon.bucket.requests
    daemon.wire.checkpoints.BatchSave(BatchSaveRequest(saves=[save(f"good-{number}") for number in range(ITEMS)]))
    return daemon.bucket.requests - before


def fail(daemon: Inside, *, first: SaveRequest | None = None, last: SaveRequest | None = None) -> tuple[Refusal, int]:
    """How a batch was refused, and what it cost in requests to the bucket."""
    saves = [save(f"new-{number}") for number in range(ITEMS)]
    saves[:1] = [first] if first is not None else saves[:1]
    saves[-1:] = [last] if last is not None else saves[-1:]
    before = daemon.bucket.requests
    found = refused(daemon.wire.checkpoints.BatchSave, BatchSaveRequest(saves=saves))
    return found, daemon.bucket.requests - before


def test_a_batch_with_anothers_thread_asks_once_for_each_item(two: tuple[Inside, Inside]) -> None:
    """The refusal names the item, whichever it is, and costs no more requests than a batch that is taken."""
    daemon, _ = two
    good = succeed(daemon)
    for place in ("first", "last"):
        found, requests = fail(daemon, **{place: save("held")})
        assert (found.reason, found.metadata["item"]) == (
            "NOT_OWNER", "saves[0]" if place == "first" else f"saves[{ITEMS - 1}]"
        )  # fmt: skip
        assert requests <= 2 * good  # with what is shipped meanwhile


def test_a_batch_with_a_missing_thread_asks_once_for_each_item(two: tuple[Inside, Inside]) -> None:
    """A parent that is not there is not found again and again for every other item."""
    daemon, _ = two
    good = succeed(daemon)
    found, requests = fail(daemon, last=save("missing", parent=VersionRef(tag="none")))
    assert (found.reason, found.metadata["item"]) == ("THREAD_NOT_FOUND", f"saves[{ITEMS - 1}]")
    assert requests <= 2 * good  # with what is shipped meanwhile


def test_a_missing_source_is_not_taken_for_the_copy(two: tuple[Inside, Inside]) -> None:
    """Forking a thread that is not there asks the archive once for it, and once for the new name. Where nothing is
    found, it is also asked whether anything is there."""
    daemon, _ = two
    daemon.wire.save(save("there", durability=DURABILITY_ARCHIVED))
    before = daemon.bucket.requests
    found = refused(daemon.wire.threads.ForkThread, ForkThreadRequest(thread="missing", new_thread="copy"))
    assert (found.reason, found.metadata["thread"]) == ("THREAD_NOT_FOUND", "missing")
    assert daemon.bucket.requests - before <= 12
