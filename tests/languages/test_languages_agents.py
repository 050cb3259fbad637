"""The danger: an agent in another language that loses a save, applies it twice, or joins its pages wrongly."""

from __future__ import annotations

import base64
import json
import os
import re
import subprocess
import sys
import tempfile
import textwrap
from pathlib import Path

import pytest
from tests.languages import building, script

from stateward.v1.checkpoint_service_pb2 import SaveRequest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(building.AGAIN_LIMIT_S + 100)]


@pytest.fixture(params=building.list_languages())
def language(request: pytest.FixtureRequest) -> str:
    """A language."""
    return str(request.param)


@pytest.fixture
def program(language: str) -> Path:
    """The agent of the language. A language that was never built here is skipped."""
    if not building.was_built(language):
        pytest.skip(f"the agent in {language} was not built here: make examples builds it, or says what is missing")
    try:
        return building.build(language, building.AGAIN_LIMIT_S)
    except building.ToolMissing as reason:
        pytest.skip(str(reason))
    except building.BuildSlow as reason:
        pytest.skip(f"make examples builds it: {reason}")


def test_it_resumes_after_a_crash(program: Path, language: str) -> None:
    """Killed together with its daemon, the agent resumes: pages, effect, answer and all versions are as they were."""
    with script.run_daemon() as daemon:
        script.play(script.ForeignAgent(program, f"example-{language}", daemon))


def test_a_save_is_applied_once_while_the_daemon_is_killed(program: Path, language: str) -> None:
    """Every addition over TCP counts once, although answers are lost and the daemon is killed in between."""
    with script.run_daemon(script.TcpDaemon) as daemon:
        script.count(script.ForeignAgent(program, f"example-{language}", daemon))


def test_it_connects_with_a_certificate(program: Path, language: str) -> None:
    """It does all steps at a port whose clients need a certificate, and connects again after the kill."""
    with script.run_daemon(script.TlsDaemon) as daemon:
        agent = script.CertifiedAgent(program, f"example-{language}", daemon)
        script.play(agent)
        for name in ("CA", "CERT", "KEY"):
            agent.files[f"STATEWARD_TLS_{name}"], kept = "/nowhere/file", agent.files[f"STATEWARD_TLS_{name}"]
            assert agent.finish("answer") == []
            assert f"STATEWARD_TLS_{name}" in agent.stderr()
            assert agent.stderr().count("\n") == 1
            agent.files[f"STATEWARD_TLS_{name}"] = kept


def test_it_renews_the_claim_of_a_tool_that_takes_long(program: Path, language: str) -> None:
    """Its claim is short, so that others need not wait for a dead agent, and lives as long as the tool works."""
    with script.run_daemon() as daemon:
        script.pay_slowly(script.ForeignAgent(program, f"slow-{language}", daemon))


def test_it_conforms_where_a_fault_would_be_silent(program: Path) -> None:
    """It joins pages and pieces as they were, and repeats a save as it was. `make examples` plays all scenarios."""
    scenarios = ["advance/cut-save", "advance/split-logs", "advance/split-values", "effect/uncertain", "writer/cut"]
    assert script.conform(program, *scenarios) == len(scenarios)


def test_the_load_saves_version_after_version() -> None:
    """`agent load`, which writes the fields of a request by their numbers, saves what `make bench` gives it."""
    if not building.was_built("go"):
        pytest.skip("the agent in go was not built here: make examples builds it, or says what is missing")
    body = SaveRequest()
    body.diff.edits.add().append.log = "pages"
    body.diff.edits[0].append.entries.add(media_type="text/plain", data=b"a page")
    with script.run_daemon(script.TcpDaemon) as daemon:
        job = {
            "system": "stateward", "address": daemon.target, "in_flight": 2, "connections": 1, "seconds": 0.2,
            "prefix": "load", "bodies": [base64.b64encode(body.SerializeToString()).decode()],
        }  # fmt: skip
        done = subprocess.run(
            [building.build("go", building.AGAIN_LIMIT_S), "load"],
            input=json.dumps(job), capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        with daemon.client() as client:
            states = [client.thread(f"load-{lane}").hydrate() for lane in range(2)]
    assert sum(state.version for state in states) == json.loads(done.stdout)["made"]
    assert [list(state.logs["pages"]) for state in states] == [["a page"] * state.version for state in states]


def test_the_agent_itself_is_short(language: str) -> None:
    """What every client needs stands beside the agent, in files to copy. The agent itself has at most 150 lines."""
    sources = (building.REPOSITORY / "examples" / language).rglob("*")
    (agent,) = [source for source in sources if re.fullmatch(r"agent\.(go|rs|ts|java)", source.name.lower())]
    assert len(agent.read_text().splitlines()) <= 150


# Kills the agent when it has done all that it does before it waits, however long that takes.
TIMEOUT = f"""
timeout() (
    shift 3; "$@" >begun & until grep -qx "{script.BEGIN[-1]}" begun || ! kill -0 $!; do sleep 0.05; done; kill -KILL $!
)
"""


def test_the_page_runs_it_by_hand() -> None:
    """The commands of examples/README.md resume an agent that `timeout` has killed."""
    if not building.was_built("go"):
        pytest.skip("the agent in go was not built here: make examples builds it, or says what is missing")
    page = (building.REPOSITORY / "examples/README.md").read_text().partition("To run one of them by hand:")[2]
    said = textwrap.dedent("".join(re.findall(r"^    .*\n", page, re.MULTILINE)))
    assert said.startswith("stateward-sidecar")
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as short:
        done = subprocess.run(
            ["sh", "-c", TIMEOUT.replace("begun", f"{short}/begun") + said.replace("/tmp/example", f"{short}/example")],
            cwd=building.REPOSITORY, env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
            capture_output=True, text=True, timeout=building.AGAIN_LIMIT_S, check=False,
        )  # fmt: skip
    assert "completed version 17\n" in done.stdout, done.stderr
    assert "counted 400, replayed 0\n" in done.stdout, done.stderr
