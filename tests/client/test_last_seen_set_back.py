"""The danger: the store or the archive is replaced by an older copy, and the agent goes on from there; or a client says
so of what is allowed."""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.process import eventually, run_pair

from stateward import AsyncClient, Client, errors
from stateward._io import lastseen
from stateward._io.lastseen import LastSeen, Seen
from stateward.testing import Daemon, run_daemon


@pytest.fixture
def file(tmp_path: Path) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        path = tmp_path / "seen"
        patch.setenv("STATEWARD_LAST_SEEN", str(path))
        yield path


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    with run_daemon(tmp_path / "data") as running:
        yield running


def append(daemon: Daemon, count: int, name: str = "job") -> None:
    with daemon.client() as client:
        for number in range(count):
            client.thread(name).append("m", number)


def set_back(daemon: Daemon, meanwhile: Callable[[], None]) -> None:
    """Replaces the whole directory by the copy of before."""
    daemon.stop()
    copy = daemon.data_dir.with_name("copy")
    shutil.copytree(daemon.data_dir, copy)
    daemon.start()
    meanwhile()
    daemon.stop()
    shutil.rmtree(daemon.data_dir)
    copy.rename(daemon.data_dir)
    daemon.start()


CALLS: dict[str, Callable[[Any], Any]] = {
    "hydrate": lambda thread: thread.hydrate(),
    "append": lambda thread: thread.append("m", "late"),
    "info": lambda thread: thread.info(),
    "tag": lambda thread: thread.tags.set("good", at=1),
    "delete": lambda thread: thread.delete(),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_store_that_was_set_back_is_found_at_the_first_call(file: Path, daemon: Daemon, call: str) -> None:
    """By both halves of the client, whatever the call is, and at each call until somebody has looked."""
    append(daemon, 2)
    set_back(daemon, lambda: append(daemon, 3))

    async def call_async() -> None:
        async with AsyncClient(daemon.target) as client:
            await CALLS[call](client.thread("job"))

    def call_blocking() -> None:
        with daemon.client() as client:
            CALLS[call](client.thread("job"))

    for attempt in (lambda: asyncio.run(call_async()), call_blocking, call_blocking):
        with pytest.raises(errors.SetBack, match="lacks entry 5 of its journal") as found:
            attempt()
        assert (found.value.thread, found.value.sequence, found.value.newest_sequence) == ("job", 5, 2)
    append(daemon, 1, "other")  # other threads are not concerned
    file.unlink()
    with daemon.client() as client:
        assert client.thread("job").info().sequence == 2  # nothing was done


def test_another_history_of_the_same_length_is_found(file: Path, daemon: Daemon) -> None:
    """The digest counts, not the number."""
    append(daemon, 2)
    set_back(daemon, lambda: append(daemon, 1))
    file.rename(file.with_name("kept"))
    append(daemon, 3)  # by somebody who did not look
    file.with_name("kept").rename(file)
    with daemon.client() as client, pytest.raises(errors.SetBack, match="entry 3"):
        client.thread("job").hydrate()


def test_what_is_allowed_is_no_alarm(file: Path, daemon: Daemon) -> None:
    """Restarts, other writers, moved heads, other branches, forks, and pruned versions."""
    append(daemon, 3)
    kept = file.read_bytes()
    file.unlink()
    with daemon.client() as client:  # others write
        thread = client.thread("job")
        thread.append("m", "by another")
        side = thread.branch("side", at=2)
        side.save(side.hydrate())
        thread.branches.move("main", 1)
        thread.fork("copy")
    file.write_bytes(kept)
    daemon.stop()
    daemon.start()
    with daemon.client() as client:
        assert client.thread("job").hydrate().version == 1
        assert client.thread("copy").info().version
    before = seen(file)["job"]
    assert before.sequence > 3
    file.write_bytes(kept)
    with Client(daemon.target) as client:
        client.thread("job").prune(versions=[2, 3])
    file.write_bytes(kept)
    with daemon.client() as client:
        client.thread("job").append("m", "on")


def seen(file: Path) -> dict[str, Seen]:
    return {name: each for (_, name), each in lastseen._fold(file.read_bytes()).items()}


def test_a_deleted_thread_is_told_once(file: Path, daemon: Daemon) -> None:
    """As UidMismatch, whether the name has another thread now or none. Who deletes it itself is told nothing."""
    append(daemon, 2, "own")
    with daemon.client() as client:
        client.thread("own").delete()
        client.thread("own").append("m", 1)
    append(daemon, 1, "own")
    for again in (False, True):
        append(daemon, 2)
        kept = file.read_bytes()
        file.unlink()
        with daemon.client() as client:
            client.thread("job").delete()
            if again:
                client.thread("job").append("m", 1)
        file.write_bytes(kept)
        with daemon.client() as client:
            with pytest.raises(errors.UidMismatch, match="was deleted since"):
                client.thread("job").hydrate()
            client.thread("job").append("m", 1)


def test_a_save_that_a_takeover_lost_is_another_error(file: Path, tmp_path: Path) -> None:
    """It was not archived, so that is allowed: SaveLost, once. What was archived and is gone is SetBack."""
    with run_pair(tmp_path) as pair:
        with pair.first.client() as client:
            thread = client.thread("job")
            thread.append("m", 1, durability="archived")
            assert seen(file)["job"].epoch > 0
            pair.go_away()
            thread.append("m", 2)
        assert seen(file)["job"].archived == (1, seen(file)["job"].archived[1])  # type: ignore[index]
        pair.first.kill()
        pair.come_back()
        kept = file.read_bytes()
        with pair.second.client() as client:
            client.thread("job").archive.attach(take_over=True)
            with pytest.raises(errors.SaveLost, match="entry 2 of its journal") as lost:
                client.thread("job").append("m", 3)
            assert (lost.value.sequence, lost.value.newest_sequence) == (2, 1)
            client.thread("job").append("m", 3, durability="archived")
        told = json.loads(kept.splitlines()[-1])
        told["archived"] = [told["sequence"], told["digest"]]
        file.write_text(json.dumps(told) + "\n")
        with pair.second.client() as client, pytest.raises(errors.SetBack):
            client.thread("job").append("m", 4)


def test_a_reader_elsewhere_is_no_alarm(file: Path, tmp_path: Path) -> None:
    """A copy of another sidecar's thread may lack what the owner has not archived yet."""
    with run_pair(tmp_path) as pair:
        with pair.first.client() as client:
            client.thread("job").append("m", 1, durability="archived")
            pair.go_away()
            client.thread("job").append("m", 2)
            pair.come_back()
            newest = seen(file)["job"].sequence
        with pair.second.client() as client:
            client.thread("job").hydrate()
        eventually(lambda: hydrated(pair.second) == newest)


def hydrated(daemon: Daemon) -> int:
    with daemon.client() as client:
        return client.thread("job").hydrate().version


def test_processes_share_the_file(file: Path, daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest entry counts, whoever wrote it last; a file that has grown is written anew meanwhile."""
    monkeypatch.setattr(lastseen, "FILE_BYTES_MAX", 20_000)
    monkeypatch.setattr(lastseen, "LINES_MIN", 20)
    one, other = LastSeen(file), LastSeen(file)
    for number in range(1, 400):
        for each in (one, other):
            name = ("default", f"t{number % 7}")
            each._append(Seen("u", number, bytes(16)).line(name))
        one._append(Seen("u", 1, bytes(16)).line(("default", "t0")))  # late, and older
    assert file.stat().st_size < 40_000
    assert {name: each.sequence for name, each in seen(file).items()} == {
        f"t{number % 7}": number for number in range(393, 400)
    }


WRITER = """
import sys
from pathlib import Path
from stateward._io import lastseen
lastseen.FILE_BYTES_MAX, lastseen.LINES_MIN = 5000, 10
kept = lastseen.LastSeen(Path(sys.argv[1]))
print("ready", flush=True)
number = 0
while True:
    number += 1
    kept._append(lastseen.Seen("u", number, bytes(16)).line(("default", sys.argv[2])))
    print(number, flush=True)
"""


def test_a_kill_while_the_file_is_written(file: Path) -> None:
    """Two processes write and are killed: what they had noted is there, and the next one goes on."""
    for round_ in range(3):
        writers = [
            subprocess.Popen([sys.executable, "-c", WRITER, file, name], stdout=subprocess.PIPE, text=True)
            for name in ("a", "b")
        ]
        noted = {}
        for name, writer in zip("ab", writers, strict=True):
            assert writer.stdout is not None
            for _ in range(40 + 17 * round_):
                noted[name] = writer.stdout.readline()
        for name, writer in zip("ab", writers, strict=True):
            writer.send_signal(signal.SIGKILL)
            assert writer.stdout is not None
            rest = [line for line in writer.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
            noted[name] = [noted[name], *rest][-1]
            writer.wait()
            writer.stdout.close()
        found = seen(file)
        for name, line in noted.items():
            assert found[name].sequence >= int(line)
        file.write_bytes(file.read_bytes() + b'{"namespace":"default","thr')  # torn
        LastSeen(file)._append(Seen("u", 10**6 + round_, bytes(16)).line(("default", "c")))
        assert seen(file)["c"].sequence == 10**6 + round_
        file.unlink()


def test_a_file_that_cannot_be_written(file: Path, daemon: Daemon) -> None:
    """A client is not made then. If it cannot be written any more, what was saved is saved, and one warning says so."""
    file.mkdir()
    with pytest.raises(OSError, match="seen"):
        daemon.client()
    file.rmdir()
    with daemon.client() as client:
        client.thread("job").append("m", 1)
        file.unlink()
        file.mkdir()
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert client.thread("job").append("m", 2).version == 2
            assert client.thread("job").append("m", 3).version == 3
        assert ["cannot be written" in str(each.message) for each in told] == [True]


def test_it_costs_next_to_nothing(file: Path, daemon: Daemon) -> None:
    """One call more at the first call about a thread, and none afterwards; the file is for its user alone."""
    with daemon.client() as client:
        thread = client.thread("job")
        thread.append("m", 0)
        before = client.stats().entries
        began = time.perf_counter()
        for number in range(50):
            thread.append("m", number)
        took_s = time.perf_counter() - began
        assert client.stats().entries - before == 50
    assert took_s < 50
    assert file.stat().st_mode & 0o777 == 0o600
    assert file.stat().st_size < 50 * 400


def test_a_client_that_has_gone_keeps_no_file(tmp_path: Path) -> None:
    """A program that opens clients again and again does not run out of files."""
    before = len(list(Path("/proc/self/fd").iterdir()))
    for _ in range(20):
        LastSeen(tmp_path / "seen")
    assert len(list(Path("/proc/self/fd").iterdir())) < before + 20
