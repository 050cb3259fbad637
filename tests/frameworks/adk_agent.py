"""An agent of ADK that kills itself before or after its n-th save.

    python -m tests.frameworks.adk_agent TARGET SESSION N before|after

It prints the session's events, as (author, text), and its state as JSON if it comes to its end.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Any

from google.adk.agents import LlmAgent
from google.adk.models import BaseLlm, LlmRequest, LlmResponse
from google.adk.runners import Runner
from google.adk.sessions.base_session_service import BaseSessionService
from google.adk.sessions.session import Session
from google.adk.tools.tool_context import ToolContext
from google.genai import types

from stateward._operations.steps import Call
from stateward.adk import StatewardSessionService

PLACE = {"app_name": "trips", "user_id": "ana"}


class ScriptedLlm(BaseLlm):
    """Calls the tool `price` first, then says what it was told and how much it has read."""

    async def generate_content_async(
        self, llm_request: LlmRequest, stream: bool = False
    ) -> AsyncGenerator[LlmResponse, None]:
        """Yields a partial answer, which nobody stores, and a whole one."""
        last = llm_request.contents[-1].parts[-1]  # type: ignore[index]
        if last.function_response is None:
            part = types.Part.from_function_call(name="price", args={"city": "Rome"})
        else:
            yield LlmResponse(content=types.ModelContent("It co"), partial=True)
            found = last.function_response.response
            part = types.Part(text=f"It costs {found} after {len(llm_request.contents)} contents.")
        yield LlmResponse(content=types.ModelContent([part]))


def price(city: str, tool_context: ToolContext) -> int:
    """The price of a trip."""
    state = tool_context.state
    state["asked"] = [*state.get("asked", []), city]
    state["user:trips"] = state.get("user:trips", 0) + 1
    state["app:trips"] = state.get("app:trips", 0) + 1
    state["temp:secret"] = city
    return 100 * len(city)


def runner_of(service: BaseSessionService) -> Runner:
    """The agent with its runner."""
    agent = LlmAgent(name="travel", model=ScriptedLlm(model="scripted"), tools=[price], output_key="said")
    return Runner(app_name="trips", agent=agent, session_service=service)


async def ask(service: BaseSessionService, session_id: str, text: str) -> None:
    """One turn of the conversation."""
    message = types.UserContent(text)
    async for _ in runner_of(service).run_async(user_id="ana", session_id=session_id, new_message=message):
        pass


def shown(session: Session | None) -> dict[str, Any]:
    """What of a session does not change from run to run."""
    assert session is not None
    events = [
        (event.author, [part.text or part.function_call or part.function_response for part in event.content.parts])  # type: ignore[union-attr]
        for event in session.events
        if event.content is not None
    ]
    return {
        "events": [(author, [getattr(part, "name", part) for part in parts]) for author, parts in events],
        "state": session.state,
    }


def aim(session: Any, nth: int, when: str) -> None:
    """Makes the n-th save the last thing that this process does."""
    perform, saves = session.perform, []

    async def aimed(step: Any) -> Any:
        is_save = isinstance(step, Call) and step.method in {"Save", "BatchSave"}
        if is_save:
            saves.append(step)
        is_aimed = is_save and len(saves) == nth
        if is_aimed and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        answer = await perform(step)
        if is_aimed:
            os.kill(os.getpid(), signal.SIGKILL)
        return answer

    session.perform = aimed


async def main() -> None:
    """One turn, in a new session or in one that is there."""
    target, session_id, nth, when = sys.argv[1:]
    async with StatewardSessionService(target=target) as service:
        aim(service._client._session, int(nth), when)
        if await service.get_session(**PLACE, session_id=session_id) is None:
            await service.create_session(**PLACE, session_id=session_id)
        await ask(service, session_id, "What does Rome cost?")
        print(json.dumps(shown(await service.get_session(**PLACE, session_id=session_id))))


if __name__ == "__main__":
    asyncio.run(main())
