"""The danger: a frame of a writer that is lost, written twice, or written by who is no writer any more."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests import warm

from stateward import Client, LeaseHeld, VersionMismatch, WriterAborted
from stateward.testing import Daemon, run_daemon

Opener = Callable[..., Any]


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One that may be killed, as long as it is started again."""
    with run_daemon() as running:
        yield running


@pytest.fixture
def thread(daemon: Daemon, open_client: Opener, name: str) -> Any:
    return open_client(daemon.target, holder=f"me-{name}").thread(name)


@pytest.fixture
def other(daemon: Daemon, name: str) -> Iterator[Any]:
    """The same thread, through another client under another name."""
    with daemon.client(holder=f"other-{name}") as client:
        yield client.thread(name)


def send(writer: Any, state: Any, numbers: range) -> list[Any]:
    """Appends a number a version, each sent before the one before it is answered."""
    handles = []
    for number in numbers:
        state.logs["steps"].append(number)
        state.slots["last"] = number
        handles.append(writer.send(state, step=number))
    return handles


def steps(thread: Any) -> list[int]:
    return list(thread.hydrate().logs["steps"])


def test_a_state_goes_on_before_its_versions_are_answered(thread: Any) -> None:
    """Every sent version is what the state was at that moment, in order, whatever was changed since."""
    with thread.writer() as writer:
        state = thread.hydrate()
        state.slots["plan"] = {"done": []}
        writer.save(state)
        handles = []
        for number in range(300):
            state.slots["plan"]["done"].append(number)  # in place
            handles.append(writer.send(state, step=number))
        writer.flush()
        assert [handle.result().version for handle in handles] == list(range(2, 302))
        assert (state.version, state.digest) == (301, thread.info().digest)
    assert thread.hydrate(at=150).slots["plan"] == {"done": list(range(149))}
    assert thread.info().lease is None


def test_versions_of_other_branches_are_counted(thread: Any) -> None:
    """Branches share their numbers: a writer on one that lags behind tells its versions right."""
    state = thread.hydrate()
    thread.save(state)
    aside = thread.branch("aside", at=1)
    side = thread.hydrate(at=1)
    for _ in range(3):
        aside.save(side)
    with thread.writer() as writer:
        state = thread.hydrate()
        handles = send(writer, state, range(5))
        writer.flush()
        assert [handle.result().version for handle in handles] == [5, 6, 7, 8, 9]


def test_versions_of_another_handle_are_counted(thread: Any, daemon: Daemon, open_client: Opener) -> None:
    """A save of another handle under the writer's lease takes a number, and no frame after it is refused for that."""
    state = thread.hydrate()
    thread.save(state)
    aside = open_client(daemon.target).thread(thread.name, branch="aside")
    thread.branch("aside", at=1).save(thread.hydrate(at=1))
    side = aside.hydrate()
    with thread.writer() as writer:
        send(writer, state, range(2))
        writer.flush()
        assert aside.save(side, lease=writer).version == 5
        handles = send(writer, state, range(3))
        writer.flush()
        assert [handle.result().version for handle in handles] == [6, 7, 8]


def test_versions_are_told_before_the_first_answer(thread: Any) -> None:
    """A state that was sent has the number that its version will have, from the first frame on and after a reset."""
    state = thread.hydrate()
    thread.save(state)
    aside, side = thread.branch("aside", at=1), thread.hydrate(at=1)
    aside.save(side)
    aside.save(side)
    with thread.writer() as writer:
        state = thread.hydrate()
        told = []
        for number in range(3):
            state.slots["n"] = number
            writer.send(state)
            told.append(state.version)
        writer.flush()
        assert told == [4, 5, 6]
        stale = thread.hydrate(at=4)
        writer.send(stale)
        with pytest.raises(VersionMismatch):
            writer.flush()
        state = writer.reset()
        state.slots["n"] = 9
        writer.send(state)
        assert state.version == 7
        writer.flush()


def test_nothing_lands_after_a_refused_version(thread: Any, other: Any) -> None:
    """The refused one says why, those after it are aborted, their state fits no version, and reset goes on."""
    with thread.writer() as writer:
        state = thread.hydrate()
        writer.save(state)
        between = other.hydrate()
        between.slots["between"] = True
        other.save(between, lease=SimpleNamespace(token=writer.token))  # another process that shares the token
        handles = send(writer, state, range(3))
        with pytest.raises(VersionMismatch):
            handles[0].result()
        for handle in handles[1:]:
            with pytest.raises(WriterAborted):
                handle.result()
        for refused in (lambda: writer.send(state), writer.flush):
            with pytest.raises(VersionMismatch):
                refused()
        good = writer.reset()
        assert good.slots["between"] is True
        assert "steps" not in good.logs
        send(writer, good, range(10, 12))
        writer.flush()
        assert good.version == state.version  # by chance: the old one has a version of that number in its past
        with pytest.raises(VersionMismatch):
            writer.save(state)
    assert steps(thread) == [10, 11]


def test_a_refused_save_leaves_state_and_writer_as_they_were(thread: Any, other: Any) -> None:
    """As thread.save: the change stays a change of the state, and the writer goes on."""
    with thread.writer() as writer:
        state = thread.hydrate()
        writer.save(state)
        other.save(other.hydrate(), lease=writer)
        state.logs["steps"].append(1)
        with pytest.raises(VersionMismatch):
            writer.save(state)
        assert (state.version, state.saving) == (1, False)
        assert writer.save(thread.hydrate()).version == 3


def test_a_refusal_that_nobody_asked_for_is_raised_at_the_end(thread: Any, other: Any) -> None:
    """Leaving the block waits for what was sent and says what was refused, once."""
    with pytest.raises(VersionMismatch), thread.writer() as writer:  # noqa: PT012  the block is what ends
        state = thread.hydrate()
        writer.save(state)
        other.save(other.hydrate(), lease=writer)
        send(writer, state, range(2))
    assert thread.info().lease is None


def test_a_daemon_killed_among_frames_loses_none(thread: Any, daemon: Daemon) -> None:
    """What was not answered is sent again: every step once, in order, under the same token."""
    with thread.writer() as writer:
        state, token, handles = thread.hydrate(), writer.token, []
        for begin in range(0, 240, 60):
            handles += send(writer, state, range(begin, begin + 60))
            if begin % 120:
                daemon.kill()
                daemon.start()
        writer.flush()
        assert [handle.result().version for handle in handles] == list(range(1, 241))
        assert writer.token == token
    assert steps(thread) == list(range(240))


def test_a_lease_taken_while_the_stream_was_broken(thread: Any, other: Any, daemon: Daemon) -> None:
    """Frames that were written before are answered, all others are LeaseHeld, and nothing of them lands."""
    with pytest.raises(LeaseHeld), thread.writer() as writer:  # noqa: PT012  the block is what ends
        state = thread.hydrate()
        written = [writer.save(state, step=-1)]
        handles = send(writer, state, range(20))
        while other.info().version < 21:
            pass  # written, and the answers not read
        daemon.kill()
        lost = send(writer, state, range(20, 25))
        daemon.start()
        with other.writer(take_over=True) as taker:
            taken = other.hydrate()
            taken.slots["by"] = "other"
            taker.save(taken)
        written += [handle.result() for handle in handles]
        assert [each.version for each in written] == list(range(1, 22))
        for handle in lost:
            with pytest.raises(LeaseHeld):
                handle.result()
        with pytest.raises(LeaseHeld):
            writer.reset()
        raise lost[0].error  # as an agent would end
    assert steps(other) == list(range(20))
    assert other.info().version == 22


def test_a_taken_lease_ends_a_living_stream(thread: Any, other: Any) -> None:
    """Who was replaced hears of it at its next version."""
    with pytest.raises(LeaseHeld), thread.writer() as writer:  # noqa: PT012  the block is what ends
        state = thread.hydrate()
        writer.save(state)
        with other.writer(take_over=True) as taker:
            assert taker.token > writer.token
        writer.save(state)


def test_a_large_value_goes_as_a_blob(thread: Any) -> None:
    """Values above the threshold are written before the frame that names them."""
    with thread.writer() as writer:
        state = thread.hydrate()
        for number in range(3):
            state.slots["image"] = bytes([number]) * 3_000_000
            writer.send(state)
        writer.flush()
    assert thread.hydrate(at=2).slots["image"] == b"\1" * 3_000_000


def test_a_lease_carries_the_saves_of_its_handle(thread: Any, other: Any) -> None:
    """While it is held, saves of others are LeaseHeld; with its token they pass; released, everybody may save."""
    with thread.lease(term=5) as lease:
        state = thread.hydrate()
        thread.save(state)
        thread.branch("aside", at=1).save(thread.hydrate(at=1))
        found = other.info().lease
        assert (found.token, found.holder) == (lease.token, thread.info().lease.holder)
        mine = other.hydrate()
        with pytest.raises(LeaseHeld):
            other.save(mine)
        other.save(mine, lease=lease)
        assert lease.check().token == lease.token
    other.save(mine)
    assert other.info().lease is None


def test_a_lock_that_was_lost_says_so(daemon: Daemon, open_client: Opener, name: str) -> None:
    """check() raises LeaseHeld once somebody else has taken it; the token of the taker is larger."""
    client = open_client(daemon.target, holder="a")
    with client.lock(name) as lock:
        lock.check()
        with pytest.raises(LeaseHeld), client.lock(name, wait=0.01, holder="b"):
            pass
        with client.lock(name, take_over=True, holder="b") as taken:
            assert taken.token > lock.token
            with pytest.raises(LeaseHeld):
                lock.check()
    with client.lock(name, holder="c"):
        pass


DIES = """
import os, sys
from stateward import Client
thread = Client(sys.argv[1], holder="worker").thread(sys.argv[2])
writer, state = thread.writer(term=600).__enter__(), thread.hydrate()
writer.save(state)
for number in range(50):
    state.logs["steps"].append(number)
    writer.send(state)
os.kill(os.getpid(), 9)
"""


def die(daemon: Daemon, name: str) -> None:
    """As a process that is killed among its frames."""
    warm.run([sys.executable, "-c", DIES, daemon.target, name], timeout=30)


def test_a_restarted_agent_need_not_wait(daemon: Daemon, open_client: Opener, name: str) -> None:
    """A process that was killed with a lease gets it back at once under the same name, and nobody else does."""
    die(daemon, name)
    with pytest.raises(LeaseHeld), open_client(daemon.target, holder="stranger").thread(name).writer(wait=0.2):
        pass
    thread = open_client(daemon.target, holder="worker").thread(name)
    with thread.writer() as writer:
        writer.save(thread.hydrate())


@pytest.mark.soak
def test_a_death_never_looks_like_an_end(daemon: Daemon, name: str, open_client: Opener) -> None:
    """A stream that breaks looks for a moment like one that was ended (about one in ten): its lease lives on."""
    for number in range(60):
        die(daemon, f"{name}-{number}")
        thread = open_client(daemon.target).thread(f"{name}-{number}")
        with pytest.raises(LeaseHeld), thread.writer(wait=0.2):
            pass


ENDS = """
import os, sys
from stateward import Client
client = Client(sys.argv[1])
thread = client.thread(sys.argv[2])
writer = thread.writer().__enter__()
state = thread.hydrate()
writer.save(state)
child = os.fork()
if child == 0:
    try:
        writer.send(state)
    except RuntimeError as error:
        assert "parent" in str(error), error
        writer.close()  # nothing
        other = client.thread(sys.argv[2] + "-child")
        with other.writer() as own:
            own.save(other.hydrate())
        os._exit(0)
    os._exit(1)
assert os.waitpid(child, 0)[1] == 0
state.slots["after"] = "fork"
writer.save(state)
"""


def test_a_process_ends_with_its_writer_open(daemon: Daemon, name: str) -> None:
    """Nobody waits for a stream that was left open; a forked child cannot use it, and does not harm it."""
    command = [sys.executable, "-c", ENDS, daemon.target, name]
    done = warm.run(command, timeout=30)
    assert done.returncode == 0, done.stderr
    with daemon.client() as client:
        assert client.thread(name).hydrate().slots["after"] == "fork"
        assert client.thread(f"{name}-child").info().version == 1


COUNTS = """
import sys
from pathlib import Path
from stateward import Client
target, name, file, times = sys.argv[1], sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
with Client(target) as client:
    for _ in range(times):
        with client.lock(name, wait=30) as lock:
            count, token = map(int, file.read_text().split())
            assert lock.token > token, (lock.token, token)
            file.write_text("")  # whoever reads now finds nothing
            file.write_text(f"{count + 1} {lock.token}")
"""


def test_holders_of_a_lock_never_overlap(daemon: Daemon, tmp_path: Path, name: str) -> None:
    """4 processes and 16 threads count in one file: nothing is lost, and every token is larger than the one before."""
    file = tmp_path / "count"
    file.write_text("0 0")
    command = [sys.executable, "-c", COUNTS, daemon.target, name, str(file), "3"]
    children = [warm.start(command, stderr=subprocess.PIPE) for _ in range(4)]
    failures: list[BaseException] = []
    with Client(daemon.target) as client:

        def count() -> None:
            try:
                with client.lock(name, wait=30) as lock:
                    before, token = map(int, file.read_text().split())
                    assert lock.token > token
                    file.write_text("")
                    file.write_text(f"{before + 1} {lock.token}")
            except BaseException as failure:  # noqa: BLE001  told below
                failures.append(failure)

        threads = [threading.Thread(target=count) for _ in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    for child in children:
        said = child.communicate(timeout=60)[1]
        assert child.returncode == 0, said
    assert not failures
    assert file.read_text().split()[0] == "28"


def test_a_writer_takes_a_state(thread: Any) -> None:
    """What is no State is refused by name, and the writer works on."""
    with thread.writer() as writer:
        with pytest.raises(TypeError, match="a save takes the State"):
            writer.send(None)
        assert writer.save(thread.hydrate()).version == 1
