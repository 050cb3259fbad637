"""A log of a gigabyte beside one of a megabyte: what may not grow with it."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

from tests.bench.field import Field
from tests.bench.payload import Payload, load_all_runs
from tests.bench.processes import HAS_PROC, anonymous_bytes
from tests.bench.report import Section
from tests.bench.rounds import p50_ms, take_turns, timed
from tests.bench.sections import Effort

from stateward import Client
from stateward.values import JSON, RawValue

ENTRY_BYTES, SMALL_ENTRIES, LARGE_ENTRIES, QUICK_ENTRIES = 10_000, 100, 100_000, 3000
TOGETHER = 20
TAIL = 50
SMALL, LARGE = "stateward, small log", "stateward, large log"
NAME = "messages"
APPEND, HYDRATE, FORK, READ, MEMORY, DISK = "append", "hydrate of the tail", "fork", "read whole", "memory", "on disk"
TRANSCRIPT, BY_MESSAGE = "transcript on disk, 20 messages a save", "transcript on disk, one message a save"
QUICK_MESSAGES = 200


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Both logs in turn, in a daemon of their own; then one log of all recorded messages."""
    section = Section("logs", "a log of a gigabyte")
    count = QUICK_ENTRIES if effort.quick else LARGE_ENTRIES
    texts = _texts()
    with field.own_daemon("logs") as daemon, daemon.client() as client:
        _fill(client, SMALL, SMALL_ENTRIES, texts)
        before = anonymous_bytes(daemon.pid) if HAS_PROC else 0
        fill_s = timed(lambda: _fill(client, LARGE, count - SMALL_ENTRIES, texts))
        grown = anonymous_bytes(daemon.pid) - before if HAS_PROC else None
        new_bytes = ENTRY_BYTES * count
        for case, call in (
            (APPEND, lambda name: client.thread(name).append(NAME, next(texts))),
            (HYDRATE, lambda name: client.thread(name).hydrate(logs={NAME: TAIL})),
        ):
            _compare(section, case, call, max(effort.rounds, 5))
        _compare(section, FORK, lambda name: client.thread(name).fork(f"{name} {os.urandom(8).hex()}"), 3)
        read_s = timed(lambda: sum(1 for _ in client.thread(LARGE).log(NAME).read()))
        section.add(LARGE, READ, mb_per_s=new_bytes / 1e6 / read_s)
        section.add(LARGE, "filled", mb_per_s=new_bytes / 1e6 / fill_s)
        section.add(LARGE, MEMORY, grown_bytes=grown)
        section.add(LARGE, DISK, x_new=_disk_bytes(daemon.data_dir) / new_bytes)
    messages = [RawValue(JSON, message) for run in _runs(payload) for message in run]
    messages = messages[: QUICK_MESSAGES if effort.quick else None]
    for case, together in ((TRANSCRIPT, TOGETHER), (BY_MESSAGE, 1)):
        section.add(LARGE, case, x_new=_store(field, case, messages, together))
    section.notes.append(f"{count:,} entries of {ENTRY_BYTES:,} bytes beside {SMALL_ENTRIES}; memory: what is no file")
    yield section


def _compare(section: Section, case: str, call: Callable[[str], object], rounds: int) -> None:
    times = take_turns({name: lambda name=name: lambda: call(name) for name in (SMALL, LARGE)}, rounds)
    small, large = p50_ms(times[SMALL]), p50_ms(times[LARGE])
    section.add(SMALL, case, p50_ms=small)
    section.add(LARGE, case, p50_ms=large, x_small=large / small)


def _fill(client: Client, name: str, count: int, texts: Iterator[str]) -> None:
    thread = client.thread(name)
    while count > 0:
        thread.append(NAME, *islice(texts, min(count, TOGETHER)))
        count -= TOGETHER
    time.sleep(0.5)  # what became due is made in the background


def _runs(payload: Payload) -> list[list[bytes]]:
    return [run for runs in load_all_runs().values() for run in runs] or payload.runs


def _store(field: Field, case: str, messages: list[RawValue], together: int) -> float:
    """Appends all messages to one log; returns what they take on disk, by their own bytes."""
    with field.own_daemon(f"logs-{case[-14:]}") as daemon:
        with daemon.client() as client:
            for at in range(0, len(messages), together):
                client.thread(LARGE).append(NAME, *messages[at : at + together])
            time.sleep(0.5)
        daemon.stop()
        return _disk_bytes(daemon.data_dir) / sum(len(each.data) for each in messages)


def _texts() -> Iterator[str]:
    """Words, as of a conversation: they compress to about half."""
    dice, words = random.Random(7), [os.urandom(6).hex() for _ in range(4000)]
    while True:
        yield " ".join(dice.choices(words, k=ENTRY_BYTES // 13)).ljust(ENTRY_BYTES)[:ENTRY_BYTES]


def _disk_bytes(directory: Path) -> float:
    found = (path.stat() for path in directory.rglob("*") if path.is_file())
    return sum(each.st_blocks * 512 / each.st_nlink for each in found)
