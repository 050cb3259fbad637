"""The danger: daemons that lose, double, fork or mix what they answered. Short histories; `make soak` has long ones."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.histories.checker import check_history
from tests.histories.play import play
from tests.histories.scenarios import SCENARIOS

OPERATIONS = 20  # of each client
SCENARIOS_HERE = [scenario for scenario in SCENARIOS if scenario.name in ("one daemon", "two daemons, directory")]


@pytest.mark.parametrize("scenario", SCENARIOS_HERE, ids=lambda scenario: scenario.name)
def test_short_histories_hold(scenario: object, checker: Path, tmp_path: Path) -> None:
    """What real daemons answer, killed and taken over now and then, is what was promised."""
    history = tmp_path / "history.jsonl"
    counts = play(7, scenario, history, operations=OPERATIONS)  # type: ignore[arg-type]
    assert counts["operations"] > OPERATIONS
    assert check_history(checker, history) == [], f"{history} has all"
