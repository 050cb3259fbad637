"""The danger: a client without a token makes the daemon take so much memory that the kernel kills it."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest
from tests.processes import running
from tests.start import stranger

from stateward.testing import Daemon, run_daemon

MIB = 1 << 20
LIMIT_MIB = 128
# The idle daemon has about 60 MiB. Without bounds the resets take it to more than 500 MiB, and the watches to 300.
PEAK_BYTES_MAX = (LIMIT_MIB + 32) * MIB
RESETS, CONNECTIONS = 60_000, 24
# The stranger ends by itself when it has had its way; on a busy machine that takes minutes.
LONGEST_S = 220.0

pytestmark = pytest.mark.timeout(290)


def test_calls_that_are_cancelled_at_once_take_bounded_memory(tmp_path: Path) -> None:
    """While a stranger begins and cancels 60,000 calls, the daemon's memory stays near its limit."""
    assert peak_bytes_during(tmp_path, "resets", RESETS) <= PEAK_BYTES_MAX


def test_watches_of_the_health_take_bounded_memory(tmp_path: Path) -> None:
    """While a stranger opens 14,400 watches of the health, the daemon's memory stays near its limit."""
    assert peak_bytes_during(tmp_path, "watches", CONNECTIONS) <= PEAK_BYTES_MAX


@pytest.mark.parametrize("wire", ["bodies", "frames"])
def test_large_messages_take_bounded_memory(tmp_path: Path, wire: str) -> None:
    """While a stranger sends 24 messages of 60 MB, the daemon's memory stays near its limit."""
    assert peak_bytes_during(tmp_path, wire, CONNECTIONS) <= PEAK_BYTES_MAX


def peak_bytes_during(directory: Path, attack: str, count: int) -> int:
    """The most memory that a daemon with a token file has had during an attack; ends early if that is too much."""
    tokens = directory / "tokens"
    tokens.touch(mode=0o600)
    tokens.write_text("g" * 40)
    with run_daemon(directory / "data", token_file=tokens, memory_limit=f"{LIMIT_MIB}MiB") as daemon:
        command = [sys.executable, str(stranger.__file__), attack, str(daemon.socket), str(count)]
        end = time.monotonic() + LONGEST_S
        with running(command) as attacker:
            while (peak := peak_bytes(daemon)) <= PEAK_BYTES_MAX and time.monotonic() < end:
                if (code := attacker.poll()) is not None:
                    if code:
                        raise RuntimeError(f"the stranger ended with {code}")
                    return peak_bytes(daemon)
                time.sleep(0.05)
        return peak


def peak_bytes(daemon: Daemon) -> int:
    """The most memory that the daemon ever had."""
    status = Path(f"/proc/{daemon.pid}/status")
    if not status.exists():
        pytest.skip("this system does not tell how much memory a process had")
    for line in status.read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("the daemon has ended")
