"""A person approves a deferred call of a tool of Pydantic AI, and `stateward run` starts the agent again.

    pip install '.[pydantic-ai,sidecar,cli]'
    python examples/14_pydantic_ai.py

The run ends with the call that needs an approval, and the store keeps the conversation. `stateward waiting` shows the
call, `stateward approve` approves it, and `stateward run --on-signal` starts this program again. The save of the run
that got the approval acknowledges it. A function stands for the model.
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
    from pydantic_ai import Agent, Conversation, DeferredToolRequests
    from pydantic_ai.messages import ModelResponse, TextPart, ToolCallPart
    from pydantic_ai.models.function import FunctionModel

    from stateward.pydantic_ai import StatewardConversationStore
except ModuleNotFoundError as error:
    sys.exit(f"{error}; run in the clone: pip install '.[pydantic-ai]'")

THREAD = "chat-8"


def build(*replies: Any) -> Agent[None, Any]:
    """The agent; `replies` stand for what the model says."""
    said = iter(replies)
    model = FunctionModel(lambda *_: ModelResponse([next(said)]))
    agent = Agent(model, output_type=[str, DeferredToolRequests])

    @agent.tool_plain(requires_approval=True)
    def pay(amount: int) -> str:
        """Pays."""
        return f"paid {amount}"

    return agent


async def begin() -> None:
    """The first start: the run stops where a person must decide."""
    agent = build(ToolCallPart("pay", {"amount": 1200}, tool_call_id="c1"))
    async with StatewardConversationStore() as store:
        await store.save(await agent.run("Book the Lutetia", conversation=Conversation(conversation_id=THREAD)))


async def go_on() -> None:
    """What `stateward run` starts when somebody has answered."""
    thread, agent = os.environ["STATEWARD_THREAD"], build(TextPart("Booked."))
    async with StatewardConversationStore(namespace=os.environ["STATEWARD_NAMESPACE"]) as store:
        results = await store.deferred_results(thread)
        if results is not None:  # else another signal started it
            conversation = await store.load(thread)
            await store.save(await agent.run(conversation=conversation, deferred_tool_results=results))


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
        stateward("approve", THREAD, "--as", "ana")
        stateward("run", "--on-signal", me, "--thread", THREAD, "--once")
        with Client(daemon.target) as client:
            info = client.thread(THREAD).info()
            entries = list(client.thread(THREAD).hydrate().logs["entries"])
    parts = [part for entry in entries for part in entry["message"]["parts"]]
    results = [part["content"] for part in parts if part["part_kind"] == "tool-return"]
    print(f"{info.name} is {'completed' if info.status == Status.COMPLETED else 'not over'}: {results}")
    is_right = results == ["paid 1200"] and not info.pending_signals and info.status == Status.COMPLETED
    print("the tool was called once, after the approval" if is_right else "WRONG")
    return 0 if is_right else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        asyncio.run(go_on())
    else:
        sys.exit(main())
