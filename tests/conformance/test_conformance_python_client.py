"""The danger: a client of our own that does not keep to the protocol which others are measured by."""

from __future__ import annotations

import pytest
from google.protobuf import text_format
from tests.conformance import with_client
from tests.conformance.wrong import LATE, PATIENCES

from stateward.conformance.canonical import canonical_form, digest_of
from stateward.conformance.scenarios import load, names
from stateward.conformance.server import ScriptedDaemon
from stateward.v1 import state_pb2


@pytest.mark.parametrize("scenario", names())
def test_the_client_passes(scenario: str) -> None:
    """The Python client makes every call of the scenario, and no other."""
    for _ in PATIENCES:
        with ScriptedDaemon("127.0.0.1:0", [scenario]) as daemon:
            play = daemon.plays[scenario]
            with_client.run(daemon.target, scenario)
            play.wait(30)
        if LATE not in play.failure:
            break
    assert play.failure == ""
    assert play.is_done, play.missing()


@pytest.mark.parametrize("scenario", [name for name in names() if load(name).HasField("state")])
def test_golden_files_agree_with_themselves(scenario: str) -> None:
    """The digest in a file is that of the state beside it, which is what the pages join to."""
    golden = load(scenario)
    saves = [turn.save for turn in golden.turns if turn.HasField("save") and not turn.HasField("failure")]
    seen = saves[-1].diff.edits[0].set_slot
    if seen.slot == "seen":
        assert seen.value.data.decode() == digest_of(golden.state)


def test_the_example_of_the_page_is_canonical(repository) -> None:
    """The canonical form of the state that docs/protocol.md shows is the one that it shows."""
    state = text_format.Parse(
        """
        slots { key: "n" value { number: 7 } }
        logs { key: "l" value { entries { media_type: "text/plain" data: "x" } } }
        """,
        state_pb2.State(),
    )
    assert f"\n{canonical_form(state).decode()}\n" in (repository / "docs/protocol.md").read_text()
