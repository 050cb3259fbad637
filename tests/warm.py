"""Processes of tests begin warm: as forks of a process that has imported the daemon, or the client, and nothing more.

A daemon takes half a second of a core to import what it needs, and some hundred tests start one; a client or a command
takes nearly as much. Here they start as children of one process for each worker of pytest, which waits with everything
imported and nothing begun: no thread, no gRPC, no file. From the fork on all is as in a process of its own: arguments,
environment, directory, output and exit. Variables that Python, gRPC or the loader read before the first line have a
process of their own that waits.

`popen` starts a process; `run` waits for its end. Both take the commands `python -m MODULE` of the modules below, and
`python -c SCRIPT` for scripts that use the client.

What is started otherwise starts cold, as without this module: another program or interpreter, systems other than Linux,
daemons of the next format, and everything where `TESTS_START_COLD` is set. Daemons of `tests/start` are
commands, and cold, but for those of tests of what they find on their disk or of what they refuse, which begins after
all imports.
"""

from __future__ import annotations

import array
import atexit
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
import tempfile
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

COLD = "TESTS_START_COLD"
ROOT = Path(__file__).resolve().parents[1]
EXECUTABLE = sys.executable  # a test may put another program in its place
DAEMON, CLIENT = "daemon", "client"
# What is run: the daemon, the one that dies at a place, the command, and scripts.
MODULES = {
    "stateward_sidecar": DAEMON, "tests.crash.faulty_daemon": DAEMON, "stateward.cli": CLIENT,
    "tests.crash.writers": CLIENT, "tests.bucket.writer": DAEMON,
}  # fmt: skip
IMPORTED = {
    DAEMON: ("stateward_sidecar.app", "stateward_sidecar.archive.archive", "stateward_sidecar.archive.opening"),
    CLIENT: ("stateward._sync.client", "stateward._async.client", "stateward.cli.app"),
}
# Beginnings of names of variables that are read before the daemon's first line, or by libraries when they are loaded.
READ_EARLY = ("PYTHON", "GRPC_", "LD_", "MALLOC_", "LC_", "LANG", "TZ")
# The same, of one daemon only: no other could use the process that waits.
READ_EARLY_BY_ONE = ("ARCHIVE_FAULTS_NEXT_FORMAT",)
# What the others of these names change can be changed after all imports, and so it is, after the fork.
PATCHES, PATCHED = "ARCHIVE_FAULTS_", ROOT / "tests/archive_faults/patched"
WAITING_MAX = 5
# The longest that `run` waits.
RUN_MAX_S = 180.0
REQUEST_MAX_BYTES = 1 << 20
# It imports first, which takes a minute where twenty other processes do the same.
ANSWER_S = 100.0


def popen(command: Sequence[str], **options: Any) -> Process:
    """Starts a process, warm if that is the same. Takes the options that `stateward.testing` gives."""
    is_alone = any(name in options["env"] for name in READ_EARLY_BY_ONE)
    kind = kind_of(command)
    if sys.platform != "linux" or os.environ.get(COLD) or is_alone or not kind:
        return subprocess.Popen(command, **options)
    environment = unpatched(options["env"])
    early = frozenset((name, value) for name, value in environment.items() if name.startswith(READ_EARLY))
    with _lock:
        if (kind, early) not in _waiting:
            if len(_waiting) == WAITING_MAX:
                return subprocess.Popen(command, **options)
            _waiting[kind, early] = begin(__file__, kind, environment)
        return Warm(_waiting[kind, early][0], command, **options)


def start(command: Sequence[str], more: Mapping[str, str] | None = None, **pipes: Any) -> Process:
    """Starts a process with the environment of this one, and more. It can import what this process can."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **(more or {})}
    ways = {**dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL), **pipes}
    return popen(command, text=True, env=environment, cwd=ROOT, **ways)


def run(
    command: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = RUN_MAX_S,
) -> subprocess.CompletedProcess[str]:
    """Runs a process to its end, and returns what it wrote. Raises subprocess.TimeoutExpired, and kills it."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))} if env is None else env
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as err:
        ways: dict[str, Any] = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": err}
        started = popen(command, text=True, env=environment, cwd=cwd or ROOT, **ways)
        try:
            code = started.wait(timeout)
        finally:
            started.kill()
            started.wait()
        written = []
        for each in (out, err):
            each.seek(0)
            written.append(each.read())
        return subprocess.CompletedProcess(list(command), code, *written)


def kind_of(command: Sequence[str]) -> str:
    """What the process that waits for this command has imported; empty if none waits."""
    if command[0] != EXECUTABLE:
        return ""
    return CLIENT if command[1] == "-c" else MODULES.get(command[2], "") if command[1] == "-m" else ""


def unpatched(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that waits for starts with these variables: it has no patches."""
    found = {name: value for name, value in environment.items() if not name.startswith(PATCHES)}
    places = [place for place in found.get("PYTHONPATH", "").split(os.pathsep) if place != str(PATCHED)]
    return {**found, "PYTHONPATH": os.pathsep.join(places)} if "PYTHONPATH" in found else found


def patch() -> None:
    """In the process that was asked for: changes what its variables tell (tests/archive_faults/patched)."""
    if any(name.startswith(PATCHES) for name in os.environ):
        runpy.run_path(str(PATCHED / "sitecustomize.py"))


def _pipe(given: int | IO[str], mode: str, until: contextlib.ExitStack) -> tuple[IO[str] | None, int]:
    """Our end of a pipe, if one is asked for, and the descriptor that the process gets."""
    if not isinstance(given, int):
        return None, given.fileno()
    if given == subprocess.DEVNULL:
        nothing = os.open(os.devnull, os.O_RDWR)
        until.callback(os.close, nothing)
        return None, nothing
    assert given == subprocess.PIPE
    ends = os.pipe()
    ours, theirs = ends if mode == "r" else reversed(ends)
    until.callback(os.close, theirs)
    return os.fdopen(ours, mode), theirs


class Warm:
    """A process that was forked for this one: what tests use of `subprocess.Popen`."""

    def __init__(
        self,
        waiting: socket.socket,
        command: Sequence[str],
        *,
        stdin: int | IO[str] = subprocess.DEVNULL,
        stdout: int | IO[str],
        stderr: int | IO[str],
        text: bool,
        env: Mapping[str, str],
        cwd: Path,
    ) -> None:
        assert text
        self.args = list(command)
        self.returncode: int | None = None
        self._end, theirs = socket.socketpair()
        with theirs, contextlib.ExitStack() as given:
            self.stdin, reading = _pipe(stdin, "w", given)
            self.stdout, out = _pipe(stdout, "r", given)
            self.stderr, errors = _pipe(stderr, "r", given)
            request = json.dumps({"arguments": self.args[1:], "environment": dict(env), "directory": str(cwd)}).encode()
            waiting.sendall(len(request).to_bytes(4, "big"))
            descriptors = array.array("i", [theirs.fileno(), reading, out, errors])
            waiting.sendmsg([request[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
            waiting.sendall(request[1:])
        self._end.settimeout(ANSWER_S)
        try:
            self.pid = int.from_bytes(self._end.recv(4), "big")
            assert self.pid, "the process that waits has ended"
        except BaseException:
            self._end.close()
            self._close()
            raise

    def _close(self) -> None:
        for each in (self.stdin, self.stdout, self.stderr):
            if each is not None:
                with contextlib.suppress(BrokenPipeError):
                    each.close()

    def communicate(self, text: str = "", timeout: float | None = None) -> tuple[str, str]:
        """Writes to its stdin and closes it, and returns what it wrote until its end. What it writes to one of two
        pipes must fit into that pipe."""
        with contextlib.suppress(BrokenPipeError, ValueError):
            if self.stdin is not None:
                self.stdin.write(text)
        with contextlib.suppress(BrokenPipeError):
            if self.stdin is not None:
                self.stdin.close()
        self.wait(timeout)
        written = [each.read() if each is not None and not each.closed else "" for each in (self.stdout, self.stderr)]
        self._close()
        return written[0], written[1]

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


Process = subprocess.Popen[str] | Warm

_lock = threading.Lock()
_waiting: dict[tuple[str, frozenset[tuple[str, str]]], tuple[socket.socket, subprocess.Popen[bytes]]] = {}


# What else is closed with them.
closing: list[Callable[[], None]] = []


def close() -> None:
    """Ends the processes that wait. Their daemons live on."""
    while _waiting:
        control, process = _waiting.popitem()[1]
        control.close()
        process.wait()
    for each in closing:
        each()


def begin(file: str, kind: str, environment: Mapping[str, str]) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    """Starts a process that waits, and the socket by which it hears of requests."""
    control, theirs = socket.socketpair()
    with theirs:
        command = [EXECUTABLE, file, kind, str(theirs.fileno())]
        return control, subprocess.Popen(command, env=environment, pass_fds=[theirs.fileno()], cwd="/")


# In the process that waits.


def main() -> None:
    """Waits for requests, and becomes the process of each one."""
    gc.disable()
    atexit.register(leave)  # first, and so called last
    sys.path.pop(0)  # this folder, which a daemon does not have in its path
    if sys.argv[1] == DAEMON:
        os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # as the daemon does before it imports gRPC
    for name in IMPORTED[sys.argv[1]]:
        __import__(name)
    gc.freeze()
    found = wait(socket.socket(fileno=int(sys.argv[2])))
    if found is None:
        return
    kind, name, *more = _become(*found)
    patch()
    gc.enable()
    if kind == "-m":
        sys.argv = [name, *more]
        run_to_the_end(lambda: runpy.run_module(name, run_name="__main__", alter_sys=True))
    else:
        sys.argv = ["-c", *more]
        sys.modules["__main__"] = module = types.ModuleType("__main__")
        run_to_the_end(lambda: exec(compile(name, "<string>", "exec"), module.__dict__))


_code: int | None = None


def run_to_the_end(run: Callable[[], object]) -> None:
    """Runs, and notes an exit code."""
    global _code  # noqa: PLW0603
    try:
        run()
    except SystemExit as error:
        if error.code is None or isinstance(error.code, int):
            _code = (error.code or 0) & 0xFF
        raise
    _code = 0


def leave() -> None:
    """Ends a process whose exit code is known, when threads and all else that is called at the end have ended.

    An interpreter would free each object now, which are pages that are copied first: four fifths of what a short
    process costs. All other ends, as that by an exception, are those of the interpreter.
    """
    if _code is not None:
        with contextlib.suppress(OSError, ValueError):  # it tries again, and says what is wrong
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
            os._exit(_code)


def wait(control: socket.socket) -> tuple[dict[str, Any], list[int]] | None:
    """Returns None at the end, and in each child what was asked for, with its descriptors."""
    assert len(list(Path("/proc/self/task").iterdir())) == 1, "a process with threads cannot be forked"
    hearing, telling = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(telling)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    ends: dict[int, socket.socket] = {}
    waited: list[socket.socket | int] = [control, hearing]
    while True:
        ready = select.select(waited, [], [])[0]
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
            return request, descriptors[1:]
        for descriptor in descriptors[1:]:
            os.close(descriptor)
        ends[number] = end
        end.sendall(number.to_bytes(4, "big"))


def _read_request(control: socket.socket) -> tuple[dict[str, Any] | None, list[int]]:
    size = int.from_bytes(control.recv(4, socket.MSG_WAITALL), "big")
    if not 0 < size <= REQUEST_MAX_BYTES:
        return None, []
    said, descriptors, _, _ = socket.recv_fds(control, 1, 4)
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
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.chdir(request["directory"])
    # As with `python -m`, and with `python -c`.
    sys.path.insert(0, request["directory"] if request["arguments"][0] == "-m" else "")
    os.environ.clear()
    os.environ.update(request["environment"])
    return list(request["arguments"])


if __name__ == "__main__":
    main()
