"""The danger: one save of an allowed size takes the daemon over the memory of a container of 512 MB, which the system
then kills."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.daemon.wire import Wire
from tests.soak.test_clients_hostile import LIMIT_MIB, Peak

from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.diff_pb2 import Append, Diff, Edit, SetSlot
from stateward.v1.state_pb2 import Log, State, Value

MIB = 1 << 20
TIMEOUT_S, SETTLES_S = 120.0, 3.0
# Of 60 MB each: many values of a message, and as many as fit. Slots cost more each than entries of a log.
ENTRIES, SMALL_ENTRIES, SLOTS = (100_000, 600), (800_000, 64), (100_000, 580)
# Half the largest state over another such. It takes 233 MiB, sometimes 270; 30 of them are the entries as they were,
# which lie in segments until they are compared. With a message of edits and protobuf's encoder it takes 75 MiB more.
HALF, HALF_MIB, TRIES = (50_000, 600), 272, 4


def values(count: int, size_bytes: int) -> list[Value]:
    """Values that do not compress."""
    data = os.urandom(count * size_bytes)
    return [Value(data=data[at : at + size_bytes]) for at in range(0, len(data), size_bytes)]


def entries(count: int, size_bytes: int) -> State:
    return State(logs={"l": Log(entries=values(count, size_bytes))})


def slots(count: int, size_bytes: int) -> State:
    return State(slots={f"{number}": value for number, value in enumerate(values(count, size_bytes))})


def save(daemon: Daemon, request: SaveRequest) -> int:
    """The memory that a save and what follows it take at most, in MiB."""
    peak, wire = Peak(daemon.pid), Wire(f"unix:{daemon.socket}")
    try:
        request.options.request_id = os.urandom(8).hex()
        wire.checkpoints.Save(request, timeout=TIMEOUT_S)
        time.sleep(SETTLES_S)
        return peak.take()
    finally:
        wire.close()
        peak.close()


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with run_daemon(tmp_path / "data", memory_limit=f"{LIMIT_MIB}MiB") as running:
        yield running


def test_a_state_over_another_is_in_memory_once_in_each_form(daemon: Daemon) -> None:
    """As sent, as it was, as it is, as stored: there is no message of edits, and the encoder keeps no halves."""
    save(daemon, SaveRequest(thread="t", overwrite=True, state=entries(*HALF)))
    again = (save(daemon, SaveRequest(thread="t", overwrite=True, state=entries(*HALF))) for _ in range(TRIES))
    assert any(taken_mib < HALF_MIB for taken_mib in again)


@pytest.mark.soak
@pytest.mark.timeout(1800)
def test_no_allowed_save_passes_the_limit(daemon: Daemon) -> None:
    """Whole states over whole states of their own and of another shape, and edits, of one value or very many."""
    states: dict[str, Callable[[], State]] = {
        "entries": lambda: entries(*ENTRIES),
        "small entries": lambda: entries(*SMALL_ENTRIES),
        "slots": lambda: slots(*SLOTS),
        "one value": lambda: State(slots={"s": Value(data=os.urandom(63 * MIB))}),
    }
    found = dict[str, int]()
    for name, make in states.items():
        for thread in ("mixed", name, name):
            found[f"{name} {len(found)}"] = save(daemon, SaveRequest(thread=thread, overwrite=True, state=make()))
    edits = {
        "append": [Edit(append=Append(log="l", entries=values(*SMALL_ENTRIES)))],
        "set": [Edit(set_slot=SetSlot(slot=f"{number}", value=each)) for number, each in enumerate(values(*SLOTS))],
    }
    for name, each in edits.items():
        found[name] = save(daemon, SaveRequest(thread=name, diff=Diff(edits=each)))
    assert max(found.values()) < LIMIT_MIB, found
