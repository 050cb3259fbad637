"""The danger: runs of real agents take many times their size on disk, or some step of one comes back other than it
was."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import pytest
from tests.end_to_end.recorded import JSON, STEP_STATES, Run, disk_use, load_runs, verify_everything

from stateward import Thread
from stateward._io.stubs import bind_methods
from stateward.testing import Daemon, run_daemon
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import state_pb2
from stateward.v1.write_pb2 import WriteOptions

WORKERS = 4
DISK_FACTOR = 1.2
SAMPLE_EVERY = 40  # versions that are compared as Python objects too
NAIVE_MIB = 120  # what the short test of the naive client sends of the largest source


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with run_daemon(log_level="warning") as daemon:
        yield daemon


def on_all(runs: Iterable[Run], work: Callable[[Run], Any]) -> None:
    """Runs `work` for every run on a few threads, the longest runs first."""
    with ThreadPoolExecutor(WORKERS) as pool:
        for future in [pool.submit(work, run) for run in sorted(runs, key=lambda run: -len(run.states))]:
            future.result()


def import_run(thread: Thread, run: Run) -> None:
    """What an agent with the Python client does: hydrate once, change the state in place, save each step."""
    state = thread.hydrate()
    messages = state.logs["messages"]
    before: list[Any] = []
    for step, recorded in enumerate(run.states, 1):
        for at, message in enumerate(recorded[: len(before)]):
            if message != before[at]:
                messages[at] = copy.deepcopy(message)
        messages.extend(copy.deepcopy(message) for message in recorded[len(before) :])
        assert thread.save(state, step=step).version == step
        before = recorded


def full_states(run: Run, budget_bytes: float = float("inf")) -> Iterator[tuple[int, state_pb2.State]]:
    """The whole state after each step, as a client sends it that knows nothing of diffs; the first ones only, where
    all would be more than `budget_bytes`."""
    sent = 0
    for step, encoded in enumerate(run.encoded, 1):
        sent += sum(map(len, encoded))
        if sent > budget_bytes:
            return
        entries = [state_pb2.Value(media_type=JSON, data=data) for data in encoded]
        yield step, state_pb2.State(logs={"messages": state_pb2.Log(entries=entries)})


def hydrate(methods: dict[str, Callable[..., Any]], thread: str, version: int) -> tuple[int, list[bytes]]:
    """Version, and the messages as the bytes that are stored, read page by page."""
    request = checkpoints.HydrateRequest(thread=thread)
    request.version.version = version
    found: list[bytes] = []
    while True:
        page = methods["Hydrate"](request)
        assert not page.HasField("chunk")
        assert not page.state.slots
        found += [entry.data for entry in page.state.logs["messages"].entries]
        if not page.next_page_token:
            return page.checkpoint.version, found
        request.page_token = page.next_page_token


def check_run(daemon: Daemon, run: Run, last: int | None = None) -> int:
    """Hydrates every version and compares it with what was recorded; returns how many there were."""
    count = last or len(run.states)
    with grpc.insecure_channel(daemon.target, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        methods = bind_methods(channel)
        for version in range(1, count + 1):
            assert hydrate(methods, run.name, version) == (version, run.encoded[version - 1])
    with daemon.client() as client:
        thread = client.thread(run.name)
        for version in {*range(SAMPLE_EVERY, count, SAMPLE_EVERY), count}:
            assert list(thread.hydrate(at=version).logs["messages"]) == run.states[version - 1]
        assert thread.hydrate().version == count
        assert thread.info().retained_versions == count
    return count


def check_verify(daemon: Daemon) -> None:
    records, findings = verify_everything(daemon)
    assert records > 0
    assert findings == []


@pytest.mark.slow
@pytest.mark.parametrize("each", [3, pytest.param(1, marks=pytest.mark.soak)])
def test_every_version_of_every_run_comes_back_and_the_disk_holds_little_more_than_the_new_messages(
    daemon: Daemon, each: int
) -> None:
    """Each of the 5,653 recorded states is hydrated as it was (outside of `make soak-tests` those of a third of the
    runs), and all of them take 1.2 times the new messages' bytes at most."""
    runs, started = load_runs(), time.monotonic()
    with daemon.client() as client:
        on_all(runs, lambda run: import_run(client.thread(run.name), run))
        stats = client.stats()
    imported = time.monotonic()
    counts: list[int] = []
    on_all(runs[::each], lambda run: counts.append(check_run(daemon, run)))
    hydrated = time.monotonic()
    assert sum(counts) == sum(len(run.states) for run in runs[::each])
    check_verify(daemon)
    used, new = disk_use(daemon.data_dir), sum(run.new_bytes for run in runs)
    print(
        f"{len(runs)} runs, {sum(counts)} versions: imported in {imported - started:.1f} s, hydrated in "
        f"{hydrated - imported:.1f} s; new messages {new:,} bytes; on disk {used.length_bytes:,} (blocks "
        f"{used.block_bytes:,}; {used.length_bytes / new:.3f} of the new bytes); entries {stats.entry_bytes:,}, "
        f"snapshots {stats.snapshot_bytes:,} in {stats.snapshots}, used pages {stats.used_bytes:,}"
    )
    assert max(used.length_bytes, used.block_bytes) <= DISK_FACTOR * new


def save_naively(daemon: Daemon, run: Run, budget_bytes: float = float("inf")) -> int:
    """Sends the full state after each step, expecting the version before; returns the last version."""
    last = 0
    with grpc.insecure_channel(daemon.target, options=(("grpc.use_local_subchannel_pool", 1),)) as channel:
        methods = bind_methods(channel)
        for step, state in full_states(run, budget_bytes):
            request = checkpoints.SaveRequest(
                thread=run.name, options=WriteOptions(expected_version=step - 1), state=state, step=step
            )
            last = methods["Save"](request).version
            assert last == step
    return last


def check_naive(daemon: Daemon, runs: Iterable[Run], budget_bytes: Callable[[Run], float]) -> None:
    """Saves and reads back; the journal must hold the differences, not the states."""
    lasts: dict[str, int] = {}
    chosen = list(runs)
    on_all(chosen, lambda run: lasts.__setitem__(run.name, save_naively(daemon, run, budget_bytes(run))))
    with daemon.client() as client:
        stats = client.stats()
    on_all(chosen, lambda run: check_run(daemon, run, lasts[run.name]))
    check_verify(daemon)
    sent = sum(sum(map(len, state)) for run in chosen for state in run.encoded[: lasts[run.name]])
    kept = sum(sum(map(len, run.encoded[lasts[run.name] - 1])) for run in chosen)
    print(
        f"{sum(lasts.values())} full states: sent {sent:,} bytes, entries {stats.entry_bytes:,}, last states {kept:,}"
    )
    assert stats.entry_bytes < kept


@pytest.mark.slow
def test_a_naive_client_is_stored_as_small_and_read_as_exactly(daemon: Daemon) -> None:
    """Full states sent after every step are kept as differences, and every version is what was sent. A third of the
    runs."""
    runs = load_runs()[::3]
    large = [run for run in runs if run.source == "vorflux-coding"]
    share = NAIVE_MIB * 2**20 / len(large)
    check_naive(daemon, runs, lambda run: share if run in large else float("inf"))


@pytest.mark.soak
@pytest.mark.timeout(900)
def test_a_naive_client_with_every_state_of_every_run(daemon: Daemon) -> None:
    """The same with all 1,007 MB of recorded states."""
    check_naive(daemon, load_runs(), lambda run: float("inf"))


def test_a_rewritten_message_is_kept_in_both_forms(daemon: Daemon) -> None:
    """The run whose older messages are elided later shows each of them as it was at every version."""
    run = next(run for run in load_runs() if run.source == STEP_STATES)
    rewritten = [
        (step, at)
        for step, (before, after) in enumerate(zip(run.states, run.states[1:], strict=False), 2)
        for at, message in enumerate(before)
        if after[at] != message
    ]
    assert rewritten, "the recording has no rewritten message: this test would test nothing"
    with daemon.client() as client:
        thread = client.thread(run.name)
        import_run(thread, run)
        daemon.kill()
        daemon.start()
        for step, at in rewritten:
            assert thread.hydrate(at=step - 1).logs["messages"][at] == run.states[step - 2][at]
            assert thread.hydrate(at=step).logs["messages"][at] == run.states[step - 1][at]
            assert thread.hydrate(at=step).logs["messages"].rewritten_version == step


def test_history_and_asyncio_show_the_same_runs(daemon: Daemon) -> None:
    """A history stream replays to the recorded states, and AsyncClient reads what Client wrote."""
    import asyncio

    runs = [run for run in load_runs() if run.source in ("swe-agent", "who-when-captain")][:6]
    with daemon.client() as client:
        on_all(runs, lambda run: import_run(client.thread(run.name), run))
        for run in runs:
            with client.thread(run.name).history() as history:
                seen = [(entry.checkpoint.version, entry.state, entry.changes) for entry in history]
            messages = list(seen[0][1].logs["messages"])
            for version, _, changes in seen[1:]:
                for change in changes:
                    messages.extend(change.entries)
                assert messages == run.states[version - 1]
            assert [version for version, _, _ in seen] == list(range(1, len(run.states) + 1))

    async def read() -> list[list[Any]]:
        async with daemon.async_client() as client:
            states = await asyncio.gather(*(client.thread(run.name).hydrate() for run in runs))
            return [list(state.logs["messages"]) for state in states]

    assert asyncio.run(read()) == [run.states[-1] for run in runs]
