"""Bytes on disk of the recorded runs, a save after every message: of all runs, and of short ones alone.

Short runs are the costly ones: they have the least to compress, and a thread's fixed rows weigh the most.
"""

from __future__ import annotations

from collections.abc import Iterator

from tests.bench.field import Field
from tests.bench.payload import Payload, load_all_runs
from tests.bench.peers.stateward import STUB, Stub
from tests.bench.report import Section
from tests.bench.sections import Effort
from tests.bench.sections.storage import used_bytes

ALL, SHORT = "all runs", "short runs"
SHORT_FILE = "tau-bench-airline"
QUICK_RUNS, QUICK_STEPS = 2, 10


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Each kind in an empty store of its own."""
    files = load_all_runs() or {SHORT_FILE: payload.runs}
    if effort.quick:
        files = {name: [run[:QUICK_STEPS] for run in runs[-QUICK_RUNS:]] for name, runs in files.items()}
    section = Section("disk", "runs saved step by step, on disk")
    for case, runs in {ALL: [run for each in files.values() for run in each], SHORT: files[SHORT_FILE]}.items():
        new_bytes = sum(len(message) for run in runs for message in run)
        disk_bytes = _save(field, case, runs)
        section.add(STUB, case, messages_bytes=new_bytes, disk_bytes=disk_bytes, x_messages=disk_bytes / new_bytes)
    section.notes.append(f"{', '.join(files)}; short runs: {SHORT_FILE}; a thread a run, a version a message")
    yield section


def _save(field: Field, case: str, runs: list[list[bytes]]) -> int:
    """Saves every step; returns what the data directory takes when the daemon has ended."""
    with field.own_daemon(f"disk-{case}") as daemon:
        stub = Stub(daemon.target)
        for number, run in enumerate(runs):
            thread = f"run-{number}"
            stub.fill(thread, [])
            for message in run:
                stub.step(thread, message)()
        stub.close()
        daemon.stop()
        return used_bytes(daemon.data_dir)
