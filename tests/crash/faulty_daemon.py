"""A daemon that dies at a chosen place, as by SIGKILL, or is slow there.

    python -m tests.crash.faulty_daemon WHERE NTH -- ARGUMENTS OF THE DAEMON

WHERE is `module:function` or `module:Class.method` below `stateward_sidecar`, with `<` before it to die when the call
begins, `>` to die when it has returned, and `~` to live on, but to wait a second before the call. It happens at the
call with this number, counted from 1.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

from stateward.testing import Daemon

PAUSE_S = 1.0


def install(where: str, nth: int) -> None:
    """Puts the fault into the function."""
    moment, (module, path) = where[0], where[1:].split(":")
    owner: Any = importlib.import_module(f"stateward_sidecar.{module}")
    *holders, name = path.split(".")
    for holder in holders:
        owner = getattr(owner, holder)
    function, calls = getattr(owner, name), itertools.count(1)

    @functools.wraps(function)
    def faulty(*args: Any, **kwargs: Any) -> Any:
        mine = next(calls)  # several threads may be in it at once
        if mine == nth and moment == "<":
            os.kill(os.getpid(), signal.SIGKILL)
        if mine == nth and moment == "~":
            time.sleep(PAUSE_S)
        result = function(*args, **kwargs)
        if mine == nth and moment == ">":
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, faulty)


class FaultyDaemon(Daemon):
    """`run_daemon`'s daemon, which can be started so that it dies at a place."""

    def start_faulty(self, where: str, nth: int) -> None:
        """As `start`; where it dies by itself, `wait_until_dead` returns then."""
        command = [sys.executable, "-m", "tests.crash.faulty_daemon", where, str(nth), "--"]
        if "." not in where.partition(":")[2]:
            # Others have imported a function as it was, if the daemon is imported already. A method is its class's.
            return self.start_as(command)
        popen = self._popen
        self._popen = lambda usual, **options: popen([*command, *usual[3:]], **options)
        try:
            return self.start()
        finally:
            del self._popen

    def start_as(self, command: list[str]) -> None:
        """Starts another program with the daemon's arguments."""
        sys_executable = sys.executable
        wrapper = self.socket.parent / "faulty"
        # `start` runs `<executable> -m stateward_sidecar ...`: a script in its place drops the first two words.
        wrapper.write_text("#!/bin/sh\nshift 2\nexec " + " ".join(map(_quote, command)) + ' "$@"\n')
        wrapper.chmod(0o700)
        sys.executable = str(wrapper)
        try:
            self.start()
        finally:
            sys.executable = sys_executable

    def wait_until_dead(self, timeout_s: float = 100) -> None:
        """Waits until it has died; a subprocess.TimeoutExpired says that it never came to the place."""
        assert self._process is not None
        self._process.wait(timeout_s)
        self.kill()


def _quote(word: str) -> str:
    return "'" + word.replace("'", "'\\''") + "'"


def main() -> None:
    """Installs the fault and becomes the daemon."""
    where, nth, _, *arguments = sys.argv[1:]
    install(where, int(nth))
    from stateward_sidecar.__main__ import main as run

    sys.argv = ["stateward-sidecar", *arguments]
    sys.exit(run())


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    main()
