"""The danger: what one blob costs grows with the number of blobs, or of threads."""

from __future__ import annotations

from hashlib import sha256

import pytest
from tests.daemon.driven import Driven, append
from tests.daemon.small import BLOB_KEPT_S
from tests.daemon.town import Town

from stateward_sidecar.errors import BlobNotFound
from stateward_sidecar.storage import layout
from stateward_sidecar.store.blobs import blobrows, blobsweep


class Count:
    """Counts the calls of a function."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: object, name: str) -> None:
        self.calls, function = 0, getattr(owner, name)

        def counted(*arguments: object, **named: object) -> object:
            self.calls += 1
            return function(*arguments, **named)

        monkeypatch.setattr(owner, name, counted)


def names(machine: Driven, content: bytes, thread: str = "job") -> None:
    """A version that names a blob."""
    request = append()
    request.thread = thread
    value = request.diff.edits.add().set_slot
    value.slot = content.decode()
    value.value.blob.sha256, value.value.blob.size_bytes = sha256(content).digest(), len(content)
    machine.put(request)


def test_a_ship_opens_the_rows_that_changed(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save beside thirty blobs opens and reads none of their rows, and one more blob opens one or two."""
    first = driven.machine("first")
    for number in range(30):
        first.write_blob("job", b"%d" % number)
    first.ship_now()
    opened, read = Count(monkeypatch, blobrows.BLOB_ROWS, "open"), Count(monkeypatch, blobrows, "rows")
    for _ in range(3):
        first.put(append())
        first.ship_now()
    assert (opened.calls, read.calls) == (0, 0)
    first.write_blob("job", b"one more")
    first.ship_now()
    assert 1 <= opened.calls <= 2
    other = driven.machine("second")
    other.archive.own("default", "job", take_over=True)
    assert other.read_blob("job", sha256(b"one more").digest()) == b"one more"


def test_a_ship_drops_the_rows_that_went(driven: Town) -> None:
    """HEAD names no blob that was collected since the last ship, also if that is all that happened."""
    first = driven.machine("first")
    first.write_blob("job", b"named")
    first.write_blob("job", b"not named")
    names(first, b"named")
    first.ship_now()
    driven.time.sleep(BLOB_KEPT_S + 1)
    first.sweep()
    first.ship_now()
    other = driven.machine("second")
    other.archive.own("default", "job", take_over=True)
    assert other.read_blob("job", sha256(b"named").digest()) == b"named"
    with pytest.raises(BlobNotFound):
        other.read_blob("job", sha256(b"not named").digest())


def test_a_sweep_looks_at_no_other_threads(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twenty threads with a blob each: whether a thread has an orphan is known without reading all names for each."""
    first = driven.machine("first")
    for number in range(20):
        first.write_blob(f"job-{number}", b"x")
    read = Count(monkeypatch, layout, "unpack_name")
    first.sweep()
    assert read.calls < 100


def test_what_nobody_wrote_is_not_searched_again(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread whose old blobs are named by its versions is searched once, and again when it was written."""
    first = driven.machine("first")
    first.write_blob("job", b"x")
    names(first, b"x")
    first.ship_now()
    driven.time.sleep(BLOB_KEPT_S + 1)
    searched = Count(monkeypatch, blobsweep.BlobSweeper, "_find_named")
    for _ in range(3):
        first.sweep()
        driven.time.sleep(10)
    assert searched.calls == 1
    first.put(append())
    first.sweep()
    assert searched.calls == 2
