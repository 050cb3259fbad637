"""The danger: the name of a restore that failed stays taken, and no other restore or copy gets it until a restart."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.daemon.store import opened

from stateward.v1.backup_service_pb2 import ImportBegin
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import QueueFull
from stateward_sidecar.store.store import Store

BEGIN = ImportBegin(namespace="default", thread="job", options=WriteOptions(request_id="first"))


def is_taken(store: Store) -> bool:
    try:
        made = store.importer.begin(BEGIN)
    except QueueFull:
        return True
    made.discard()
    return False


@pytest.mark.parametrize("part", ["_blobs", "_hidden"])
def test_a_discard_that_fails_frees_the_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Whatever it could not remove: the next start does."""

    def fail() -> None:
        raise OSError(5, "the disk is gone")

    with opened(tmp_path / "data") as store:
        made = store.importer.begin(BEGIN)
        monkeypatch.setattr(getattr(made, part), "discard", fail)
        with pytest.raises(OSError, match="gone"):
            made.discard()
        assert not is_taken(store)


def test_a_second_discard_frees_nobody_elses_name(tmp_path: Path) -> None:
    """Another restore has the name by then."""
    with opened(tmp_path / "data") as store:
        made = store.importer.begin(BEGIN)
        made.discard()
        other = store.importer.begin(BEGIN)
        made.discard()
        assert is_taken(store)
        other.discard()
        assert not is_taken(store)
