"""The danger: a session that has grown beyond what a state holds in memory cannot go on, be copied, or move to another
machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tests.frameworks.long_logs import ADAPTERS, live


@pytest.mark.slow
@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_long_session_goes_on_forks_and_moves(tmp_path: Path, adapter: str) -> None:
    """After a kill of the daemon, in another process, as a copy, and after the loss of its machine. Its older messages
    are in segments by then."""
    pytest.importorskip(ADAPTERS[adapter][0], reason=f"{adapter} is not installed")
    life = await live(adapter, tmp_path, 4 << 20, 400 << 10)
    assert len(life.texts) > 40
    assert any((tmp_path / "one" / "blobs").rglob("*"))


@pytest.mark.soak
@pytest.mark.parametrize("adapter", ADAPTERS)
async def test_a_session_of_256_mib(tmp_path: Path, adapter: str) -> None:
    """The same, four times as large as a state may be."""
    pytest.importorskip(ADAPTERS[adapter][0], reason=f"{adapter} is not installed")
    life: Any = await live(adapter, tmp_path, 256 << 20, 2 << 20)
    assert len(life.texts) > 500
