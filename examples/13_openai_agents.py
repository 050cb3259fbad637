"""A person approves a call of a tool of the OpenAI Agents SDK, and `stateward run` starts the agent again.

    pip install '.[openai-agents,sidecar,cli]'
    python examples/13_openai_agents.py

The run stops before the tool pays. The session keeps the run and the program ends. `stateward waiting` shows the call,
`stateward approve` approves it, and `stateward run --on-signal` starts this program again. The items with the tool's
result acknowledge the approval. A script stands for the model.
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
from typing import Any

from stateward import Client, Status
from stateward.testing import run_daemon

try:
    from agents import Agent, RunConfig, Runner, function_tool
    from agents.testing import ScriptedModel, assistant_message, function_call

    from stateward.openai_agents import StatewardSession
except ModuleNotFoundError as error:
    sys.exit(f"{error}; run in the clone: pip install '.[openai-agents]'")

SESSION = "chat-7"
SETTINGS = RunConfig(tracing_disabled=True)


def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


def build(*replies: Any) -> Agent[Any]:
    """The agent; `replies` stand for what the model says."""
    tool = function_tool(pay, needs_approval=True)
    return Agent(name="travel", model=ScriptedModel([[each] for each in replies]), tools=[tool])


async def begin() -> None:
    """The first start: the run stops where a person must decide."""
    agent, session = build(function_call("pay", '{"amount": 1200}', call_id="c1")), StatewardSession(SESSION)
    result = await Runner.run(agent, "Book the Lutetia", session=session, run_config=SETTINGS)
    if result.interruptions:
        await session.save_run(result.to_state())
    await session.close()


async def go_on() -> None:
    """What `stateward run` starts when somebody has answered."""
    agent = build(assistant_message("Booked."))
    session = StatewardSession(os.environ["STATEWARD_THREAD"], namespace=os.environ["STATEWARD_NAMESPACE"])
    run = await session.resume_run(agent)
    if run is not None:  # else another signal started it
        await Runner.run(agent, run, session=session, run_config=SETTINGS)
    await session.close()


def main() -> int:
    """Returns 0 if the tool was called once, after the approval."""
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
        stateward("approve", SESSION, "--as", "ana")
        stateward("run", "--on-signal", me, "--thread", SESSION, "--once")
        with Client(daemon.target) as client:
            info, items = client.thread(SESSION).info(), list(client.thread(SESSION).hydrate().logs["items"])
    results = [each["output"] for each in items if each.get("type") == "function_call_output"]
    print(f"{info.name} is {'completed' if info.status == Status.COMPLETED else 'not over'}: {results}")
    is_right = results == ["paid 1200"] and not info.pending_signals and info.status == Status.COMPLETED
    print("the tool was called once, after the approval" if is_right else "WRONG")
    return 0 if is_right else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        asyncio.run(go_on())
    else:
        sys.exit(main())
