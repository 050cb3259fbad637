"""Recorded runs of real agents, read from beside the repository; tests that need them are skipped where they are not.

A run is a list of states, each a list of messages, and a state is given as the messages' JSON, encoded once: with
prefixes shared, all 5,653 states together take no more memory than the messages.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from stateward.testing import Daemon
from stateward.v1 import admin_service_pb2 as admin
from stateward.v1 import admin_service_pb2_grpc

DATA = Path(__file__).resolve().parents[3] / "shared" / "data"
JSON = "application/json"
STEP_STATES = "swe-agent-step-states"


@dataclass
class Run:
    """One recorded run. `states[k - 1]` is the state after step k."""

    name: str
    source: str
    states: list[list[Any]] = field(repr=False)
    encoded: list[list[bytes]] = field(repr=False)

    @property
    def new_bytes(self) -> int:
        """Bytes of the messages that were not in the state before: what a perfect diff would have to say."""
        total, before = 0, list[bytes]()
        for state in self.encoded:
            if state[: len(before)] == before:
                total += sum(map(len, state[len(before) :]))
            else:
                total += sum(len(new) for at, new in enumerate(state) if at >= len(before) or new != before[at])
            before = state
        return total


def encode(message: Any) -> bytes:
    """A message as compact UTF-8 JSON, which is what the client stores."""
    return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()


@cache
def load_runs() -> tuple[Run, ...]:
    """Every run of every file; skips the test where there are none."""
    files = sorted(DATA.glob("*.jsonl.gz"))
    if not files:
        pytest.skip(f"no recorded runs: they are expected in {Path('..', 'shared', 'data')}, beside the repository")
    return tuple(run for file in files for run in _read(file))


def _read(file: Path) -> Iterator[Run]:
    source = file.name.removesuffix(".jsonl.gz")
    with gzip.open(file, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(lines):
            record = json.loads(line)
            if "states" in record:
                states = [state["messages"] for state in record["states"]]
                encoded = [list(map(encode, state)) for state in states]
            else:
                messages, whole = record["messages"], list(map(encode, record["messages"]))
                states = [messages[:count] for count in range(1, len(messages) + 1)]
                encoded = [whole[:count] for count in range(1, len(messages) + 1)]
            yield Run(f"{source}/{number}/{record['run_id']}", source, states, encoded)


@dataclass(frozen=True)
class DiskUse:
    """What a directory takes: the lengths of its files, and the blocks that are really allocated."""

    length_bytes: int
    block_bytes: int


def disk_use(directory: Path) -> DiskUse:
    """Looks at every file below a directory."""
    stats = [path.stat() for path in directory.rglob("*") if path.is_file()]
    return DiskUse(sum(each.st_size for each in stats), sum(each.st_blocks * 512 for each in stats))


def verify_everything(daemon: Daemon) -> tuple[int, list[admin.VerifyFinding]]:
    """Records checked in all namespaces and in the store itself, and what is wrong with them."""
    import grpc

    with grpc.insecure_channel(daemon.target) as channel:
        answers = list(admin_service_pb2_grpc.AdminServiceStub(channel).Verify(admin.VerifyRequest()))
    return answers[-1].progress.items, [answer.finding for answer in answers if answer.HasField("finding")]
