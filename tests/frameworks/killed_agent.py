"""An agent process that kills itself before or after its n-th call of a method.

    python -m tests.frameworks.killed_agent TARGET THREAD METHOD N before|after

It prints the end state as JSON if it comes to its end.
"""

from __future__ import annotations

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
    perform, calls = session.perform, []

    def aimed(step: Any) -> Any:
        is_aimed = isinstance(step, Call) and step.method == method
        if is_aimed:
            calls.append(step)
        if is_aimed and len(calls) == nth and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = perform(step)
        if is_aimed and len(calls) == nth:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    session.perform = aimed


def main() -> None:
    """Plays the graph from wherever it is."""
    target, thread, method, nth, when = sys.argv[1:]
    with StatewardSaver(target) as saver:
        aim(saver._blocking._session, method, int(nth), when)
        print(json.dumps(play(build(saver), thread, durability="sync")))


if __name__ == "__main__":
    main()
