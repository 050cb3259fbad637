"""The danger: a save that was answered is gone after kill -9, or a retry of it is applied twice."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from tests import warm
from tests.crash.writers import LOG, entry
from tests.end_to_end.recorded import verify_everything

from stateward import Client
from stateward.testing import Daemon, run_daemon

WRITERS = (
    ("own", "own-0"),
    ("own", "own-1"),
    ("append", "appended"),
    ("append", "appended"),
    ("update", "updated"),
    ("update", "updated"),
)
PROGRESS_TIMEOUT_S = 30.0
# The longest delay between two attempts is one second. A busy machine may be late, but not each time.
BACK_WITHIN_S, BACK_AT_LAST_S = 2.5, 60.0


@dataclass
class Writer:
    """A client process and its diary."""

    kind: str
    thread: str
    name: str
    diary: Path
    process: warm.Process = field(repr=False)

    def read(self, event: str) -> list[dict[str, Any]]:
        """Its lines of one kind; a last line that is cut off does not count."""
        lines = self.diary.read_text().split("\n")[:-1] if self.diary.exists() else []
        return [line for line in map(json.loads, lines) if line["event"] == event]

    def size_bytes(self) -> int:
        return self.diary.stat().st_size if self.diary.exists() else 0


@contextmanager
def running_writers(daemon: Daemon, directory: Path) -> Iterator[list[Writer]]:
    """Starts all writers, and ends them when the block is left: each must then finish without a complaint."""
    writers = []
    try:
        for number, (kind, thread) in enumerate(WRITERS):
            name, diary = f"{kind}{number}", directory / f"{number}.jsonl"
            command = [sys.executable, "-m", "tests.crash.writers", kind, daemon.target, thread, name, str(diary)]
            process = warm.start(command, stdin=subprocess.PIPE, stderr=subprocess.PIPE)
            writers.append(Writer(kind, thread, name, diary, process))
        yield writers
        for writer in writers:
            _, errors = writer.process.communicate(timeout=60)
            assert writer.process.returncode == 0, errors[-2000:]
    finally:
        for writer in writers:
            writer.process.kill()
            writer.process.wait()


def wait_for_progress(writers: list[Writer]) -> None:
    """Returns when several processes have written to their diaries since the call."""
    before = [writer.size_bytes() for writer in writers]
    end = time.monotonic() + PROGRESS_TIMEOUT_S
    while sum(writer.size_bytes() > old for writer, old in zip(writers, before, strict=True)) < 3:
        assert time.monotonic() < end, "the writers do not get on"
        assert all(writer.process.poll() is None for writer in writers), "a writer gave up"
        time.sleep(0.005)


def kill_many_times(daemon: Daemon, writers: list[Writer], kills: int, dice: random.Random) -> None:
    """Kills and starts again. The moment is random: in the middle of a commit, an answer, a start, or of nothing."""
    for number in range(kills):
        if number % 5 != 4:  # every fifth kill comes without waiting: soon after the start
            wait_for_progress(writers)
        time.sleep(dice.uniform(0, 0.4))
        daemon.kill()
        daemon.start()
    wait_for_progress(writers)


def check_writer(client: Client, writer: Writer, tokens: list[str]) -> None:
    """Every answered save of a writer is at its version, with its digest and content, and in the newest state."""
    answered = writer.read("answered")
    assert answered, f"{writer.name} was never answered"
    thread, place = client.thread(writer.thread), {token: at for at, token in enumerate(tokens)}
    for line in answered:
        assert line["token"] in place, f"{line['token']} was answered as version {line['version']} and is gone"
    checkpoints = {each.version: each for each in thread.checkpoints.list(page_size=1000)}
    for line in answered:
        assert checkpoints[line["version"]].digest.hex() == line["digest"]
        # One token a version: version v holds exactly the first v of them.
        assert place[line["token"]] == line["version"] - 1
    for line in random.Random(1).sample(answered, min(10, len(answered))):
        state = thread.hydrate(at=line["version"])
        assert state.checkpoint is not None
        assert state.checkpoint.digest.hex() == line["digest"]
        assert state.logs[LOG][-1] == entry(line["token"])
        assert len(state.logs[LOG]) == line["version"]
        if writer.kind == "own":
            number = line["version"] - 1
            assert state.slots["last"] == line["token"]
            assert state.slots["table"][str(number % 400)] == line["token"]


def check_all(daemon: Daemon, writers: list[Writer]) -> dict[str, int]:
    """The promises, after all the kills. Returns what happened, in numbers."""
    with daemon.client() as client:
        for name in {thread for _, thread in WRITERS}:
            asked = {line["token"] for writer in writers if writer.thread == name for line in writer.read("asked")}
            thread = client.thread(name)
            state = thread.hydrate(must_exist=True)
            entries = list(state.logs[LOG])
            tokens = [each["token"] for each in entries]
            assert entries == [entry(token) for token in tokens], "an entry is not what was sent"
            repeated = {token: count for token, count in Counter(tokens).items() if count > 1}
            assert not repeated, "saves were applied twice"
            assert set(tokens) <= asked, "there are saves that nobody asked for"
            checkpoints = list(thread.checkpoints.list(page_size=1000))
            assert [each.version for each in checkpoints] == list(range(state.version, 0, -1))
            assert [each.parent_version for each in checkpoints] == list(range(state.version - 1, -1, -1))
            for writer in writers:
                if writer.thread == name:
                    check_writer(client, writer, tokens)
    records, findings = verify_everything(daemon)
    assert findings == []
    answered = [line for writer in writers for line in writer.read("answered")]
    return {"answered": len(answered), "replayed": sum(line["replayed"] for line in answered), "records": records}


def run_campaign(directory: Path, kills: int, seed: int) -> None:
    """Writers, kills, checks; then a last restart, and the checks once more."""
    data = directory / "data"
    with run_daemon(data_dir=data, log_level="warning") as daemon:
        with running_writers(daemon, directory) as writers:
            kill_many_times(daemon, writers, kills, random.Random(seed))
        numbers = check_all(daemon, writers)
        daemon.kill()
        daemon.start()
        assert check_all(daemon, writers) == numbers
        print(f"{kills} kills, seed {seed}: {numbers}")
        assert not [line for line in daemon.stderr.splitlines() if '"error"' in line or "Traceback" in line]


def test_clients_find_a_daemon_that_came_back() -> None:
    """A call that was under way when the daemon died is answered soon after its return, not at gRPC's leisure."""
    with run_daemon(log_level="warning") as daemon, daemon.client() as client:
        thread, took_s = client.thread("patient"), list[float]()
        for number in range(3):
            thread.append(LOG, number)
            daemon.kill()
            with ThreadPoolExecutor(1) as pool:
                answer = pool.submit(thread.append, LOG, number)
                time.sleep(0.1)  # so that it has met no daemon
                daemon.start()
                begun = time.monotonic()
                assert answer.result(timeout=BACK_AT_LAST_S).version == 2 * (number + 1)
                took_s.append(time.monotonic() - begun)
    assert min(took_s) < BACK_WITHIN_S


@pytest.mark.slow
def test_answered_saves_survive_kills_and_none_is_applied_twice(tmp_path: Path) -> None:
    """After twelve kills every answered save is there unaltered, exactly once, and versions have no hole."""
    run_campaign(tmp_path, kills=12, seed=20)


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("seed", range(5))
def test_a_long_campaign_of_kills(tmp_path: Path, seed: int) -> None:
    """The same with a hundred kills of each of five stores."""
    run_campaign(tmp_path, kills=100, seed=seed)
