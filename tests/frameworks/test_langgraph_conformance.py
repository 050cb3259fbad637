"""The danger: StatewardSaver lacks something that LangGraph asks of every checkpointer, and a graph fails in the middle
of a run."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from stateward.testing import run_daemon

conformance = pytest.importorskip("langgraph.checkpoint.conformance", reason="the extra langgraph is not installed")
from langgraph.checkpoint.conformance import checkpointer_test, validate  # noqa: E402

from stateward.langgraph import StatewardSaver  # noqa: E402

CAPABILITIES = {
    "put", "put_writes", "get_tuple", "list", "delete_thread", "delete_for_runs", "copy_thread", "prune",
}  # fmt: skip


async def test_every_capability_is_there_and_passes(tmp_path: Path) -> None:
    """All of the suite. A capability that is not detected would count as passed, so the set is compared too."""
    with run_daemon(tmp_path / "data") as daemon:

        @checkpointer_test(name="StatewardSaver")
        async def savers() -> AsyncIterator[StatewardSaver]:
            async with StatewardSaver(daemon.target) as saver:
                yield saver

        report = await validate(savers)
    assert {name for name, result in report.results.items() if result.detected} >= CAPABILITIES
    failures = {name: result.failures for name, result in report.results.items() if not result.passed}
    assert failures == {}
