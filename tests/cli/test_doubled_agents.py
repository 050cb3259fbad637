"""The danger: two agents for one signal, none for another, or an agent that nobody ends."""

from __future__ import annotations

import contextlib
import errno
import os
import pty
import select
import shlex
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.archive.rig import eventually
from tests.cli.conftest import COMMAND, environment
from tests.processes import running
from tests.warmcommand import Popen

from stateward import Client
from stateward.cli import starter
from stateward.errors import ServerUnavailable, ThreadNotFound

# How often the command of another thread fails, while a command is expected not to be started again.
FAILURES = 4
# After this time a command that nobody started would never be started.
SOON_S = 60.0
# Makes the process the leader of a session with a terminal, as a login shell's command is.
WITH_HANGUPS = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL)"  # the tests may run under nohup
ON_A_TERMINAL = f"import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); {WITH_HANGUPS}"
WITHOUT_HANGUPS = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)"


class Log:
    """What commands wrote: a line for each start."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def lines(self) -> list[str]:
        return self.path.read_text().splitlines() if self.path.exists() else []

    def count(self, line: str) -> int:
        return self.lines().count(line)


@pytest.fixture
def log(tmp_path: Path) -> Log:
    return Log(tmp_path / "log")


@pytest.fixture
def supervise(daemon, namespace) -> Iterator[Callable[..., subprocess.Popen[bytes]]]:
    """Starts `stateward run`, and ends it after the test."""
    with contextlib.ExitStack() as stack:

        def start(command: str, *options: str, before: tuple[str, ...] = (), **more: object) -> subprocess.Popen[bytes]:
            arguments = ["--target", daemon.target, "-n", namespace, "run", "--pause", "0.05", "--poll", "0.1"]
            process = stack.enter_context(
                running(
                    [*before, *COMMAND, *arguments, *options, "--on-signal", command],
                    begin=Popen,
                    env=environment(),
                    **more,
                )
            )
            stack.callback(process.send_signal, signal.SIGTERM)
            return process

        yield start


def wake(client: Client, *names: str) -> None:
    for name in names:
        client.thread(name).append("l", 1)
        client.thread(name).send("go")


def acknowledge(client: Client, name: str, count: int) -> None:
    thread = client.thread(name)
    thread.save(thread.hydrate(), ack=thread.signals()[:count])


def job(log: Log) -> str:
    """A command that starts the agent elsewhere and ends. For thread "clock" it fails, and is started again."""
    return f"echo $STATEWARD_THREAD >> {log.path}; test $STATEWARD_THREAD != clock"


def after(code: str) -> tuple[str, ...]:
    """Begins a command in a process that has run some code."""
    return sys.executable, "-c", f"{code}\nimport os, sys; os.execv(sys.argv[1], sys.argv[1:])"


def let_time_pass(client: Client, log: Log) -> None:
    client.thread("clock").send("go")  # its pauses begin anew
    seen = log.count("clock")
    eventually(lambda: log.count("clock") >= seen + FAILURES)


def test_an_agent_that_is_started_elsewhere(supervise, client, log):
    """A command that ended with 0 is not started again for the same signal, while one that fails is; another signal
    starts it at once."""
    wake(client, "job", "clock")
    supervise(job(log))
    let_time_pass(client, log)
    assert log.count("job") == 1
    client.thread("job").send("another")
    eventually(lambda: log.count("job") == 2)


def test_an_agent_that_never_comes_up(supervise, client, log):
    """If nothing is acknowledged for long, the command is started again."""
    wake(client, "job")
    supervise(job(log), "--ack-within", "0.3")
    eventually(lambda: log.count("job") >= 3)


def test_one_agent_at_a_time_elsewhere(supervise, client, log):
    """With --detached a signal that comes while an agent works starts no second one. It starts the next one as soon as
    the first has acknowledged what it was started for."""
    wake(client, "job", "clock")
    supervise(job(log), "--detached")
    eventually(lambda: log.count("job") == 1)
    client.thread("job").send("another")
    client.thread("job").send("a third")
    let_time_pass(client, log)
    assert log.count("job") == 1
    acknowledge(client, "job", 1)
    eventually(lambda: log.count("job") == 2)
    acknowledge(client, "job", 1)  # one of two: this agent is at work
    let_time_pass(client, log)
    assert log.count("job") == 2


def test_places_for_agents_elsewhere(supervise, client, log):
    """With --detached an agent takes one of the --at-most places until it has acknowledged its signals."""
    wake(client, "a", "b", "clock")
    supervise(job(log), "--detached", "--at-most", "1", "--thread", "a", "--thread", "b")
    supervise(job(log), "--thread", "clock")
    eventually(lambda: log.count("a") + log.count("b"))
    let_time_pass(client, log)
    assert log.count("a") + log.count("b") == 1
    acknowledge(client, "a" if log.count("a") else "b", 1)
    eventually(lambda: log.count("a") == log.count("b") == 1)


def test_once_waits_for_the_acknowledgement(supervise, client, log):
    """With --once the command ends when the agent elsewhere has acknowledged its signals."""
    wake(client, "job")
    process = supervise(job(log), "--once")
    eventually(lambda: log.count("job") == 1)
    acknowledge(client, "job", 1)
    assert process.wait(30) == 0
    assert log.count("job") == 1


def at_work(log: Log, done: Path) -> str:
    """A command that works until a file is there, and tells of SIGTERM."""
    return (
        f"trap 'echo told to end >> {log.path}; exit 1' TERM; echo began >> {log.path}; "
        f"while ! test -e {done}; do sleep 0.05; done; echo ended >> {log.path}"
    )


def test_the_terminal_is_closed(supervise, client, log, tmp_path):
    """When the terminal is closed, the agents end, nobody starts others, and the command ends with them."""
    wake(client, "t")
    terminal, inside = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), inside)
    process = supervise(at_work(log, tmp_path / "done"), before=after(ON_A_TERMINAL), start_new_session=True, **streams)
    os.close(inside)
    eventually(lambda: log.count("began") == 1)
    os.close(terminal)
    wake(client, "other")
    (tmp_path / "done").touch()
    assert process.wait(30) == 0
    assert log.lines() == ["began", "ended"]


def test_an_end_that_cannot_wait(supervise, client, log, tmp_path):
    """SIGTERM after SIGHUP reaches the agents at once."""
    wake(client, "t")
    process = supervise(at_work(log, tmp_path / "done"), before=after(WITH_HANGUPS))
    eventually(lambda: log.count("began") == 1)
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0
    assert log.lines() == ["began", "told to end"]


def test_a_hangup_that_is_ignored(supervise, client, log):
    """Under nohup the end of the terminal changes nothing."""
    process = supervise(job(log), before=after(WITHOUT_HANGUPS))
    wake(client, "first")
    eventually(lambda: log.count("first") == 1)
    process.send_signal(signal.SIGHUP)
    wake(client, "second")
    eventually(lambda: log.count("second") == 1)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 0


def test_an_agent_that_reads_the_terminal(supervise, client, log):
    """An agent has no terminal: it reads the end of its input, and is not stopped."""
    wake(client, "t")
    terminal, inside = pty.openpty()
    reads = "import sys; print(repr(sys.stdin.read()))\ntry: open('/dev/tty')\nexcept OSError: print('no terminal')"
    command = f"{shlex.join([sys.executable, '-c', reads])} >> {log.path}"
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), inside)
    try:
        supervise(command, before=after(ON_A_TERMINAL), start_new_session=True, **streams)
        os.close(inside)
        eventually(lambda: log.lines() == ["''", "no terminal"])
        while select.select([terminal], [], [], 0)[0]:
            os.read(terminal, 1 << 16)
    finally:
        os.close(terminal)


def no_process(*_, **__):
    raise BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN))


def no_thread(*_, **__):
    raise RuntimeError("can't start new thread")


@pytest.mark.parametrize("lacks", ["processes", "threads"])
def test_no_room_for_a_process(stateward, client, monkeypatch, log, lacks):
    """If the machine has no room for one more process or thread, the command waits: no agent is lost, and none ends."""
    real, failures = (subprocess.Popen, threading.Thread), []

    class Scarce:
        def __call__(self, *arguments, **options):
            wanted = options.get("target")
            if (lacks == "processes" or getattr(wanted, "__name__", "") == "_await") and len(failures) < 2:
                failures.append(lacks)
                if lacks == "processes":
                    no_process()
                made = real[1](*arguments, **options)
                made.start = no_thread
                return made
            return real[lacks == "threads"](*arguments, **options)

        def __getattr__(self, name):
            return getattr(real[lacks == "threads"], name)

        def __class_getitem__(cls, item):
            return cls

        def __getitem__(self, item):
            return self

    place = starter.subprocess if lacks == "processes" else starter.threading
    monkeypatch.setattr(place, "Popen" if lacks == "processes" else "Thread", Scarce())
    wake(client, "t")
    agent = (
        "import os; from stateward import Client; c = Client(namespace=os.environ['STATEWARD_NAMESPACE']); "
        "t = c.thread(os.environ['STATEWARD_THREAD']); s = t.hydrate(); t.save(s, ack=s.signals); c.close()"
    )
    answer = stateward("run", "--once", "--pause", "0.05", "--on-signal", shlex.join([sys.executable, "-c", agent]))
    assert (answer.code, len(failures)) == (0, 2), answer.err
    assert answer.err.count("starts again in") == 2
    assert client.thread("t").signals() == []


def test_a_look_that_fails(stateward, client, monkeypatch):
    """A daemon that does not answer one look at a thread does not lose the signal, though the thread asks nothing."""
    wake(client, "t")
    real, failures = starter.Starter._waiting, []

    def waiting(self, name):
        if not failures:
            failures.append(name)
            raise ServerUnavailable("away", reason="", code="UNAVAILABLE")
        return real(self, name)

    monkeypatch.setattr(starter.Starter, "_waiting", waiting)
    agent = shlex.join([*COMMAND, "-n", client.namespace, "rm", "t", "--yes"])
    ends = threading.Timer(SOON_S, os.kill, (os.getpid(), signal.SIGTERM))
    ends.start()
    try:
        answer = stateward("run", "--once", "--poll", "0.1", "--on-signal", agent)
    finally:
        ends.cancel()
    assert (answer.code, failures) == (0, ["t"])
    assert "trying again" in answer.err
    with pytest.raises(ThreadNotFound):
        client.thread("t").info()
