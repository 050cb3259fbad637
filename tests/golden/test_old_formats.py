"""Data written by earlier formats stays readable for ever."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

import pytest
from tests.golden.make import read_all

from stateward.testing import run_daemon

GOLDEN = sorted(Path(__file__).parent.glob("*.tar.gz"))


@pytest.mark.parametrize("archive", GOLDEN, ids=lambda path: path.name)
def test_an_old_store_is_read_and_written(archive: Path, tmp_path: Path) -> None:
    """Every version of a store that an earlier release wrote comes back with its digest; it verifies, and goes on."""
    with tarfile.open(archive) as packed:
        packed.extractall(tmp_path, filter="data")
    expected = json.loads((tmp_path / "expected.json").read_text())
    with run_daemon(data_dir=tmp_path / "data") as daemon, daemon.client() as client:
        assert {name: read_all(client, name) for name in expected} == expected
        assert [step.finding for step in client.verify() if step.finding is not None] == []
        thread = client.thread("agent-1")
        state = thread.hydrate()
        state.logs["messages"].append("written by this version")
        thread.save(state)
        assert thread.hydrate().logs["messages"][-1] == "written by this version"
        assert [step.finding for step in client.verify() if step.finding is not None] == []
