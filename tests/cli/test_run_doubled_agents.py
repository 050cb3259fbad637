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
from tests.cli.conftest import COMMAND, environment
from tests.daemon.process import eventually
from tests.processes import running
from tests.warmcommand import Popen

from stateward import Client
from stateward.cli.commands import processes, starter
from stateward.errors import Corrupt, PermissionDenied, ServerUnavailable, ThreadNotFound

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
        client.thread(name).signals.send("go")


def acknowledge(client: Client, name: str, count: int) -> None:
    thread = client.thread(name)
    thread.save(thread.hydrate(), ack=thread.signals.list()[:count])


def job(log: Log) -> str:
    """A command that starts the agent elsewhere and ends. For thread "clock" it fails, and is started again."""
    return f"echo $STATEWARD_THREAD >> {log.path}; test $STATEWARD_THREAD != clock"


def after(code: str) -> tuple[str, ...]:
    """Begins a command in a process that has run some code."""
    return sys.executable, "-c", f"{code}\nimport os, sys; os.execv(sys.argv[1], sys.argv[1:])"


def let_time_pass(client: Client, log: Log) -> None:
    client.thread("clock").signals.send("go")  # its pauses begin anew
    seen = log.count("clock")
    eventually(lambda: log.count("clock") >= seen + FAILURES)


def test_an_agent_that_is_started_elsewhere(supervise, client, log):
    """A command that ended with 0 is not started again for the same signal, while one that fails is; another signal
    starts it at once."""
    wake(client, "job", "clock")
    supervise(job(log))
    let_time_pass(client, log)
    assert log.count("job") == 1
    client.thread("job").signals.send("another")
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
    client.thread("job").signals.send("another")
    client.thread("job").signals.send("a third")
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
    assert client.thread("t").signals.list() == []


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


def removes(client: Client, name: str = "t") -> str:
    """A command after which no signals wait: it removes the thread."""
    return shlex.join([*COMMAND, "-n", client.namespace, "rm", name, "--yes"])


@contextlib.contextmanager
def ended_when(happens: Callable[[], object]) -> Iterator[None]:
    """Sends SIGTERM to this process, which runs the command, when something has happened."""
    watcher = threading.Thread(target=lambda: (eventually(happens), os.kill(os.getpid(), signal.SIGTERM)))
    watcher.start()
    try:
        yield
    finally:
        watcher.join()


def behind_a_shell(log: Log, on_term: str) -> str:
    """A command whose shell ends at SIGTERM, while its agent does something else."""
    agent = f"trap '{on_term}' TERM; echo $$ >> {log.path}; while :; do sleep 0.05; done"
    return f"{shlex.join(['sh', '-c', agent])}; true"


def test_an_agent_that_saves_at_the_end(stateward, client, log):
    """The command ends after the agent, and not after the shell that started the agent: else the next one would start a
    second agent beside it."""
    wake(client, "t")
    with ended_when(log.lines):
        command = behind_a_shell(log, f"sleep 1; echo saved >> {log.path}; exit 0")
        assert stateward("run", "--on-signal", command).code == 0
    assert log.lines()[1:] == ["saved"]


def test_an_agent_that_ignores_the_end(stateward, client, log, monkeypatch):
    """An agent that does not end is killed, also if its shell has ended."""
    monkeypatch.setattr(starter, "GRACE_S", 0.3)
    wake(client, "t")
    with ended_when(log.lines):
        assert stateward("run", "--on-signal", behind_a_shell(log, "")).code == 0
    assert is_dead(int(log.lines()[0]))


def is_dead(number: int) -> bool:
    stat = Path(f"/proc/{number}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] in "ZX"


def test_an_agent_of_another_user(stateward, client, log, monkeypatch):
    """A process that may not be signalled is named, and the others are ended all the same."""
    monkeypatch.setattr(starter, "GRACE_S", 0.1)
    monkeypatch.setattr(starter, "KILLED_S", 0.1)
    wake(client, "ours", "theirs")
    real, denied = os.killpg, set[int]()

    def killpg(group: int, number: int) -> None:
        denied.add(group) if not denied else None
        if group in denied:
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        real(group, number)

    monkeypatch.setattr(processes.os, "killpg", killpg)
    with ended_when(lambda: len(log.lines()) == 2):
        answer = stateward("run", "--on-signal", f"echo $$ >> {log.path}; exec sleep 5")
    (theirs,) = denied
    assert (answer.code, answer.err.count("could not be ended")) == (0, 1), answer.err
    (ours,) = set(map(int, log.lines())) - denied
    assert is_dead(ours)
    real(theirs, signal.SIGKILL)


def test_an_end_behind_many_signals(stateward, client, monkeypatch):
    """SIGTERM does not wait until all threads with signals were looked at, each of which may take seconds."""
    names = [f"t{number}" for number in range(12)]
    wake(client, *names)
    looked = []

    def waiting(self, name):
        looked.append(name)
        eventually(lambda: self._happened.qsize() >= len(names) - 1)
        os.kill(os.getpid(), signal.SIGTERM)
        return frozenset()

    monkeypatch.setattr(starter.Starter, "_waiting", waiting)
    assert stateward("run", "--on-signal", "true").code == 0
    assert len(looked) == 1


def test_thousands_of_signals_at_once():
    """Signals for a thread that waits for a look already take no room and no second look."""
    chosen, pauses = starter.Chosen(frozenset(), {}), starter.Pauses(poll_s=1, first_s=1, acknowledged_s=1)
    made = starter.Starter(None, "true", chosen, pauses, at_most=1, is_once=False, is_detached=False)
    looked = []
    made._look = lambda name: (looked.append(name), made._announce(name) if len(looked) == 1 else None)
    for _ in range(10_000):
        made._announce("t")
    while made._happened.qsize():
        made._handle_until(0)
    assert looked == ["t", "t"]  # a signal that came during the first look has a look of its own


@pytest.mark.parametrize(
    "error",
    [Corrupt("a thread is damaged", reason="CORRUPT", code="DATA_LOSS"), RuntimeError("can't start new thread")],
    ids=["damage", "no room"],
)
def test_a_watch_that_fails(stateward, client, monkeypatch, error):
    """One damaged thread, or a moment without room for a thread, does not end the watch over the others."""
    monkeypatch.setattr(starter, "RECONNECT_S", 0.05)
    wake(client, "t")
    real, failures = Client.watch_signals, []

    def watch_signals(self, **options):
        if not failures:
            failures.append(error)
            raise error
        return real(self, **options)

    monkeypatch.setattr(Client, "watch_signals", watch_signals)
    ends = threading.Timer(SOON_S, os.kill, (os.getpid(), signal.SIGTERM))
    ends.start()
    try:
        answer = stateward("run", "--once", "--on-signal", removes(client))
    finally:
        ends.cancel()
    assert (answer.code, failures) == (0, [error])
    assert f"{error}; signals are watched again" in answer.err
    with pytest.raises(ThreadNotFound):
        client.thread("t").info()


def test_a_watch_that_is_not_allowed(stateward, client, monkeypatch):
    """An error that no later attempt would mend ends the command."""
    error = PermissionDenied("no", reason="PERMISSION_DENIED", code="PERMISSION_DENIED")

    def refused(*_, **__):
        raise error

    monkeypatch.setattr(Client, "watch_signals", refused)
    answer = stateward("run", "--on-signal", "true")
    assert (answer.code, answer.error) == (1, "no")


def test_once_starts_one(supervise, client, log, tmp_path):
    """With --once no second agent is started, which would be told to end in the middle of its work."""
    wake(client, "a", "b")
    done = tmp_path / "done"
    command = (
        f"trap 'echo told to end >> {log.path}; exit 1' TERM; echo began >> {log.path}; "
        f"while ! test -e {done}; do sleep 0.05; done; {shlex.join([*COMMAND, '-n', client.namespace])} "
        "rm $STATEWARD_THREAD --yes"
    )
    process = supervise(command, "--once")
    eventually(lambda: log.count("began"))
    wake(client, "a", "b")  # looks at both once more
    done.touch()
    assert process.wait(30) == 0
    assert log.lines() == ["began"]


def test_exit_codes_that_nobody_keeps(supervise, client, log):
    """A parent that ignores SIGCHLD does not turn failures into successes, after which the command would wait."""
    wake(client, "t")
    supervise(
        f"echo began >> {log.path}; exit 1",
        before=after("import signal; signal.signal(signal.SIGCHLD, signal.SIG_IGN)"),
    )
    eventually(lambda: log.count("began") >= 2)


def test_a_name_that_the_locale_cannot_write(stateward, client, monkeypatch):
    """A thread whose name cannot be written in this locale is named, and ends no other agent."""
    wake(client, "t")
    real, failures = subprocess.Popen, []

    def popen(*arguments, **options):
        if not failures:
            failures.append("é".encode("latin-1").decode("utf-8", "surrogateescape"))
            failures[0].encode("ascii")
        return real(*arguments, **options)

    monkeypatch.setattr(starter.subprocess, "Popen", popen)
    answer = stateward("run", "--once", "--pause", "0.05", "--on-signal", removes(client))
    assert answer.code == 0, answer.err
    assert "t: 'ascii' codec can't encode" in answer.err


def test_an_end_by_the_keyboard(supervise, client, log, tmp_path):
    r"""Ctrl-\ ends the agents, too: it must not leave them to nobody."""
    wake(client, "t")
    process = supervise(at_work(log, tmp_path / "done"))
    eventually(lambda: log.count("began") == 1)
    process.send_signal(signal.SIGQUIT)
    assert process.wait(30) == 0
    assert log.lines() == ["began", "told to end"]


@pytest.mark.parametrize("option", ["--poll", "--pause", "--ack-within"])
@pytest.mark.parametrize("value", ["nan", "inf", "1e300", "-1"])
def test_pauses_that_are_no_numbers(stateward, option, value):
    """A pause without an end is refused before anything is started."""
    answer = stateward("run", "--on-signal", "true", option, value)
    assert answer.code == 2
    assert option in answer.error
