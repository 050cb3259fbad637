"""A person answers a workflow of Microsoft's Agent Framework, and `stateward run` starts it again.

    pip install '.[agent-framework,sidecar,cli]'
    python examples/16_agent_framework.py

The workflow asks with `request_info` and has nothing else to do. `stateward waiting` shows the request, `stateward
answer` answers it, and `stateward run --on-signal` starts this program again. The checkpoint without the request
acknowledges the answer.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from stateward import Client, Status
from stateward.testing import run_daemon

try:
    from agent_framework import Executor, Workflow, WorkflowBuilder, WorkflowContext, handler, response_handler

    from stateward.agent_framework import StatewardCheckpointStorage
except ModuleNotFoundError as error:
    sys.exit(f"{error}; run in the clone: pip install '.[agent-framework]'")

THREAD, NAME = "order-7", "trip"


class Booking(Executor):
    """Asks for a seat, and books it."""

    @handler
    async def ask(self, city: str, ctx: WorkflowContext[str, str]) -> None:
        """Asks a person."""
        await ctx.request_info(f"Which seat to {city}?", str)

    @response_handler
    async def book(self, request: str, seat: str, ctx: WorkflowContext[str, str]) -> None:
        """The end, with the answer."""
        await ctx.yield_output(f"{request} {seat}")


def build(storage: StatewardCheckpointStorage) -> Workflow:
    """The workflow."""
    return WorkflowBuilder(name=NAME, start_executor=Booking(id="booking"), checkpoint_storage=storage).build()


async def begin() -> None:
    """The first start: the workflow stops where a person must answer."""
    async with StatewardCheckpointStorage(THREAD) as storage:
        await build(storage).run("Paris")


async def go_on() -> None:
    """What `stateward run` starts when somebody has answered."""
    thread, namespace = os.environ["STATEWARD_THREAD"], os.environ["STATEWARD_NAMESPACE"]
    async with StatewardCheckpointStorage(thread, namespace=namespace) as storage:
        responses, latest = await storage.responses(), await storage.get_latest(workflow_name=NAME)
        if responses is not None and latest is not None:  # else another signal started it
            result = await build(storage).run(responses=responses, checkpoint_id=latest.checkpoint_id)
            print(*result.get_outputs())


def main() -> int:
    """Returns 0 if the answer reached the workflow."""
    with tempfile.TemporaryDirectory(prefix="sw-example-") as directory, run_daemon(Path(directory)) as daemon:
        os.environ["STATEWARD_TARGET"] = daemon.target
        me = shlex.join([sys.executable, str(Path(__file__).resolve()), "agent"])

        def stateward(*arguments: str) -> str:
            """Runs the `stateward` command and returns its output."""
            command = [sys.executable, "-m", "stateward.cli", *arguments]
            return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout

        asyncio.run(begin())
        (waits,) = json.loads(stateward("waiting", "--json"))
        print(f"{waits['thread']} waits: {waits['prompt']}")
        stateward("answer", THREAD, "12A", "--as", "ana")
        results = stateward("run", "--on-signal", me, "--thread", THREAD, "--once").strip()
        with Client(daemon.target) as client:
            info = client.thread(THREAD).info()
    print(f"{info.name} is {'completed' if info.status == Status.COMPLETED else 'not over'}: {results}")
    is_right = results == "Which seat to Paris? 12A" and not info.pending_signals and info.status == Status.COMPLETED
    print("the workflow got the answer" if is_right else "WRONG")
    return 0 if is_right else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        asyncio.run(go_on())
    else:
        sys.exit(main())
