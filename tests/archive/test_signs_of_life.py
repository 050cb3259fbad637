"""The danger: a sidecar that cannot upload keeps a thread for ever, because it says again and again that it lives."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
from tests.archive.driven import Town, append
from tests.archive_model.process import DrivenWire

from stateward_sidecar.archive.pulse import FAILURES_MAX
from stateward_sidecar.errors import ArchiveUnavailable


def test_uploads_that_fail_in_a_row_are_no_sign_of_life(driven: Town, monkeypatch: pytest.MonkeyPatch) -> None:
    """HEAD is renewed during some uploads that fail, then no more, and again once an upload succeeds."""
    owner = driven.machine("owner")
    owner.put(append())
    owner.ship_now()
    hold = owner.archive.desk.holds[owner.thread().number]

    def fail(wire: DrivenWire, calls: Sequence[Callable[[], object]], beat: Callable[[], None], every_s: float) -> None:
        beat()
        raise ArchiveUnavailable("an object could not be written")

    def ship() -> bool:
        """Returns whether HEAD changed during a ship whose upload fails."""
        before = owner.wire.get(hold.place.head).etag
        with monkeypatch.context() as failing:
            failing.setattr(DrivenWire, "upload", fail)
            with pytest.raises(ArchiveUnavailable):
                owner.ship_now()
        return owner.wire.get(hold.place.head).etag != before

    owner.put(append(bytes(range(256)) * 400))
    assert [ship() for _ in range(FAILURES_MAX + 2)] == [True] * FAILURES_MAX + [False, False]
    owner.put(append())
    owner.ship_now()
    assert owner.thread().archived_sequence == 3
    hold.failed_uploads = FAILURES_MAX
    hold.dropped_blobs.clear()
    with monkeypatch.context() as counted:
        counted.setattr("stateward_sidecar.archive.ship.TAIL_BYTES_MAX", 0)
        owner.put(append())
        owner.ship_now()
    assert hold.failed_uploads == 0
