"""The danger: an agent in another language that loses a save, applies it twice, or joins its pages wrongly."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.languages import building, script

pytestmark = [pytest.mark.slow, pytest.mark.timeout(building.AGAIN_LIMIT_S + 100)]


@pytest.fixture(params=building.list_languages())
def agent(request: pytest.FixtureRequest) -> Iterator[script.Agent]:
    """The agent of a language, and a daemon of its own. A language that was never built here is skipped."""
    language: str = request.param
    if not building.was_built(language):
        pytest.skip(f"the agent in {language} was not built here: make examples builds it, or says what is missing")
    try:
        program = building.build(language, building.AGAIN_LIMIT_S)
    except building.ToolMissing as reason:
        pytest.skip(str(reason))
    except building.BuildSlow as reason:
        pytest.skip(f"make examples builds it: {reason}")
    with script.run_daemon() as daemon:
        yield script.Agent(program, f"example-{language}", daemon)


def test_it_resumes_after_a_crash(agent: script.Agent) -> None:
    """Killed together with its daemon, the agent resumes: pages, effect, answer and all versions are as they were."""
    script.play(agent)


def test_a_save_is_applied_once_while_the_daemon_is_killed(agent: script.Agent) -> None:
    """Every addition counts once, although answers are lost and the daemon is killed in between."""
    script.count(agent)
