"""Commands of tests begin warm, as daemons do (tests/warm.py): forks of a process that has imported client and command.

`Popen` takes the place of `subprocess.Popen` where a test starts this interpreter with a module, a script or code, as
`python -m stateward.cli` or `python examples/02_writer.py`. Such a process takes half a second of a core to import
what it needs. From the fork on all is as in a process of its own: arguments, environment, directory, the three streams,
session and group, signals, output and exit. Only its parent is another one, and so is the group that it inherits.

With `nested`, what the process itself starts with this interpreter begins so too, as forks of a child that it had
before its first line: in its session and group.

What is started otherwise starts cold: other programs and options of Python, descriptors that are handed on, functions
before the start, systems other than Linux, and all where `TESTS_START_COLD` is set.
"""

from __future__ import annotations

import array
import atexit
import builtins
import contextlib
import gc
import inspect
import io
import json
import os
import pkgutil
import runpy
import select
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
if __name__ == "__main__":  # the process that waits; what it starts finds nothing but its own names in __main__
    sys.path[0] = str(REPOSITORY)  # in place of this folder
    from tests.warmcommand import main

    main()
    raise SystemExit

from tests import warm  # noqa: E402

IMPORTED = (
    *warm.IMPORTED[warm.DAEMON], "rich.console", "rich.progress", "rich.table", "stateward._async.client",
    "stateward._sync.client",
    "stateward.cli.app", "stateward.conformance.server", "stateward.testing",
)  # fmt: skip
# What runs as a module of its own, and so must not be imported before.
PROGRAMS = ("stateward.cli.__main__", "stateward.cli.demo.agent")
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# As the client sets it for all that its process starts.
FORK_SUPPORT = "GRPC_ENABLE_FORK_SUPPORT"


# What subprocess calls its start with, and which of it are ends of pipes.
GIVEN = tuple(inspect.signature(subprocess.Popen._execute_child).parameters)[1:]  # type: ignore[attr-defined]
PIPES = tuple(name for name in GIVEN if name in ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite"))


class Popen(subprocess.Popen[Any]):
    """A process that is a fork of one that waits, if it can be."""

    nested = False
    _end: socket.socket | None = None

    def __init__(self, args: Any, *more: Any, nested: bool = False, **options: Any) -> None:
        self.nested = nested
        super().__init__(args, *more, **options)

    def _execute_child(self, *given: Any) -> None:
        at = dict(zip(GIVEN, given, strict=True))
        environment = {os.fsdecode(name): os.fsdecode(value) for name, value in (at["env"] or os.environ).items()}
        waiting = _find(at, environment)
        if waiting is None:
            super()._execute_child(*given)  # type: ignore[misc]
            return
        request = {
            "arguments": [os.fsdecode(each) for each in at["args"]][1:],
            "environment": environment,
            "directory": os.fsdecode(at["cwd"] or Path.cwd()),
            "session": bool(at["start_new_session"]),
            "group": at.get("process_group", -1),
            "nested": self.nested,
        }
        data = json.dumps(request).encode()
        ends = [(at["p2cread"], 0), (at["c2pwrite"], 1), (at["errwrite"], 2)]
        self._end, theirs = socket.socketpair()
        with theirs:
            streams = [own if given == -1 else given for given, own in ends]
            descriptors = array.array("i", [theirs.fileno(), *streams])
            with warm._lock:
                waiting.sendall(len(data).to_bytes(4, "big"))
                waiting.sendmsg([data[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, descriptors)])
                waiting.sendall(data[1:])
        self._close_pipe_fds(*(at[name] for name in PIPES))  # type: ignore[attr-defined]
        self._end.settimeout(warm.ANSWER_S)
        self.pid = int.from_bytes(self._end.recv(4), "big")
        assert self.pid, "the process that waits has ended"
        self._child_created = True

    def _internal_poll(self, *given: Any, **options: Any) -> int | None:
        if self._end is None:
            return super()._internal_poll(*given, **options)  # type: ignore[misc,no-any-return]
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._wait(0)
        return self.returncode

    def _wait(self, timeout: float | None) -> int:
        if self._end is None:
            return super()._wait(timeout)  # type: ignore[misc,no-any-return]
        if self.returncode is None:
            with contextlib.suppress(ValueError):  # closed: another thread was told in between
                if not select.select([self._end], [], [], timeout)[0]:
                    raise subprocess.TimeoutExpired(self.args, timeout or 0)
        with self._waitpid_lock:  # type: ignore[attr-defined]
            if self.returncode is None:
                told = self._end.recv(4)
                self._end.close()
                self.returncode = int.from_bytes(told, "big", signed=True) if told else -signal.SIGKILL
        return self.returncode


_waiting: dict[frozenset[tuple[str, str]], tuple[socket.socket, subprocess.Popen[bytes]]] = {}
_nested: socket.socket | None = None
"""In a process that was started as nested: the child of which it forks others."""


def run(command: Any, *, nested: bool = False, **options: Any) -> subprocess.CompletedProcess[Any]:
    """Does the same as `subprocess.run` with these options: capture_output, timeout, and those of `Popen`."""
    timeout, check = options.pop("timeout", None), options.pop("check", False)
    if options.pop("capture_output", False):
        options |= {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Popen(command, nested=nested, **options) as process:
        try:
            out, err = process.communicate(timeout=timeout)
        except BaseException:
            process.kill()
            raise
    done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
    if check:
        done.check_returncode()
    return done


def _find(at: dict[str, Any], environment: dict[str, str]) -> socket.socket | None:
    """The process that waits for such a start; None if it must start cold."""
    others = ("preexec_fn", "pass_fds", "shell", "executable", "startupinfo")
    is_plain = isinstance(at["args"], list | tuple) and not any(at[name] for name in others)
    is_alone = any(name in environment for name in warm.READ_EARLY_BY_ONE)
    if sys.platform != "linux" or os.environ.get(warm.COLD) or is_alone or not is_plain:
        return None
    program, *arguments = (os.fsdecode(each) for each in at["args"])
    if program != warm.EXECUTABLE or not arguments:
        return None
    if arguments[0] not in ("-c", "-m") and (arguments[0].startswith("-") or not arguments[0].endswith(".py")):
        return None
    if _nested is not None:
        return _nested
    with warm._lock:
        plain = warm.unpatched(environment)
        names = {name: value for name, value in plain.items() if name.startswith(warm.READ_EARLY)}
        early = frozenset((names | {FORK_SUPPORT: "1"}).items())
        if early not in _waiting:
            if len(_waiting) == warm.WAITING_MAX:
                return None
            _waiting[early] = warm.begin(__file__, warm.CLIENT, plain)
        return _waiting[early][0]


def close() -> None:
    """Ends the processes that wait."""
    while _waiting:
        control, process = _waiting.popitem()[1]
        control.close()
        process.wait()


warm.closing.append(close)


# In the process that waits.


def main() -> None:
    """Waits for requests, and becomes the process of each one."""
    gc.disable()
    atexit.register(warm.leave)
    control = socket.socket(fileno=int(sys.argv[2]))
    for name in IMPORTED:
        __import__(name)
    commands = __import__("stateward.cli", fromlist=["cli"])
    for module in pkgutil.iter_modules(commands.__path__, "stateward.cli."):
        if module.name not in PROGRAMS:
            __import__(module.name)
    sys.path.pop(0)
    gc.freeze()
    found = warm.wait(control)
    if found is not None:
        become(*found)


def become(request: dict[str, Any], descriptors: list[int]) -> None:
    """Takes over streams, session, directory, environment and arguments, and runs."""
    global _nested
    for descriptor, place in zip(descriptors, (0, 1, 2), strict=True):
        os.dup2(descriptor, place)
        os.close(descriptor)
    if request["session"]:
        os.setsid()
    if request["group"] >= 0:
        os.setpgid(0, request["group"])
    os.chdir(request["directory"])
    os.environ.clear()
    os.environ.update(request["environment"] | {FORK_SUPPORT: "1"})
    if request["nested"]:
        _nested, theirs = socket.socketpair()
        if not os.fork():
            _nested.close()
            wait_within(theirs)
            return
        theirs.close()
        from stateward.testing import Daemon

        subprocess.Popen = Popen  # type: ignore[misc]
        Daemon._popen = staticmethod(Popen)
    warm.patch()
    open_streams()
    gc.enable()
    warm.run_to_the_end(lambda: execute(request["arguments"]))


def wait_within(control: socket.socket) -> None:
    """The life of a nested process that waits: it ends with the one that it belongs to, and holds none of its files."""
    kept = {number: signal.signal(number, signal.SIG_IGN) for number in IGNORED}
    nothing = os.open(os.devnull, os.O_RDWR)
    for place in (0, 1, 2):
        os.dup2(nothing, place)
    os.close(nothing)
    found = warm.wait(control)
    if found is None:
        os._exit(0)
    for number, handler in kept.items():
        signal.signal(number, handler)
    become(*found)


def open_streams() -> None:
    """Opens the streams again: whether they are terminals decided how they were opened."""
    for name, descriptor, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        before = getattr(sys, name)
        is_unbuffered = before.write_through  # as PYTHONUNBUFFERED asks for
        raw: Any = open(descriptor, f"{mode}b", 0 if is_unbuffered and mode == "w" else -1, closefd=False)  # noqa: SIM115
        stream = io.TextIOWrapper(
            raw, encoding=before.encoding, errors=before.errors, write_through=is_unbuffered,
            line_buffering=not is_unbuffered and (name == "stderr" or raw.isatty()),
        )  # fmt: skip
        stream.mode = mode  # type: ignore[misc]
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def execute(arguments: list[str]) -> None:
    """Runs what the arguments of an interpreter say."""
    if arguments[0] == "-m":
        sys.path.insert(0, str(Path.cwd()))
        sys.argv = arguments[1:]
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    elif arguments[0] == "-c":
        sys.path.insert(0, "")
        sys.argv = ["-c", *arguments[2:]]
        names = sys.modules["__main__"].__dict__
        names.clear()
        names.update(__name__="__main__", __builtins__=builtins)
        exec(compile(arguments[1], "<string>", "exec"), names)
    else:
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        sys.argv = arguments
        runpy.run_path(arguments[0], run_name="__main__")
