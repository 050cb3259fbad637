"""Plays one history: daemons, clients, evil, the end. The result is a file for the checker."""

from __future__ import annotations

import random
import secrets
import shutil
import tempfile
import threading
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.daemon.segments import SMALL
from tests.histories import gone
from tests.histories.clients import Client
from tests.histories.contents import Directory, Objects, Server
from tests.histories.copies import Copies
from tests.histories.ending import Ending
from tests.histories.machines import Machine
from tests.histories.nemesis import Nemesis
from tests.histories.recorder import Recorder, Words
from tests.histories.scenarios import Scenario
from tests.histories.weather import Weather, running_weather

BUCKET = "stateward"
CLIENTS = 4
# How long a daemon that was replaced may show what it has, beyond --archive-check (the lease): for a pause, or a
# check that takes long. And how long while the bucket does not answer: a storm, and the patience of a request.
STALE_MARGIN_S, STALE_IN_STORM_S = 1.0, 8.0
PATIENCE_S = 90.0
# So many histories have segments of a few kilobytes in their logs (tests/daemon/segments.py).
SEGMENTS_SHARE = 0.75


def play(
    seed: int, scenario: Scenario, path: Path, server: str | None = None, operations: int | None = None
) -> Counter[str]:
    """Plays the history of a seed into a file; returns what was counted. ``server``: the URL of an S3 server."""
    dice = random.Random(f"{seed} play")
    stale_s = scenario.lease_s + STALE_MARGIN_S
    recorder = Recorder(
        path, seed=seed, scenario=scenario.name, promise=scenario.promise, calm=scenario.is_calm,
        staleness_ns=int(stale_s * 1e9), staleness_in_storm_ns=int((stale_s + STALE_IN_STORM_S) * 1e9),
    )  # fmt: skip
    directory = Path(tempfile.mkdtemp(prefix="h-", dir="/tmp"))  # short: sockets lie in it
    try:
        with ExitStack() as stack:
            stack.callback(recorder.close)
            _play(seed, scenario, recorder, directory, stack, dice, server, operations, stale_s)
    finally:
        _keep_logs(directory, path)
        shutil.rmtree(directory, ignore_errors=True)
    return recorder.counts


def _play(
    seed: int, scenario: Scenario, recorder: Recorder, directory: Path, stack: ExitStack, dice: random.Random,
    server: str | None, operations: int | None, stale_s: float,
) -> None:  # fmt: skip
    machines = _machines(seed, scenario, directory, stack, dice, server)
    fresh = machines.pop() if scenario.archive else None
    threads = [f"t{number}" for number in range(dice.randint(1, scenario.threads))]
    if len(threads) > 1 and scenario.machines > 1 and dice.random() < 0.5:
        threads[-1] = f"{threads[0]}@1"  # looks like the name of an orphan of the first one
    words = Words(seed)
    for machine in machines:
        machine.start()
    is_over = threading.Event()
    habits = scenario.habits_of(dice)
    clients = [
        Client(number, machines, threads, recorder, words, habits, seed, is_over, operations)
        for number in range(CLIENTS)
    ]
    ledger = gone.Ledger(recorder, stale_s + (STALE_IN_STORM_S if scenario.archive == "s3" else 0.0))
    late = [
        gone.LateWriter(number, machines, ledger, recorder, seed, is_over, operations or habits.operations)
        for number in range(scenario.late_writers)
    ]
    copies = Copies(recorder, words, bool(scenario.archive))
    nemesis = Nemesis(machines, threads, recorder, seed, scenario.evils, directory / "bucket", copies)
    working = [*clients, *late]
    for client in working:
        client.start()
    nemesis.rage(lambda: not any(client.is_alive() for client in working))
    for client in working:
        if client.error is not None:
            raise client.error
    ending = Ending(machines, fresh, threads, recorder, words, stale_s + 2, copies)
    is_whole = scenario.promise != "set back"
    ending.record(is_whole=is_whole, ledger=ledger if late else None)
    if fresh is not None and is_whole:
        ending.look_at_bucket(lambda: _objects(scenario, directory, server, fresh))


def _machines(
    seed: int, scenario: Scenario, directory: Path, stack: ExitStack, dice: random.Random, server: str | None
) -> list[Machine]:
    """The machines of a history; with an archive, one more that nobody has used before the end."""
    flags: dict[str, Any] = {"log_level": "warning", "grace": "2", "sweep_interval": "1"}
    if scenario.archive:
        bucket = directory / "bucket"
        url = f"s3://{BUCKET}/{secrets.token_hex(8)}" if scenario.archive == "s3" else bucket.as_uri()
        flags |= {
            "archive": url, "archive_lease": str(scenario.lease_s), "archive_interval": dice.choice(("0.1", "0.3", "1"))
        }  # fmt: skip
    patience_s = dice.choice(scenario.patience_s)
    key, made = secrets.token_hex(32), []
    environment = SMALL if random.Random(f"{seed} segments").random() < SEGMENTS_SHARE else {}
    for name in ("A", "B", "C")[: scenario.machines] + (("fresh",) if scenario.archive else ()):
        weather: Weather | None = None
        if scenario.archive == "s3":
            assert server is not None
            weather = stack.enter_context(running_weather(server, random.Random(dice.random())))
            weather.put_bytes_s = scenario.put_bytes_s
        own = {"owner_id": name} if scenario.says_owner and scenario.archive else {}
        machine = Machine(name, directory, key, weather, patience_s, {**flags, **own}, environment)
        stack.callback(machine.close)
        made.append(machine)
    return made


def _objects(scenario: Scenario, directory: Path, server: str | None, machine: Machine) -> Objects:
    """What is in the bucket now."""
    if scenario.archive == "directory":
        return Directory(directory / "bucket")
    assert server is not None
    return Server(server, machine.archive_url.removeprefix("s3://"))


def _keep_logs(directory: Path, path: Path) -> None:
    for log in directory.glob("*/stderr.log"):
        shutil.copy(log, path.with_name(f"{path.stem}-{log.parent.name}.log"))


__all__ = ["play"]
