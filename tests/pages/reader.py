"""A reader of a page: one shell and one Python, which run its blocks one after the other on a scratch machine."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

from tests import warmcommand
from tests.opening.conftest import end as end_daemon
from tests.pages import typed
from tests.pages.blocks import REPOSITORY

PATIENCE_S = 90.0
STOP_S = 30.0
# What a shell tells of each command that fails. It goes on, as a reader would.
TELL = """set -o pipefail
trap 'printf "%s %s\\n" $? "${BASH_COMMAND%%$NEWLINE*}" >&FD' ERR
NEWLINE=$'\\n'
"""
PYTHON = """
import json, linecache, sys, traceback
def answer_all(requests, answers, names):
    for line in requests:
        request = json.loads(line)
        code, name = request["code"], request["name"]
        linecache.cache[name] = (len(code), None, code.splitlines(True), name)
        try:
            exec(compile(code, name, "exec"), names)
            fault = ""
        except BaseException:
            fault = traceback.format_exc()
        print(json.dumps(fault), file=answers, flush=True)
answers, sys.stdout = sys.stdout, sys.stderr
answer_all(sys.stdin, answers, globals())
"""
STARTS = re.compile(r"^stateward-sidecar\b.* &$", re.MULTILINE)
LISTENS = re.compile(r"--listen unix://(\S+)")
LASTING = """#!/bin/sh
# lasting SECONDS COMMAND…: waits until the command prints a line, or so long, and types Ctrl-C.
exec "{python}" -E -S - "$@" <<'END'
import select, signal, subprocess, sys
signal.signal(signal.SIGINT, signal.SIG_DFL)  # the jobs of a shell inherit that it is ignored
process = subprocess.Popen(sys.argv[2:], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL)
select.select([process.stdout], [], [], float(sys.argv[1]))
ended = process.poll()
process.send_signal(signal.SIGINT)
print(process.communicate(timeout=30)[0].decode())
sys.exit(f"it ended by itself, with {{ended}}" if ended is not None else process.returncode not in (0, 130, -2))
END
"""


class Failed(Exception):
    """A block did not end well. The message has what it printed."""


class Reader:
    """Runs blocks in the folder `clone` of `place`, which has what the repository has.

    The command `stateward` begins warm (tests/warmcommand.py), unless it is to be the installed program itself.
    """

    def __init__(self, place: Path, environment: dict[str, str], *, installed: bool = False) -> None:
        self.clone, self._scripts, self._output = place / "clone", place / "blocks", place / "output"
        for folder in (self.clone, self._scripts, place / "bin", place / "tmp", place / "etc", place / "run"):
            folder.mkdir()
        for path in REPOSITORY.iterdir():
            if path.name not in (".git", ".venv"):
                (self.clone / path.name).symlink_to(path)
        (place / "bin/lasting").write_text(LASTING.format(python=sys.executable))
        (place / "bin/lasting").chmod(0o755)
        self._counter = None if installed else typed.Counter(place / "commands", warmcommand.Popen)
        if self._counter is not None:
            command = f'exec "{sys.executable}" -I -S "{typed.__file__}" "{place}/commands" "$@"'
            (place / "bin/stateward").write_text(f"#!/bin/sh\n{command}\n")
            (place / "bin/stateward").chmod(0o755)
        self._environment = {
            **environment, "HOME": str(place), "XDG_RUNTIME_DIR": str(place / "run"), "LC_ALL": "C.UTF-8",
            "PATH": os.pathsep.join([str(place / "bin"), str(Path(sys.executable).parent), environment["PATH"]]),
        }  # fmt: skip
        self._told, self._tell = os.pipe()
        with self._output.open("ab") as output:
            self._shell = subprocess.Popen(
                ["bash", "--noprofile", "--norc"], cwd=self.clone, env=self._environment, stdin=subprocess.PIPE,
                stdout=output, stderr=output, pass_fds=[self._tell], start_new_session=True, text=True,
            )  # fmt: skip
        self._python: subprocess.Popen[str] | None = None
        self._type(TELL.replace("FD", str(self._tell)))

    def run_shell(self, name: str, text: str) -> list[tuple[int, str]]:
        """Runs commands. Returns those that failed, with their exit codes. Waits for a daemon that starts."""
        script = self._scripts / f"{len(list(self._scripts.iterdir()))}.sh"
        script.write_text(f"{text}\n:\n")
        self._type(f". {script} </dev/null\n{shutil.which('env')} -0 >{self._scripts.parent}/environment\n")
        self._type(f"printf 'done\\n' >&{self._tell}\n")
        failures = self._read_until_done(name)
        for started in STARTS.finditer(text):
            if "kill $!" in text[started.end() :]:
                continue
            where = LISTENS.search(started[0])
            self._wait_for(where[1] if where else f"{self._environment['XDG_RUNTIME_DIR']}/stateward/stateward.sock")
        return failures

    def run_python(self, name: str, code: str) -> None:
        """Runs code after that of the blocks before. Raises Failed."""
        if self._python is None:
            pairs = (self._scripts.parent / "environment").read_bytes().split(b"\0")
            environment = dict(pair.split(b"=", 1) for pair in pairs if pair)
            with self._output.open("ab") as output:
                self._python = warmcommand.Popen(
                    [sys.executable, "-c", PYTHON], cwd=self.clone, env=environment,
                    stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=output, start_new_session=True, text=True,
                )  # fmt: skip
        assert self._python.stdin is not None
        assert self._python.stdout is not None
        self._python.stdin.write(json.dumps({"name": name, "code": code}) + "\n")
        self._python.stdin.flush()
        if not select.select([self._python.stdout], [], [], PATIENCE_S)[0]:
            raise Failed(f"{name} did not end:\n{self.said()}")
        answer = self._python.stdout.readline()
        if fault := json.loads(answer) if answer else self.said():
            raise Failed(f"{name}:\n{fault}")

    def said(self, *, whole: bool = False) -> str:
        """The end of what all blocks have printed, or all of it."""
        return self._output.read_text(errors="replace")[0 if whole else -6000 :]

    def close(self) -> None:
        """Ends shell, Python, and what they have started."""
        for process in (self._python, self._shell):
            if process is not None and process.stdin is not None:
                process.stdin.close()
                _end(process)
                if process.stdout is not None:
                    process.stdout.close()
        for descriptor in (self._told, self._tell):
            os.close(descriptor)
        if self._counter is not None:
            self._counter.close()
        for store in self._scripts.parent.rglob("data.mdb"):  # daemons of `stateward.open()` are nobody's children
            end_daemon(store.with_name("LOCK"))

    def _type(self, text: str) -> None:
        assert self._shell.stdin is not None
        self._shell.stdin.write(text)
        self._shell.stdin.flush()

    def _read_until_done(self, name: str) -> list[tuple[int, str]]:
        said, end = b"", time.monotonic() + PATIENCE_S
        while not said.endswith(b"done\n"):
            if not select.select([self._told], [], [], 0.2)[0]:
                if time.monotonic() > end or self._shell.poll() is not None:
                    raise Failed(f"{name} did not end, or ended the shell:\n{self.said()}")
                continue
            said += os.read(self._told, 65536)
        lines = said.decode().splitlines()[:-1]
        return [(int(line.partition(" ")[0]), line.partition(" ")[2]) for line in lines]

    def _wait_for(self, path: str) -> None:
        end = time.monotonic() + STOP_S
        while True:
            with socket.socket(socket.AF_UNIX) as probe:
                try:
                    return probe.connect(path)
                except OSError:
                    if time.monotonic() > end:
                        raise Failed(f"no daemon listens at {path}:\n{self.said()}") from None
            time.sleep(0.05)


def _end(process: subprocess.Popen[str]) -> None:
    """Ends a process and all that it started: with SIGTERM, and with SIGKILL what is still there after a time."""
    end = time.monotonic() + STOP_S
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGTERM)
        while True:
            process.poll()
            os.killpg(process.pid, 0 if time.monotonic() < end else signal.SIGKILL)
            time.sleep(0.05)
    process.wait(STOP_S)
