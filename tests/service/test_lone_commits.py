"""Small writes that come together share commits, of whichever kind they are."""

from __future__ import annotations

from pathlib import Path

from tests.service.inside import WAIT_S, daemon_inside
from tests.service.wire import text

from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import PutEffectsRequest
from stateward.v1.thread_pb2 import ThreadOptions

CALLS = 64


def test_results_that_come_together_share_commits(tmp_path: Path) -> None:
    """Sixty-four calls with two effects each, of eight threads, take far fewer commits than calls."""
    with daemon_inside(tmp_path) as daemon:
        calls = [
            daemon.wire.effects.PutEffects.future(
                PutEffectsRequest(
                    thread=f"t{number % 8}", create=ThreadOptions(), request_id=str(number),
                    effects=[Effect(key=f"{number}-{each}", value=text("x")) for each in range(2)],
                )
            )
            for number in range(CALLS)
        ]  # fmt: skip
        assert [call.result(WAIT_S).written for call in calls] == [2] * CALLS
        assert daemon.parts.store.context.writer.commits <= CALLS // 2
