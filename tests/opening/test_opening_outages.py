"""The danger: a daemon that is gone while programs use it, one that is started again and again, or that ends under a
forked child."""

from __future__ import annotations

import fcntl
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from tests.opening.conftest import daemon_of, end
from tests.opening.test_opening_races import PATIENCE_S, starts

import stateward
from stateward.opening import keeper, settings
from stateward.opening.places import find_place
from stateward.opening.record import DaemonRecord


def kill(data: Path) -> None:
    end(data / "LOCK")


async def test_a_killed_daemon_is_started_once_for_all_its_clients(home: Path) -> None:
    """The next call of each client, blocking and asyncio, succeeds, and one of them has started the daemon. If it
    cannot be started, the call says why, and it was tried once; when it runs again, all is well again."""
    data = home / "data"
    with stateward.open(data_dir=data, connect_timeout=PATIENCE_S, retry_timeout=PATIENCE_S) as one:
        one.thread("t").append("lines", "before")
        async with stateward.open_async(data_dir=data, connect_timeout=PATIENCE_S, retry_timeout=PATIENCE_S) as other:
            await other.thread("t").append("lines", "between")
            kill(data)
            await other.thread("t").append("lines", "after")
        one.thread("t").append("lines", "at last")
        assert list(one.thread("t").hydrate().logs["lines"]) == ["before", "between", "after", "at last"]
    assert starts(data) == 2


def test_a_start_that_fails_is_said_and_not_repeated(home: Path) -> None:
    """The key file is gone: the call fails with that reason after its patience, and one start was tried."""
    data = home / "data"
    key = find_place(data).key_file
    with stateward.open(data_dir=data, connect_timeout=PATIENCE_S, retry_timeout=15) as client:
        client.thread("t").append("lines", "before")
        key.rename(key.with_name("away"))
        kill(data)
        with pytest.raises(stateward.ServerUnavailable, match=f"{key}.* does not exist"):
            client.thread("t").hydrate()
        log = find_place(data).log_file
        assert log.read_text().count("does not exist") == 1


def test_a_start_that_failed_is_tried_once_in_an_outage(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Further calls of the same outage start nothing and have the reason; after a daemon has run, they start again."""
    asked = settings.Asked()
    one = keeper.Keeper(find_place(short), asked, idle_exit_s=60, may_start=True, patience_s=5, revive_s=5)
    live: list[DaemonRecord | None] = [None]
    starts = []

    def start(deadline: float) -> DaemonRecord:
        starts.append(deadline)
        raise stateward.CannotStart("the key is gone")

    monkeypatch.setattr(one, "_start", start)
    monkeypatch.setattr(keeper, "find_live", lambda _place: live[0])
    for runs, count in ((False, 1), (False, 1), (True, 1), (False, 2)):
        live[0] = DaemonRecord(1, "", "unix:///s", "", 60.0, "") if runs else None
        one._revive(os.getpid())
        assert (len(starts), one.trouble) == (count, "" if runs else "the key is gone")


def test_a_closed_client_starts_no_daemon(short: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last call failed, and it was closed before the thread looked for the daemon: nobody waits for a start."""
    one = keeper.Keeper(find_place(short), settings.Asked(), idle_exit_s=60, may_start=True, patience_s=5, revive_s=5)
    starts: list[float] = []
    monkeypatch.setattr(one, "_start", starts.append)
    one.release()
    one._revive(os.getpid())
    assert not starts


async def test_an_opening_that_is_used_twice_starts_its_daemon_again(home: Path) -> None:
    """What was closed once is open again, with all that belongs to it."""
    data = home / "data"
    opening = stateward.open_async(data_dir=data, connect_timeout=PATIENCE_S, retry_timeout=60)
    async with opening as client:
        await client.thread("t").append("lines", "first")
    async with opening as client:
        kill(data)
        await client.thread("t").append("lines", "second")
        assert list((await client.thread("t").hydrate()).logs["lines"]) == ["first", "second"]


CHILD = """
import os, sys, stateward
data = sys.argv[1]
client = stateward.open(data_dir=data, idle_exit=0.05, connect_timeout=200, retry_timeout=200)
client.thread("t").append("lines", "parent")
reading, writing = os.pipe()
idle = os.fork()
if not idle:
    os.close(writing)
    os.read(reading, 1)  # to the end, without a call
    os._exit(0)
child = os.fork()
if not child:
    os.close(writing)
    client.thread("t").append("lines", "child")
    print("ready", flush=True)
    os.read(0, 1)
    client.close()
    os._exit(0)
client.close()
os.waitpid(child, 0)
os.read(0, 1)
os.close(writing)
os.waitpid(idle, 0)
"""


def test_a_forked_child_keeps_the_daemon_by_itself(home: Path) -> None:
    """The child that calls has a lock of its own: the daemon lives when the parent has closed its client, and ends
    after the child. Another child, which never calls, keeps nothing."""
    data = home / "data"
    command = [sys.executable, "-c", CHILD, str(data)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1) as program:
        assert program.stdout is not None
        assert program.stdin is not None
        try:
            assert program.stdout.readline() == "ready\n"
            first = json.loads((data / "daemon.json").read_text())
            with (data / "users.lock").open() as users, pytest.raises(BlockingIOError):
                fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
            with (data / "LOCK").open() as lock:
                with pytest.raises(BlockingIOError):
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                assert json.loads((data / "daemon.json").read_text()) == first
                program.stdin.write("\n")
                program.stdin.flush()
                fcntl.flock(lock, fcntl.LOCK_EX)  # it has ended
                assert program.poll() is None
                program.stdin.write("\n")
                program.stdin.flush()
                assert program.wait(PATIENCE_S) == 0
        finally:
            program.kill()


def test_an_older_daemon_is_replaced_if_nobody_else_uses_it(home: Path) -> None:
    """After an upgrade: with another user the old daemon is used and named; alone, it is stopped and a new one
    started. Settings asked for later must be those of the first start."""
    data = home / "data"
    with stateward.open(data_dir=data, connect_timeout=PATIENCE_S) as client:
        client.thread("t").append("lines", "kept")
        path = data / "daemon.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "version": "0.0.1"}))
        old = daemon_of(data / "LOCK")
        with pytest.warns(stateward.OtherVersion, match=r"0\.0\.1"), stateward.open(data_dir=data) as other:
            assert len(other.thread("t").hydrate().logs["lines"]) == 1
        assert daemon_of(data / "LOCK") == old
    with stateward.open(data_dir=data, connect_timeout=PATIENCE_S) as client:
        assert list(client.thread("t").hydrate().logs["lines"]) == ["kept"]
        assert daemon_of(data / "LOCK") not in (old, None)
    with pytest.raises(stateward.OtherSettings, match=r"file:///elsewhere.*none"):
        stateward.open(data_dir=data, archive="/elsewhere")
    pid = daemon_of(data / "LOCK")
    assert pid is not None
    os.kill(pid, signal.SIGTERM)
    with (data / "LOCK").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    with pytest.raises(stateward.ServerUnavailable, match="no daemon runs"):
        stateward.open(data_dir=data, start=False)
    with pytest.raises(stateward.ServerUnavailable, match="no such directory"):
        stateward.open(data_dir=home / "none", start=False)
    assert not (home / "none").exists()
