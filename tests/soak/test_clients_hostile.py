"""The danger: hostile clients, one after the other, end a daemon with a memory limit, cost an answered save, or slow
down everybody else. Ten over gRPC, on a daemon of 512 MiB, and nine over frames, on one of 256 MiB.

The system refuses the daemon more than 512 MiB of memory of its own (RLIMIT_DATA). That counts what is reserved for the
stacks of threads as if it were used, so they are small here.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
from tests import warm
from tests.soak import hostile, hostile_frames
from tests.soak.hostile import damage, make_thread, prepare

from stateward.testing import Daemon, run_daemon

MIB = 1 << 20
# What the system allows at most, and the daemon's own limit on each wire.
LIMIT_MIB = 512
LIMITS_MIB = {"grpc": LIMIT_MIB, "frames": 256}
# The largest state that there is, of which two may be read at a time.
LARGE_MIB, STATE_MIB = {"grpc": 30, "frames": 14}, {"grpc": 64, "frames": 16}
ATTACKS = {"grpc": hostile.ATTACKS, "frames": hostile_frames.ATTACKS}
STACK_BYTES = MIB
SMALL = 0.01
# Of the 99th percentile. What is below the floor is the machine's own noise.
TIMES_MAX, FLOOR_S = 5.0, 0.01
CALLED_S, QUIET_S = 10.0, 5.0
ATTACK_TIMEOUT_S = 120.0


class Peak:
    """The most memory of its own that a process had, by a look every few milliseconds."""

    def __init__(self, pid: int) -> None:
        self._status = Path(f"/proc/{pid}/status")
        self._over = threading.Event()
        self.peak_bytes = 0
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def _look(self) -> None:
        while not self._over.wait(0.005):
            try:
                text = self._status.read_text()
            except OSError:
                return
            lines = (line for line in text.splitlines() if line.startswith("RssAnon"))
            self.peak_bytes = max(self.peak_bytes, *(int(line.split()[1]) << 10 for line in lines), 0)

    def take(self) -> int:
        """In MiB, since the last time."""
        peak_bytes, self.peak_bytes = self.peak_bytes, 0
        return peak_bytes // MIB

    def close(self) -> None:
        self._over.set()
        self._thread.join()


@contextmanager
def caller(daemon: Daemon, wire: str) -> Iterator[dict[str, Any]]:
    """Somebody who saves and reads, in a process of their own; afterwards what they saw."""
    command = [sys.executable, "-m", "tests.soak.hostile", "caller", str(daemon.socket)]
    seen: dict[str, Any] = {}
    options = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "env": {**os.environ, "STATEWARD_WIRE": wire}}
    with subprocess.Popen(command, text=True, **options) as process:
        try:
            assert process.stdout is not None
            process.stdout.readline()  # it has begun
            yield seen
            seen |= json.loads(process.communicate(timeout=ATTACK_TIMEOUT_S)[0])
        finally:
            process.kill()
    took = sorted(seen["took"])
    seen["p99_s"] = took[int(len(took) * 0.99)]


def attack(daemon: Daemon, wire: str, name: str) -> None:
    """Runs one, at a low priority: what is measured is the daemon, and not who gets the processor."""
    module = "tests.soak.hostile_frames" if wire == "frames" else "tests.soak.hostile"
    command = [sys.executable, "-m", module, name, str(daemon.socket), "1"]
    subprocess.run(command, timeout=ATTACK_TIMEOUT_S, check=True, preexec_fn=lambda: os.nice(10))


@contextmanager
def hanging(heads: set[Path]) -> Iterator[None]:
    """Reads of some objects of the bucket do not return: pipes that nobody writes stand in their places."""
    for path in heads:
        path.rename(path.with_name(path.name + ".kept"))
        os.mkfifo(path)
    try:
        yield
    finally:
        for path in heads:
            with suppress(OSError):  # nobody reads it
                os.close(os.open(path, os.O_WRONLY | os.O_NONBLOCK))  # whoever reads goes on
            path.with_name(path.name + ".kept").rename(path)


@contextmanager
def small_stacks() -> Iterator[None]:
    """For the threads of processes that are started meanwhile: cold, because a fork keeps the size that it began with,
    and fifty stacks of that size would be most of what the limit allows."""
    before = resource.getrlimit(resource.RLIMIT_STACK)
    resource.setrlimit(resource.RLIMIT_STACK, (STACK_BYTES, before[1]))
    try:
        with patch.dict(os.environ, {warm.COLD: "1"}):
            yield
    finally:
        resource.setrlimit(resource.RLIMIT_STACK, before)


@contextmanager
def victim(directory: Path, wire: str, size: float) -> Iterator[tuple[Daemon, set[Path]]]:
    """A daemon with a damaged thread, a large state and a long history; and what thread "hung" has in the bucket."""
    bucket = directory / "bucket"
    flags = {"memory_limit": f"{LIMITS_MIB[wire]}MiB", "max_state_size": f"{STATE_MIB[wire]}MiB"}
    flags |= {"archive": f"file://{bucket}", "grace": "1"}
    with run_daemon(directory / "data", **flags) as daemon:
        prepare(str(daemon.socket), size, LARGE_MIB[wire])
        daemon.stop()
        damage(daemon.data_dir)
        with small_stacks():
            daemon.start()
        resource.prlimit(daemon.pid, resource.RLIMIT_DATA, (LIMIT_MIB * MIB, LIMIT_MIB * MIB))
        before = set(bucket.rglob("*"))
        make_thread(str(daemon.socket), "hung")
        yield daemon, {path for path in set(bucket.rglob("*")) - before if path.is_file()}


def run_attacks(directory: Path, wire: str) -> dict[str, dict[str, Any]]:
    """All of them. Returns what a caller beside each saw, and the memory that the daemon needed, by attack.

    The machine may be busier later, so another daemon, which nobody attacks, is called before and after each attack.
    ``quiet_s`` is the larger 99th percentile of the two.
    """
    found = dict[str, dict[str, Any]]()
    flags = {"memory_limit": f"{LIMITS_MIB[wire]}MiB", "archive": f"file://{directory}/spared-bucket"}
    with victim(directory, wire, 1.0) as (daemon, hung), run_daemon(directory / "spared", **flags) as spared:
        pid, peak = daemon.pid, Peak(daemon.pid)
        try:
            before_s = _quiet_s(spared, wire)
            for name in ATTACKS[wire]:
                with caller(daemon, wire) as seen, hanging(hung if name == "hanging_bucket" else set()):
                    over_s = time.monotonic() + CALLED_S
                    attack(daemon, wire, name)
                    time.sleep(max(over_s - time.monotonic(), 0))
                assert daemon.pid == pid
                assert seen["kept"] == seen["saved"], f"{name}: saves were lost"
                after_s = _quiet_s(spared, wire)
                found[name] = {**seen, "peak_mib": peak.take(), "quiet_s": max(before_s, after_s)}
                before_s = after_s
        finally:
            peak.close()
    return found


def _quiet_s(daemon: Daemon, wire: str) -> float:
    with caller(daemon, wire) as seen:
        time.sleep(QUIET_S)
    return float(seen["p99_s"])


def report(found: dict[str, dict[str, Any]]) -> str:
    return "\n".join(
        f"{name:20} quiet p99 {each['quiet_s'] * 1000:6.1f} ms  p99 {each['p99_s'] * 1000:7.1f} ms  "
        f"max {max(each['took']) * 1000:7.1f} ms  "
        f"{len(each['took']):5} calls  peak {each['peak_mib']:4} MiB" for name, each in found.items()
    )  # fmt: skip


@pytest.mark.parametrize("wire", ATTACKS)
def test_a_daemon_outlives_small_attacks(tmp_path: Path, wire: str) -> None:
    """A hundredth of each attack: the daemon lives, and every answered save is there."""
    kind: Any = hostile_frames.FramesAttack if wire == "frames" else hostile.Attack
    with victim(tmp_path, wire, SMALL) as (daemon, hung):
        pid, peak = daemon.pid, Peak(daemon.pid)
        with caller(daemon, wire) as seen, hanging(hung if wire == "grpc" else set()):
            for name in ATTACKS[wire]:
                getattr(kind(str(daemon.socket), SMALL), name)()
        peak.close()
        assert daemon.pid == pid
        assert seen["kept"] == seen["saved"] > 1
        assert peak.take() < LIMIT_MIB / 2


@pytest.mark.soak
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("wire", ATTACKS)
def test_no_attack_ends_the_daemon_or_slows_the_others(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], wire: str
) -> None:
    """Below its memory limit; the 99th percentile is within five times of the quiet one."""
    found = run_attacks(tmp_path, wire)
    with capsys.disabled():
        print("\n" + report(found))
    assert max(each["peak_mib"] for each in found.values()) < LIMITS_MIB[wire], report(found)
    slow = {name for name, each in found.items() if each["p99_s"] > TIMES_MAX * max(each["quiet_s"], FLOOR_S)}
    assert slow == set(), report(found)
