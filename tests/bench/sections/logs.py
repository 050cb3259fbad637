"""A log of a gigabyte beside one of a megabyte: what may not grow with it, on one machine and on the next one."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from statistics import median

from tests.bench.field import Field
from tests.bench.payload import Payload, load_all_runs
from tests.bench.processes import HAS_PROC, anonymous_bytes
from tests.bench.report import Section
from tests.bench.rounds import p50_ms, take_turns, timed
from tests.bench.sections import Effort

from stateward import Client, Retention
from stateward.testing import run_daemon
from stateward.values import JSON, RawValue

ENTRY_BYTES, SMALL_ENTRIES, LARGE_ENTRIES, QUICK_ENTRIES = 10_000, 100, 100_000, 3000
TOGETHER = 20
TAIL = 50
SMALL, LARGE = "stateward, small log", "stateward, large log"
NAME = "messages"
APPEND, HYDRATE, FORK, READ, MEMORY, DISK = "append", "hydrate of the tail", "fork", "read whole", "memory", "on disk"
TRANSCRIPT, BY_MESSAGE = "transcript on disk, 20 messages a save", "transcript on disk, one message a save"
PRUNED = "transcript on disk, 20 messages a save, 10 versions kept"
TAKEOVER = "takeover by an empty machine"
QUICK_MESSAGES, KEPT, MACHINES = 200, 10, 3
WAIT_S, SWEEP_S, PAUSE_S = 900, 1, 0.04


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Both logs in turn, in a daemon of their own, which gets an archive later; then one log of all recorded
    messages."""
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
        copies = list[str]()

        def fork(name: str) -> None:
            copies.append(f"{name} {os.urandom(8).hex()}")
            client.thread(name).fork(copies[-1])

        _compare(section, FORK, fork, 3)
        read_s = timed(lambda: sum(1 for _ in client.thread(LARGE).log(NAME).read()))
        section.add(LARGE, READ, mb_per_s=new_bytes / 1e6 / read_s)
        section.add(LARGE, "filled", mb_per_s=new_bytes / 1e6 / fill_s)
        section.add(LARGE, MEMORY, grown_bytes=grown)
        section.add(LARGE, DISK, x_new=_disk_bytes(daemon.data_dir) / new_bytes)
        for copy in copies:
            client.thread(copy).delete()
        daemon.stop()
        _take_over(section, field, daemon.data_dir, daemon.key_file)
    messages = [RawValue(JSON, message) for run in _runs(payload) for message in run]
    messages = messages[: QUICK_MESSAGES if effort.quick else None]
    for case, together, kept in ((TRANSCRIPT, TOGETHER, None), (BY_MESSAGE, 1, None), (PRUNED, TOGETHER, KEPT)):
        section.add(LARGE, case, x_new=_store(field, case, messages, together, kept))
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


def _take_over(section: Section, field: Field, data_dir: Path, key_file: Path) -> None:
    """The logs go to a bucket, which is a directory, and from there to machines that have nothing, one after the
    other. Each takes a thread and reads its tail."""
    bucket = field.work / "logs-bucket"
    bucket.mkdir()
    with run_daemon(data_dir, key_file=key_file, archive=bucket.as_uri()) as daemon, daemon.client() as client:
        for name in (SMALL, LARGE):
            client.thread(name).archive.wait(client.thread(name).append(NAME, "the last one"), timeout=WAIT_S)
        daemon.stop()
    times: dict[str, list[float]] = {SMALL: [], LARGE: []}
    for number in range(MACHINES):
        data_dir = field.work / f"logs-machine-{number}"
        with run_daemon(data_dir, key_file=key_file, archive=bucket.as_uri()) as daemon, daemon.client() as client:
            for name in (SMALL, LARGE) if number % 2 else (LARGE, SMALL):

                def take(name: str = name) -> None:
                    client.thread(name).archive.attach(take_over=True)
                    client.thread(name).hydrate(logs={NAME: TAIL})

                times[name].append(timed(take))
            daemon.stop()
    small, large = (1e3 * median(times[name]) for name in (SMALL, LARGE))
    section.add(SMALL, TAKEOVER, p50_ms=small)
    section.add(LARGE, TAKEOVER, p50_ms=large, x_small=large / small)


def _store(field: Field, case: str, messages: list[RawValue], together: int, kept: int | None) -> float:
    """Appends all messages to one log; returns what they take on disk, by their own bytes. ``kept``: so many versions
    stay."""
    with field.own_daemon(f"logs-{together}-{kept}", sweep_interval=f"{SWEEP_S}s") as daemon:
        with daemon.client() as client:
            for at in range(0, len(messages), together):
                client.thread(LARGE).append(NAME, *messages[at : at + together])
                if kept is not None and at == 0:
                    client.thread(LARGE).update_options(retention=Retention(keep_last=kept))
                if kept is not None:
                    time.sleep(PAUSE_S)  # as an agent does; else a sweep meets thousands of versions at once
            time.sleep(0.5 if kept is None else 3 * SWEEP_S)
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
