"""Daemons of tests begin warm: as forks of a process that has imported the daemon, and nothing more.

A daemon takes half a second of a core to import what it needs, and some hundred tests start one. Here they start as
children of one process for each worker of pytest, which waits with everything imported and nothing begun: no thread, no
gRPC, no file. From the fork on all is as in a process of its own: arguments, environment, directory, output and exit.
Variables that Python, gRPC or the loader read before the daemon's first line have a process of their own that waits.

What is started otherwise starts cold, as without this module: another program or interpreter, systems other than Linux,
daemons with a clock of their own, and all daemons where `TESTS_START_COLD` is set. Daemons of `tests/start` are
commands, and cold, but for those of the tests of what they find on their disk.
"""

from __future__ import annotations

import array
import contextlib
import gc
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

COLD = "TESTS_START_COLD"
EXECUTABLE = sys.executable  # a test may put another program in its place
# What is run: the daemon, and the one that dies at a place.
MODULES = ("stateward_sidecar", "tests.crash.faulty_daemon")
IMPORTED = ("stateward_sidecar.app", "stateward_sidecar.archive.archive", "stateward_sidecar.archive.opening")
# Beginnings of names of variables that are read before the daemon's first line, or by libraries when they are loaded.
READ_EARLY = ("PYTHON", "GRPC_", "LD_", "MALLOC_", "LC_", "LANG", "TZ", "ARCHIVE_FAULTS_")
# The same, of one daemon only: no other could use the process that waits.
READ_EARLY_BY_ONE = ("ARCHIVE_FAULTS_CLOCK", "ARCHIVE_FAULTS_SLEPT")
WAITING_MAX = 4
REQUEST_MAX_BYTES = 1 << 20
# It imports first, which takes a minute where twenty other processes do the same.
ANSWER_S = 100.0


def popen(command: Sequence[str], **options: Any) -> subprocess.Popen[str] | Warm:
    """Starts a daemon, warm if that is the same. Takes the options that `stateward.testing` gives."""
    is_alone = any(name in options["env"] for name in READ_EARLY_BY_ONE)
    if sys.platform != "linux" or os.environ.get(COLD) or is_alone or not _is_daemon(command):
        return subprocess.Popen(command, **options)
    early = frozenset((name, value) for name, value in options["env"].items() if name.startswith(READ_EARLY))
    with _lock:
        if early not in _waiting:
            if len(_waiting) == WAITING_MAX:
                return subprocess.Popen(command, **options)
            _waiting[early] = _begin(options["env"])
        return Warm(_waiting[early][0], command, **options)


def _is_daemon(command: Sequence[str]) -> bool:
    return list(command[:2]) == [EXECUTABLE, "-m"] and command[2] in MODULES


class Warm:
    """A process that was forked for this one: what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        waiting: socket.socket,
        command: Sequence[str],
        *,
        stdout: int,
        stderr: IO[str],
        text: bool,
        env: Mapping[str, str],
        cwd: Path,
    ) -> None:
        assert stdout == subprocess.PIPE
        assert text
        self.args, self.returncode = list(command), None
        self._end, theirs = socket.socketpair()
        reading, writing = os.pipe()
        try:
            request = json.dumps({"arguments": self.args[2:], "environment": dict(env), "directory": str(cwd)}).encode()
            waiting.sendall(len(request).to_bytes(4, "big"))
            descriptors = array.array("i", [theirs.fileno(), writing, stderr.fileno()])
            waiting.sendmsg([request[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            waiting.sendall(request[1:])
        finally:
            theirs.close()
            os.close(writing)
        self.stdin = self.stderr = None
        self.stdout: IO[str] = os.fdopen(reading)
        self._end.settimeout(ANSWER_S)
        try:
            self.pid = int.from_bytes(self._end.recv(4), "big")
            assert self.pid, "the process that waits has ended"
        except BaseException:
            self._end.close()
            self.stdout.close()
            raise

    def poll(self) -> int | None:
        """The exit code, if it has ended."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end. Raises subprocess.TimeoutExpired."""
        if self.returncode is None:
            if not select.select([self._end], [], [], timeout)[0]:
                raise subprocess.TimeoutExpired(self.args, timeout or 0)
            told = self._end.recv(4)
            self._end.close()
            # Nothing is told where the process that waits was killed together with the daemon.
            self.returncode = int.from_bytes(told, "big", signed=True) if told else -signal.SIGKILL
        return self.returncode

    def send_signal(self, sign: int) -> None:
        """Sends a signal, if it has not ended."""
        if self.poll() is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, sign)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)


_lock = threading.Lock()
_waiting: dict[frozenset[tuple[str, str]], tuple[socket.socket, subprocess.Popen[bytes]]] = {}


def close() -> None:
    """Ends the processes that wait. Their daemons live on."""
    while _waiting:
        control, process = _waiting.popitem()[1]
        control.close()
        process.wait()


def _begin(environment: Mapping[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    control, theirs = socket.socketpair()
    with theirs:
        command = [EXECUTABLE, __file__, str(theirs.fileno())]
        return control, subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], cwd="/")


# In the process that waits.


def main() -> None:
    """Waits for requests, and becomes the daemon of each one."""
    gc.disable()
    sys.path.pop(0)  # this folder, which a daemon does not have in its path
    for name in IMPORTED:
        __import__(name)
    gc.freeze()
    arguments = _wait(socket.socket(fileno=int(sys.argv[1])))
    if arguments is not None:
        sys.argv = arguments
        runpy.run_module(arguments[0], run_name="__main__", alter_sys=True)


def _wait(control: socket.socket) -> list[str] | None:
    """Returns None at the end, and in each child the module and its arguments."""
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads cannot be forked"
    hearing, telling = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(telling)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ends: dict[int, socket.socket] = {}
    while True:
        ready = select.select([control, hearing], [], [])[0]
        if hearing in ready:
            os.read(hearing, 4096)
            _tell_ends(ends)
        if control not in ready:
            continue
        request, descriptors = _read_request(control)
        if request is None:
            return None
        end = socket.socket(fileno=descriptors[0])
        number = os.fork()
        if not number:
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for each in (control, end, *ends.values()):
                each.close()
            for descriptor in (hearing, telling):
                os.close(descriptor)
            return _become(request, descriptors[1:])
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        ends[number] = end
        end.sendall(number.to_bytes(4, "big"))


def _read_request(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    size = int.from_bytes(control.recv(4, socket.MSG_WAITALL), "big")
    if not 0 < size <= REQUEST_MAX_BYTES:
        return None, []
    said, descriptors, _, _ = socket.recv_fds(control, 1, 3)
    return json.loads(said + (control.recv(size - 1, socket.MSG_WAITALL))), descriptors


def _tell_ends(ends: dict[int, socket.socket]) -> None:
    with contextlib.suppress(ChildProcessError):
        while True:
            number, status = os.waitpid(-1, os.WNOHANG)
            if not number:
                return
            with ends.pop(number) as end, contextlib.suppress(OSError):
                end.sendall(os.waitstatus_to_exitcode(status).to_bytes(4, "big", signed=True))


def _become(request: dict[str, Any], descriptors: list[int]) -> list[str]:
    for descriptor, place in zip(descriptors, (1, 2), strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(request["directory"])
    sys.path.insert(0, request["directory"])  # as with `python -m`
    os.environ.clear()
    os.environ.update(request["environment"])
    return list(request["arguments"])


if __name__ == "__main__":
    main()
