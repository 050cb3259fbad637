"""A person confirms a call of a tool of Google ADK, and `stateward run` starts the agent again.

    pip install '.[adk,sidecar,cli]'
    python examples/15_adk.py

The tool needs a confirmation, so the run ends with a request for it. `stateward waiting` shows the call, `stateward
approve` confirms it, and `stateward run --on-signal` starts this program again. The service makes the user's message
of it, and the agent's next event acknowledges it. A script stands for the model.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

from stateward import Client, Status
from stateward.testing import run_daemon

try:
    from google.adk.agents import LlmAgent
    from google.adk.models.base_llm import BaseLlm
    from google.adk.models.llm_response import LlmResponse
    from google.adk.runners import Runner
    from google.adk.tools.function_tool import FunctionTool
    from google.genai import types

    from stateward.adk import StatewardSessionService
except ModuleNotFoundError as error:
    sys.exit(f"{error}; run in the clone: pip install '.[adk]'")

USER, SESSION = "ana", "9"
THREAD = f"adk/sessions/trips/{USER}/{SESSION}"


class ScriptedLlm(BaseLlm):
    """Stands for a model."""

    replies: list[Any]

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        """The next reply."""
        yield LlmResponse(content=types.ModelContent(self.replies.pop(0)))


def pay(amount: int) -> str:
    """Pays."""
    return f"paid {amount}"


async def talk(service: StatewardSessionService, message: types.Content, *replies: Any) -> None:
    """Runs the agent for one message; `replies` stand for what the model says."""
    tool, model = FunctionTool(pay, require_confirmation=True), ScriptedLlm(model="scripted", replies=list(replies))
    agent = LlmAgent(name="travel", model=model, tools=[tool])
    runner = Runner(app_name="trips", agent=agent, session_service=service, auto_create_session=True)
    async for _ in runner.run_async(user_id=USER, session_id=SESSION, new_message=message):
        pass


async def begin() -> None:
    """The first start: the run stops where a person must decide."""
    call = types.Part(function_call=types.FunctionCall(name="pay", args={"amount": 1200}))
    async with StatewardSessionService() as service:
        await talk(service, types.UserContent("Book the Lutetia"), [call])


async def go_on() -> None:
    """What `stateward run` starts when somebody has answered."""
    app, user, session = os.environ["STATEWARD_THREAD"].removeprefix("adk/sessions/").split("/")
    async with StatewardSessionService(namespace=os.environ["STATEWARD_NAMESPACE"]) as service:
        message = await service.answers(app_name=app, user_id=user, session_id=session)
        if message is not None:  # else another signal started it
            await talk(service, message, "Booked.")


def main() -> int:
    """Returns 0 if the tool was called once, after the confirmation."""
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
            events = list(client.thread(THREAD).hydrate().logs["events"])
    parts = [part for event in events for part in (event.get("content") or {}).get("parts", [])]
    found = [part["function_response"]["response"] for part in parts if part.get("function_response")]
    results = [each["result"] for each in found if "result" in each]
    print(f"{info.name} is {'completed' if info.status == Status.COMPLETED else 'not over'}: {results}")
    is_right = results == ["paid 1200"] and not info.pending_signals and info.status == Status.COMPLETED
    print("the tool was called once, after the confirmation" if is_right else "WRONG")
    return 0 if is_right else 1


if __name__ == "__main__":
    if sys.argv[1:] == ["agent"]:
        asyncio.run(go_on())
    else:
        sys.exit(main())
