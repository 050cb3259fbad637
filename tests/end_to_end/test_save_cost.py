"""The danger: a save of a long thread costs as much as its whole state, so disks fill and agents slow down with each
step."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.end_to_end.recorded import DATA, encode, load_runs, verify_everything

from stateward import Stats
from stateward.testing import run_daemon

STEPS = 10_000
WRITE_FACTOR = 3
HALF_FACTOR = 1.3  # how much more the second half may take at rest than the first, of the same messages
CPU_FACTOR = 3  # how much more time of the daemon's processor the last steps may take than the second tenth


def recorded_messages() -> list[Any]:
    """Messages of real agents, all runs one after the other; skips where there are none."""
    return [message for run in load_runs() for message in run.states[-1]]


def generated_messages() -> list[Any]:
    """As many messages of about the same sizes and compressibility, for where the recorded ones are not."""
    import random

    dice = random.Random(7)
    words = ["".join(dice.choices("etaoinshrdlucmfwypvbgk", k=dice.randint(2, 9))) for _ in range(2000)]
    sizes = (8, 20, 40, 60, 150, 900)
    return [
        {"role": dice.choice(("assistant", "tool")), "content": " ".join(dice.choices(words, k=dice.choice(sizes)))}
        for _ in range(STEPS // 2)
    ]


def half_of_the_steps() -> Iterator[Any]:
    """Half of the messages; the thread gets them twice, so that both halves can be compared."""
    messages = recorded_messages() if any(DATA.glob("*.jsonl.gz")) else generated_messages()
    while len(messages) < STEPS // 2:
        messages += messages
    return iter(messages[: STEPS // 2])


def at_rest(stats: Stats) -> int:
    """What was written for versions: edits, snapshots, and segments of logs."""
    return stats.entry_bytes + stats.snapshot_bytes + stats.blob_bytes


def cpu_s(pid: int) -> float | None:
    """Processor time of a process so far, in seconds; None where it cannot be told."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("steps", [3_000, pytest.param(STEPS, marks=pytest.mark.soak)])
def test_many_steps_write_three_times_their_diffs_at_most(steps: int) -> None:
    """Everything written for a thread of 10,000 steps, snapshots included, is at most 3 times its sealed diffs; the
    last steps cost what the first ones cost."""
    sample_steps = steps // 10
    messages = list(half_of_the_steps())[: steps // 2]
    twice = [*messages, *({"again": True, **message} for message in messages)]
    with run_daemon(log_level="warning") as daemon, daemon.client() as client:
        thread = client.thread("long")
        state = thread.hydrate()
        log, half = state.logs["messages"], client.stats()
        cpu: list[float | None] = []
        for step, message in enumerate(twice, 1):
            log.append(message)
            state.slots["step"] = {"number": step, "status": "running"}
            thread.save(state, step=step)
            if step % sample_steps == 0:
                cpu.append(cpu_s(daemon.pid))
            if step == steps // 2:
                half = client.stats()
        stats = client.stats()
        new = sum(len(encode(message)) for message in twice)
        print(
            f"{steps} steps with {new:,} bytes of messages: diffs {stats.entry_bytes:,}, {stats.snapshots} snapshots "
            f"{stats.snapshot_bytes:,}: {(stats.entry_bytes + stats.snapshot_bytes) / stats.entry_bytes:.2f} times; "
            f"first half at rest {at_rest(half):,} of {at_rest(stats):,}; daemon's CPU seconds after "
            f"each {sample_steps} steps: {cpu}"
        )
        assert stats.saves == steps
        assert stats.snapshots > 3  # else the next line says nothing
        assert stats.entry_bytes + stats.snapshot_bytes <= WRITE_FACTOR * stats.entry_bytes
        assert at_rest(stats) - at_rest(half) <= HALF_FACTOR * at_rest(half)
        if None not in cpu:
            assert cpu[-1] - cpu[-2] <= CPU_FACTOR * (cpu[1] - cpu[0])
        daemon.kill()
        daemon.start()
        for version in (1, steps // 3, steps // 2 + 1, steps):
            found = thread.hydrate(at=version)
            assert json.dumps(list(found.logs["messages"])) == json.dumps(twice[:version])
            assert found.slots["step"] == {"number": version, "status": "running"}
        assert thread.hydrate().version == steps
        assert verify_everything(daemon)[1] == []
