"""The danger: a background task ends at an unforeseen error, and nothing is swept or archived any more without a word
in the log."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.inside import WAIT_S, Inside, daemon_inside
from tests.daemon.wire import appends
from tests.messages import to_write

from stateward.v1.admin_service_pb2 import GetStatsRequest
from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward_sidecar import app, telemetry
from stateward_sidecar.archive.archive import Archive
from stateward_sidecar.errors import DiskFull
from stateward_sidecar.store.check import recovery
from stateward_sidecar.store.check.recovery import Recovery


class Bug(Exception):
    """Something that nobody foresaw."""


class Failing:
    """Takes the place of a function: fails so many times, then does what it did."""

    def __init__(self, real: Callable[..., Any], times: int = 2, error: Callable[[], Exception] = Bug) -> None:
        self._real, self._left, self._error = real, times, error
        self.is_done = threading.Event()

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        self._left -= 1
        if self._left >= 0:
            raise self._error()
        result = self._real(*arguments, **options)
        self.is_done.set()
        return result


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """No pauses, and the log as it is where the daemon did not set it up."""
    for module in ("telemetry", "archive.ship.schedule"):
        monkeypatch.setattr(f"stateward_sidecar.{module}.AGAIN_S", 0.01)
    monkeypatch.setattr(telemetry.failures, "count", 0)
    caplog.set_level(logging.ERROR, "stateward")


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Inside]:
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket", archive_interval="0.05") as inside:
        yield inside


def save(daemon: Inside, number: int = 0, **fields: Any) -> None:
    request = to_write(SaveRequest, thread="t", diff=appends("x"), request_id=f"{number}", **fields)
    daemon.wire.save(request)


def sweep_until(daemon: Inside, is_done: threading.Event) -> None:
    """Sweeps every 10 ms, as the daemon does more seldom."""
    sweeping = asyncio.run_coroutine_threadsafe(app._sweep(daemon.parts.store, 0.01), daemon.loop)
    assert is_done.wait(WAIT_S)
    sweeping.cancel()


def failures(daemon: Inside) -> int:
    return int(daemon.wire.admin.GetStats(GetStatsRequest()).background_failures)


def test_a_part_of_the_sweep_that_fails_stops_neither_the_others_nor_the_next_sweep(
    daemon: Inside, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The first part fails in two rounds: the last part is done in both, and the first one in the third."""
    sweeper = daemon.parts.store.sweeper
    failing, last = Failing(sweeper._expire), list[None]()
    monkeypatch.setattr(sweeper, "_expire", failing)
    monkeypatch.setattr(sweeper, "_clear_labels", lambda: last.append(None))
    sweep_until(daemon, failing.is_done)
    assert len(last) >= 2
    assert failures(daemon) == 2
    assert sum("background task failed" in record.message for record in caplog.records) == 2


def test_a_sweep_that_fails_as_a_whole_is_followed_by_the_next(daemon: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also what fails around the parts ends only its own round."""
    failing = Failing(daemon.parts.store.sweeper.sweep)
    monkeypatch.setattr(daemon.parts.store.sweeper, "sweep", failing)
    sweep_until(daemon, failing.is_done)
    assert failures(daemon) == 2


@pytest.mark.parametrize("part", ["_take", "_start", "_ship", "write_rows"])
def test_the_schedule_survives_what_fails_in_it(daemon: Inside, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """Whichever step fails, the thread that was due is archived all the same."""
    save(daemon, durability=DURABILITY_ARCHIVED)
    schedule = daemon.parts.archive.schedule  # type: ignore[union-attr]
    failing = Failing(getattr(schedule, part))
    monkeypatch.setattr(schedule, part, failing)
    save(daemon, 1)
    assert failing.is_done.wait(WAIT_S)
    thread = daemon.parts.store.threads.cached("default", "t")
    assert thread is not None
    end = time.monotonic() + WAIT_S
    while thread.archived_sequence < 2:
        assert time.monotonic() < end
        time.sleep(0.01)
    assert failures(daemon) == 2


def test_what_is_put_off_and_fails_is_counted(daemon: Inside) -> None:
    """An upload behind a ship that fails in an unforeseen way ends itself only."""
    done = threading.Event()

    def fail() -> None:
        raise Bug

    wire = daemon.parts.archive.state.wire  # type: ignore[union-attr]
    wire.later(fail)
    wire.later(done.set)
    assert done.wait(WAIT_S)
    end = time.monotonic() + WAIT_S
    while failures(daemon) != 1:
        assert time.monotonic() < end


def test_recovery_and_the_search_for_dirty_threads_are_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What runs once at the start and fails is run until it succeeds."""
    recovering = Failing(Recovery.run)
    finding = Failing(Archive._find_dirty)
    monkeypatch.setattr(Recovery, "run", lambda *given: recovering(*given))  # noqa: PLW0108  (becomes a method)
    monkeypatch.setattr(Archive, "_find_dirty", lambda *given: finding(*given))  # noqa: PLW0108  (as well)
    with daemon_inside(tmp_path, archive=f"file://{tmp_path}/bucket") as daemon:
        assert recovering.is_done.wait(WAIT_S)
        assert finding.is_done.wait(WAIT_S)
        assert failures(daemon) == 4


def test_recovery_goes_on_after_an_error_that_has_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full at the start may have room a moment later."""
    clearing = Failing(recovery.clear, error=lambda: DiskFull("the disk is full"))
    monkeypatch.setattr(recovery, "clear", clearing)
    with daemon_inside(tmp_path) as daemon:
        assert clearing.is_done.wait(WAIT_S)
        assert failures(daemon) == 2


def test_recovery_sees_that_keys_are_settled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The write that decides about keys of unfinished deletions fails: it is written again."""
    with daemon_inside(tmp_path) as daemon:
        save(daemon)
        keystore = daemon.parts.store.context.keystore
        (uid,) = keystore.settled_threads()
        keystore.mark_leaving(uid, is_leaving=True)
        keystore.sync()
    real = Recovery._settle
    left = [None, None]

    def settle(self: Recovery, named: set[bytes]) -> Any:
        run = real(self, named)

        def fail(*_: Any) -> None:
            raise OSError(5, "the key store cannot be written")

        return fail if left and left.pop() is None else run

    monkeypatch.setattr(Recovery, "_settle", settle)
    with daemon_inside(tmp_path) as daemon:
        keystore = daemon.parts.store.context.keystore
        end = time.monotonic() + WAIT_S
        while keystore.is_leaving(uid):
            assert time.monotonic() < end
            time.sleep(0.01)
        assert failures(daemon) == 2


def test_what_fails_on_the_loop_is_counted(daemon: Inside) -> None:
    """A callback that fails, and a task that nobody waits for, are in the same log."""

    def fail() -> None:
        raise Bug

    daemon.loop.call_soon_threadsafe(daemon.loop.set_exception_handler, app._note_unheard)
    daemon.loop.call_soon_threadsafe(fail)
    end = time.monotonic() + WAIT_S
    while failures(daemon) != 1:
        assert time.monotonic() < end
