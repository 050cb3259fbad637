"""The danger: a fault of memory or disk becomes history, because the archive takes what does not have its digest."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.daemon.clocks import FakeClock
from tests.daemon.driven import Disk, Driven

from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.bucket.memory import MemoryBucket
from stateward_sidecar.codec import entry as entry_module
from stateward_sidecar.errors import Corrupt


@pytest.fixture
def sidecar(tmp_path: Path) -> Driven:
    """One process on one disk, with a bucket in memory; it ships when it is told to."""
    clock = FakeClock()
    (tmp_path / "disk").mkdir()
    return Driven(Disk(1, tmp_path / "disk", "owner"), MemoryBucket(), clock, number=1)


def save(sidecar: Driven, text: str) -> int:
    """One more version."""
    request = SaveRequest(namespace="default", thread="t", options=WriteOptions(request_id=str(random.random())))
    request.diff.edits.add().append.log = "m"
    request.diff.edits[0].append.entries.add(data=text.encode())
    sidecar.save(request)
    thread = sidecar.find("t")
    assert thread is not None
    return thread.number


def test_an_entry_that_does_not_have_its_digest_is_not_shipped(
    sidecar: Driven, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ship is refused before HEAD is written; HEAD goes on naming what was right."""
    number = save(sidecar, "right")
    sidecar.ship(number)
    digest = entry_module.entry_digest
    with monkeypatch.context() as patch:
        patch.setattr(entry_module, "entry_digest", lambda *parts: digest(*parts)[::-1])
        save(sidecar, "altered")
    with pytest.raises(Corrupt, match="digest"):
        sidecar.ship(number)
    hold = sidecar.archive.state.holds[number]
    assert hold.head.tip_sequence == 1
    assert sidecar.hydrate(HydrateRequest(namespace="default", thread="t")).checkpoint.version == 2
