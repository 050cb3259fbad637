"""The danger: an operator who looks at a figure that nothing moves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.daemon.process import Fleet, eventually, write_steps
from tests.daemon.wire import Wire
from tests.faults.test_disk_full import tmpfs as tmpfs  # noqa: PLC0414  a fixture
from tests.metrics.scraped import ANY_PORT, Scrape, scrape, scrape_until

from stateward import Status, errors
from stateward.testing import Daemon, run_daemon
from stateward.v1.effect_service_pb2 import BeginEffectRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import WriteOptions


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with run_daemon(metrics=ANY_PORT) as running:
        yield running


def grown(before: Scrape, after: Scrape, name: str, **labels: str) -> float:
    return after(name, **labels) - (before(name, **labels) if name in before.names else 0)


def test_saves_and_their_commits(daemon: Daemon) -> None:
    """A save is a call, a commit, a batch, an entry and bytes, each in its histogram or counter."""
    with daemon.client() as client:
        thread = client.thread("saves")
        thread.append("messages", "first")
        before = scrape(daemon)
        for number in range(5):
            thread.append("messages", {"number": number, "text": "word " * 200})
        after = scrape(daemon)
    assert grown(before, after, "stateward_saves_total") == 5
    assert grown(before, after, "stateward_call_duration_seconds_count", method="Save", code="OK") == 5
    assert grown(before, after, "stateward_commit_duration_seconds_count") >= 5
    assert grown(before, after, "stateward_batch_writes_sum") >= 5
    assert after("stateward_commit_duration_seconds_sum") > 0
    plain = grown(before, after, "stateward_entry_plain_bytes_total")
    assert plain > 5_000 > grown(before, after, "stateward_entry_bytes_total") > 500
    assert after("stateward_sync_duration_seconds_count", file="keys") >= 1
    assert after("stateward_cache_looks_total", result="hit") > 0


def test_latencies_begin_at_fifty_microseconds(daemon: Daemon) -> None:
    """The buckets begin where a save of a hot thread can be told from a slower one, and hold what was counted."""
    with daemon.client() as client:
        client.thread("buckets").append("messages", "first")
    found = scrape(daemon)
    bounds = sorted(
        float(dict(labels)["le"])
        for name, labels in found.values
        if name == "stateward_call_duration_seconds_bucket" and {("method", "Save"), ("code", "OK")} <= labels
    )
    assert bounds[0] == 50e-6
    assert sum(bound <= 1e-3 for bound in bounds) >= 6
    assert found("stateward_call_duration_seconds_bucket", method="Save", code="OK", le="+Inf") == found(
        "stateward_call_duration_seconds_count", method="Save", code="OK"
    )


def test_conflicts_and_replays(daemon: Daemon) -> None:
    """A refused compare-and-swap counts as a conflict and by its code, a retry as a replay and not as a save."""
    with daemon.client(retry_timeout=0) as client:
        thread = client.thread("conflicts")
        thread.append("messages", "first", request_id="once")
        stale, state = thread.hydrate(), thread.hydrate()
        state.slots["goal"] = "Paris"
        thread.save(state)
        before = scrape(daemon)
        stale.slots["goal"] = "Rome"
        with pytest.raises(errors.VersionMismatch):
            thread.save(stale)
        thread.append("messages", "first", request_id="once")
        after = scrape(daemon)
    assert grown(before, after, "stateward_conflicts_total") == 1
    assert after("stateward_refusals_total", reason="VERSION_MISMATCH") >= 1
    assert after("stateward_call_duration_seconds_count", method="Save", code="ABORTED") >= 1
    assert grown(before, after, "stateward_replays_total") == 1
    assert grown(before, after, "stateward_saves_total") == 0


def test_frames_of_writers(daemon: Daemon) -> None:
    """A frame of a stream has its own time; the stream as a call ends with the stream."""
    before = scrape(daemon)
    with daemon.client() as client, client.thread("frames").writer() as writer:
        state = writer.reset()
        for number in range(3):
            state.logs["messages"].append(number)
            writer.send(state)
        writer.flush()
        during = scrape(daemon)
        assert during("stateward_open_calls") >= 1
    after = scrape_until(daemon, lambda now: 'method="Write"' in now.text)
    assert grown(before, after, "stateward_frame_duration_seconds_count", outcome="saved") == 3


def test_the_length_of_chains(daemon: Daemon) -> None:
    """A first read after a start replays the entries, and says how many."""
    with daemon.client() as client:
        thread = client.thread("chain")
        for number in range(7):
            thread.append("messages", number)
        daemon.stop()
        daemon.start()
        assert thread.hydrate().version == 7
        found = scrape(daemon)
    assert found("stateward_chain_entries_sum") >= 7
    assert found("stateward_chain_entries_bucket", le="5.0") < found("stateward_chain_entries_bucket", le="10.0")
    assert found("stateward_cache_looks_total", result="miss") > 0


def test_open_questions_and_uncertain_effects(tmp_path: Path) -> None:
    """Counted over all threads, also by a daemon that was started later and holds none of them in memory."""
    with run_daemon(tmp_path / "data", metrics=ANY_PORT) as daemon, daemon.client() as client:
        thread = client.thread("asks")
        state = thread.hydrate()
        thread.save(state, status=Status.WAITING, wait_id="pay?")
        wire = Wire(daemon.target)
        for key in ("first", "second"):
            holder = Holder(name="agent", incarnation="1")
            asked = BeginEffectRequest(
                thread="pays", key=key, holder=holder, options=WriteOptions(request_id=key, create=ThreadOptions())
            )
            wire.effects.BeginEffect(asked, timeout=20)
        wire.close()
        daemon.stop()
        daemon.start()
        found = scrape_until(daemon, lambda now: "stateward_threads" in now.names)
        assert found("stateward_threads") == 2
        assert found("stateward_open_questions") == 1
        assert 0 <= found("stateward_oldest_question_seconds") < 60
        assert found("stateward_effects_in_progress") == 2
        assert found("stateward_effects_uncertain") == 0


def test_the_archive(tmp_path: Path) -> None:
    """Requests have an operation and a time, errors a kind, and the lag returns to zero once all is archived."""
    fleet = Fleet(tmp_path)
    try:
        daemon = fleet.machine("first", metrics=ANY_PORT)
        client = fleet.client(daemon, retry_timeout=0)
        write_steps(client, "job", 2, archived=True)
        found = scrape_until(daemon, lambda now: now("stateward_archive_lag_seconds") == 0)
        assert found("stateward_bucket_request_duration_seconds_count", operation="replace") >= 1
        assert found("stateward_archive_owned_threads") == 1
        fleet.bucket.rename(tmp_path / "away")
        fleet.bucket.touch()  # no directory, so nothing can be written
        write_steps(client, "job", 1)
        found = scrape_until(daemon, lambda now: "stateward_bucket_errors_total" in now.names)
        assert found("stateward_archive_lag_entries") >= 1
        assert found("stateward_archive_dirty_threads") == 1
    finally:
        fleet.bucket.unlink()
        (tmp_path / "away").rename(fleet.bucket)
        fleet.close()


def test_a_fenced_sidecar(tmp_path: Path) -> None:
    """The sidecar that lost a thread with entries of its own says so, and the one that took it does not."""
    fleet = Fleet(tmp_path)
    try:
        first = fleet.machine("first", metrics=ANY_PORT, archive_interval="600", archive_check="600")
        old = fleet.client(first, retry_timeout=0)
        write_steps(old, "job", 2, archived=True)
        write_steps(old, "job", 1)
        os.kill(first.pid, signal.SIGSTOP)
        second = fleet.machine("second", metrics=ANY_PORT)
        new = fleet.client(second)
        new.thread("job").archive.attach(wait=5)
        write_steps(new, "job", 1, archived=True)
        os.kill(first.pid, signal.SIGCONT)
        state = old.thread("job").hydrate()
        state.slots["late"] = True
        with pytest.raises((errors.Fenced, errors.NotOwner, errors.NotArchivedYet)):
            old.thread("job").save(state, durability="archived")
        eventually(lambda: scrape(first)("stateward_fencings_total") == 1)
        assert scrape(second)("stateward_fencings_total") == 0
    finally:
        fleet.close()


def test_space_and_readiness(tmpfs: Path) -> None:
    """The room shrinks with the disk, and a full disk is a cause for not being ready."""
    with run_daemon(tmpfs / "data", metrics=ANY_PORT) as daemon:
        found = scrape(daemon)
        assert 0 < found("stateward_room_bytes") < 8 << 20
        assert found("stateward_ready") == 1
        with (tmpfs / "filler").open("wb") as filler:
            try:
                while True:
                    filler.write(bytes(1 << 16))
                    filler.flush()
            except OSError:
                pass
        found = scrape_until(daemon, lambda now: now("stateward_ready") == 0)
        assert found("stateward_not_ready", cause="disk") == 1
        assert found("stateward_not_ready", cause="key") == 0
