"""The danger: a log grows faster than its segments are made, and lies in memory; or its saves wait for ever."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from threading import Event

import pytest
from tests.daemon.inside import Inside, daemon_inside
from tests.daemon.segments import shrink_segments

from stateward import Client
from stateward.values import JSON, RawValue
from stateward_sidecar.codec.state import loose_bytes
from stateward_sidecar.service.calls import saving
from stateward_sidecar.store.blobs import segments
from stateward_sidecar.store.versions import snapshots

ENTRY_BYTES, CROWDED_BYTES = 5_000, 60_000


@pytest.fixture
def daemon(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Inside]:
    shrink_segments(monkeypatch)
    monkeypatch.setattr(snapshots, "CROWDED_BYTES", CROWDED_BYTES)
    with daemon_inside(tmp_path) as inside:
        yield inside


def entry(number: int) -> RawValue:
    return RawValue(JSON, f'"{number:x>{ENTRY_BYTES}}"'.encode())


def held_bytes(daemon: Inside, client: Client) -> int:
    """How much of the log is in memory."""
    context = daemon.parts.store.context
    with context.engine.read() as txn:
        thread = daemon.parts.store.threads.get(txn, "default", "t")
    tree = context.cache.state(thread.number, thread.branches["main"].version)
    return loose_bytes(tree) if tree is not None else 0


@pytest.mark.parametrize("how", ["calls", "writer"])
def test_saves_wait_for_the_segments_of_their_log(daemon: Inside, monkeypatch: pytest.MonkeyPatch, how: str) -> None:
    """Slow disks make segments slowly. Saves of other logs do not wait."""
    seal = segments.seal_segments

    def slowly(*arguments: object) -> segments.Sealed:
        time.sleep(0.2)
        return seal(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "seal_segments", slowly)
    most = 0
    with Client(daemon.settings.listen[0]) as client:
        thread = client.thread("t")
        thread.append("messages", entry(0))
        if how == "calls":
            for number in range(1, 60):
                thread.append("messages", entry(number))
                most = max(most, held_bytes(daemon, client))
        else:
            state = thread.hydrate()
            with thread.writer() as writer:
                for number in range(1, 60):
                    state.logs["messages"].append(entry(number))
                    writer.save(state)
                    most = max(most, held_bytes(daemon, client))
        state = client.thread("t").hydrate()
        assert [str(each).lstrip("x") for each in state.logs["messages"]] == [f"{number}" for number in range(60)]
    assert most < CROWDED_BYTES + 10 * ENTRY_BYTES


def test_a_save_does_not_wait_for_ever(daemon: Inside, monkeypatch: pytest.MonkeyPatch) -> None:
    """No segment is made at all: saves go on slowly, until memory is full (test_segments_lost)."""
    monkeypatch.setattr(saving, "CROWDED_WAIT_S", 0.05)
    stuck, seal = Event(), segments.seal_segments

    def never(*arguments: object) -> segments.Sealed:
        stuck.wait(60)
        return seal(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(snapshots, "seal_segments", never)
    with Client(daemon.settings.listen[0]) as client:
        for number in range(20):
            client.thread("t").append("messages", entry(number))
        assert held_bytes(daemon, client) > 20 * ENTRY_BYTES
        stuck.set()
        began = time.monotonic()
        while held_bytes(daemon, client) > CROWDED_BYTES:
            assert time.monotonic() - began < 60
            time.sleep(0.01)
        client.thread("t").append("messages", entry(20))
        assert len(client.thread("t").hydrate().logs["messages"]) == 21


def test_no_save_waits_once_no_segment_is_made(daemon: Inside) -> None:
    """The making of a snapshot ended without one, just when a save said that many entries wait."""
    with Client(daemon.settings.listen[0]) as client:
        client.thread("t").append("messages", entry(0))
        context = daemon.parts.store.context
        with context.engine.read() as txn:
            thread = daemon.parts.store.threads.get(txn, "default", "t")
        thread.is_crowded = True
        client.thread("t").append("messages", entry(1))
        assert not thread.is_crowded
