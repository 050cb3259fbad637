"""Agent processes that kill themselves before or after their n-th call of a method.

    python -m tests.frameworks.killed_agent TARGET

reads lines `THREAD METHOD N before|after`. Each line begins a process, which prints the end state as JSON if it comes
to its end; then its exit code is printed. The processes are forked from this one, because loading LangGraph takes
longer than the rest. This one has neither threads nor connections.
"""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from typing import Any

from tests.frameworks.graphs import build, play

from stateward._operations.steps import Call
from stateward.langgraph import StatewardSaver


def aim(session: Any, method: str, nth: int, when: str) -> None:
    """Makes the n-th call of a method the last thing that this process does."""
    perform, calls = session.perform, itertools.count(1)

    def aimed(step: Any) -> Any:
        # Parallel tasks call at once: each call takes its number here, and keeps it.
        is_aimed = isinstance(step, Call) and step.method == method and next(calls) == nth
        if is_aimed and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = perform(step)
        if is_aimed:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    session.perform = aimed


def run(target: str, thread: str, method: str, nth: str, when: str) -> None:
    """Plays the graph from wherever it is."""
    with StatewardSaver(target) as saver:
        aim(saver._blocking._session, method, int(nth), when)
        print(json.dumps(play(build(saver), thread, durability="sync")))


def main() -> None:
    """Runs one agent for each line."""
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            return run(sys.argv[1], *line.split())
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)
    return None


if __name__ == "__main__":
    main()
