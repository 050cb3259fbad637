"""Runs a client under test: its command is started for each scenario, with the scenario's name as the last argument.

A client that does not have a procedure exits with 77 at once, before it makes a call. A client passes if it makes every
call of the scenario and exits with 0.
"""

from __future__ import annotations

import os
import signal
import subprocess
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from stateward.conformance.play import Play
from stateward.conformance.server import ScriptedDaemon

PASSED, FAILED, LEFT_OUT = "passed", "failed", "left out"
EXIT_LEFT_OUT = 77
END_S = 3.0
"""How long a client may live on after it has failed."""
SHOWN_LINES = 8


@dataclass(frozen=True)
class Result:
    """What came of a scenario."""

    name: str
    outcome: str
    """PASSED, FAILED or LEFT_OUT."""
    problem: str = ""
    output: str = ""
    """The last lines that the client printed, if it failed."""


def run_each(daemon: ScriptedDaemon, command: Sequence[str], timeout_s: float) -> Iterator[Result]:
    """Runs the client once for each scenario."""
    for name, play in daemon.plays.items():
        exit_code, output = _run([*command, name], daemon.target, [play], timeout_s)
        yield judge(play, exit_code, output)


def run_together(daemon: ScriptedDaemon, command: Sequence[str], timeout_s: float) -> Iterator[Result]:
    """Runs the client once, with the names of all scenarios."""
    plays = list(daemon.plays.values())
    exit_code, output = _run([*command, *daemon.plays], daemon.target, plays, timeout_s * len(plays))
    for play in plays:
        yield judge(play, 0 if play.is_done else exit_code, output)


def _run(command: Sequence[str], target: str, plays: Iterable[Play], timeout_s: float) -> tuple[int | None, str]:
    """Returns the exit code, None = the client did not end in time; and what it printed."""
    environment = {**os.environ, "STATEWARD_TARGET": target}
    with tempfile.TemporaryFile() as printed:
        client = subprocess.Popen(  # noqa: S603  the user's own command
            command, env=environment, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
            start_new_session=True,
        )  # fmt: skip
        try:
            exit_code = _await_end(client, list(plays), timeout_s)
        finally:
            with suppress(ProcessLookupError):  # it may have children, and may have left them behind
                os.killpg(client.pid, signal.SIGKILL)
            client.wait()
        printed.seek(0)
        lines = printed.read().decode(errors="replace").splitlines()
    return exit_code, "\n".join(lines[-SHOWN_LINES:])


def _await_end(client: subprocess.Popen[bytes], plays: list[Play], timeout_s: float) -> int | None:
    for limit_s in (timeout_s,) if len(plays) > 1 else (timeout_s, END_S):
        with suppress(subprocess.TimeoutExpired):
            return client.wait(limit_s)
        if not plays[0].is_done:
            break
    return None


def judge(play: Play, exit_code: int | None, output: str = "") -> Result:
    """Returns what came of a scenario whose client has ended. `exit_code`: None = it did not end in time."""
    if exit_code == EXIT_LEFT_OUT and not play.is_touched:
        return Result(play.name, LEFT_OUT)
    if play.failure:
        return Result(play.name, FAILED, play.failure, output)
    how = "the client did not end in time" if exit_code is None else f"the client ended with exit code {exit_code}"
    if not play.is_done:
        return Result(play.name, FAILED, f"{how}; expected next: {play.missing()}", output)
    return Result(play.name, FAILED, how, output) if exit_code else Result(play.name, PASSED)


def find_program(command: Sequence[str]) -> str:
    """Returns what is wrong with the program of a command; "" = it can be started."""
    program = command[0]
    folders = [""] if "/" in program else os.get_exec_path()
    found = any(os.access(Path(folder, program), os.X_OK) for folder in folders)
    return "" if found else f"{program}: there is no such program"
