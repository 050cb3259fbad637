"""The danger: each small effect is committed by itself, so that agents with many tools wait for one sync of the disk
after the other."""

from __future__ import annotations

import threading
from pathlib import Path

from tests.daemon.inside import WAIT_S, daemon_inside
from tests.daemon.wire import appends, text

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import PutEffectsRequest
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.storage.queue import Write

CALLS = 64
# How long one commit takes, in which the calls of a busy machine arrive.
SLOW_S = 1.0


def test_results_that_come_together_share_commits(tmp_path: Path) -> None:
    """Sixty-four calls with two effects each, of eight threads, take far fewer commits than calls."""
    with daemon_inside(tmp_path) as daemon:
        writer, ends = daemon.parts.store.context.writer, threading.Event()
        writer.submit(Write(run=lambda _txn, _batch: ends.wait(WAIT_S)))  # a commit that takes until all have come
        threading.Timer(SLOW_S, ends.set).start()
        calls = [
            daemon.wire.effects.PutEffects.future(
                PutEffectsRequest(
                    thread=f"t{number % 8}", options=WriteOptions(request_id=str(number), create=ThreadOptions()),
                    effects=[Effect(key=f"{number}-{each}", value=text("x")) for each in range(2)],
                )
            )
            for number in range(CALLS)
        ]  # fmt: skip
        assert [call.result(WAIT_S).written for call in calls] == [2] * CALLS
        assert daemon.parts.store.context.writer.commits <= CALLS // 2


def test_saves_with_results_share_commits(tmp_path: Path) -> None:
    """Sixty-four saves of eight threads, which have an effect each, take far fewer commits than saves."""
    with daemon_inside(tmp_path) as daemon:
        writer, ends = daemon.parts.store.context.writer, threading.Event()
        writer.submit(Write(run=lambda _txn, _batch: ends.wait(WAIT_S)))
        threading.Timer(SLOW_S, ends.set).start()
        calls = [
            daemon.wire.checkpoints.Save.future(
                SaveRequest(
                    thread=f"t{number % 8}", options=WriteOptions(request_id=str(number)), diff=appends(str(number)),
                    effects=[Effect(key=str(number), value=text("x"))],
                )
            )
            for number in range(CALLS)
        ]  # fmt: skip
        assert sorted(call.result(WAIT_S).version for call in calls) == sorted([*range(1, 9)] * 8)
        assert daemon.parts.store.context.writer.commits <= CALLS // 2
