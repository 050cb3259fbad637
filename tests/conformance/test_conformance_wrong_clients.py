"""The danger: a scenario that every client passes, and so proves nothing.

Each wrong client is the right one with one mistake. The scenario that is about this mistake fails it.
"""

from __future__ import annotations

import pytest
from tests.conformance import wrong_coordination, wrong_states, wrong_streams, wrong_trees  # noqa: F401  they register in WRONG
from tests.conformance.raw_client import RawClient
from tests.conformance.wrong import LATE, PATIENCES, WRONG, play, plays

from stateward.conformance.running import FAILED, judge
from stateward.conformance.scenarios import names


@pytest.mark.parametrize("scenario", names())
def test_the_page_makes_a_right_client(scenario: str) -> None:
    """The code of docs/protocol.md passes every scenario."""
    for _ in PATIENCES:
        played, error = play(scenario, RawClient, timeout_s=60)
        if LATE not in played.failure:
            break
    assert (played.failure, error) == ("", None)
    assert played.is_done, played.missing()


def test_every_scenario_has_a_wrong_client() -> None:
    """Each scenario can fail: a client with the mistake that it is about is among these."""
    assert {scenario for scenario, _, _ in WRONG} == set(names())


@pytest.mark.parametrize(
    ("scenario", "told", "kind"), [pytest.param(*each, id=f"{each[0]}-{each[2].__name__}") for each in WRONG]
)
def test_a_wrong_client_fails(scenario: str, told: tuple[str, ...], kind: type[RawClient]) -> None:
    """The scenario is not passed by a client with the mistake that it is about, and the problem names the mistake."""
    problems = []
    for played in plays(scenario, kind):
        result = judge(played, 1)
        assert result.outcome == FAILED
        problems.append(result.problem)
        if any(each in result.problem for each in told):
            return
    raise AssertionError(problems)
