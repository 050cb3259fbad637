"""An agent of Strands in a process that kills itself before or after its n-th save.

    python -m tests.frameworks.strands_agent TARGET SESSION N before|after

It prints the agent's messages as JSON if it comes to its end.
"""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import AsyncGenerator
from typing import Any

from strands import Agent, tool
from strands.models.model import Model
from strands.session import SnapshotSessionManager
from strands.storage import Storage

from stateward._operations.steps import Call
from stateward.strands import StatewardStorage


class ScriptedModel(Model):
    """Calls the tool `price` first, then says how many messages it has read."""

    def update_config(self, **model_config: Any) -> None:
        """It has none."""

    def get_config(self) -> Any:
        """It has none."""
        return {}

    def structured_output(self, *args: Any, **kwargs: Any) -> Any:
        """It has none."""
        raise NotImplementedError

    async def stream(self, messages: Any, *args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:  # type: ignore[override]
        """Yields one message."""
        yield {"messageStart": {"role": "assistant"}}
        if any("toolResult" in content for content in messages[-1]["content"]):
            yield {"contentBlockDelta": {"delta": {"text": f"It costs 400 after {len(messages)} messages."}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "end_turn"}}
        else:
            yield {"contentBlockStart": {"start": {"toolUse": {"name": "price", "toolUseId": f"use-{len(messages)}"}}}}
            yield {"contentBlockDelta": {"delta": {"toolUse": {"input": '{"city": "Rome"}'}}}}
            yield {"contentBlockStop": {}}
            yield {"messageStop": {"stopReason": "tool_use"}}


@tool
def price(city: str) -> str:
    """The price of a trip."""
    return str(100 * len(city))


def agent_of(storage: Storage, session_id: str) -> Agent:
    """The agent of a session, which has what is stored."""
    manager = SnapshotSessionManager(session_id, storage=storage, save_latest_on="message")
    return Agent(
        model=ScriptedModel(), tools=[price], session_manager=manager, agent_id="travel", callback_handler=None
    )


def shown(agent: Agent) -> list[Any]:
    """What of an agent's messages does not change from run to run."""
    return [{"role": message["role"], "content": message["content"]} for message in agent.messages]


def aim(session: Any, nth: int, when: str) -> None:
    """Makes the n-th save the last thing that this process does."""
    perform, saves = session.perform, []

    async def aimed(step: Any) -> Any:
        is_save = isinstance(step, Call) and step.method == "Save"
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


def main() -> None:
    """One turn."""
    target, session_id, nth, when = sys.argv[1:]
    storage = StatewardStorage(target=target)
    aim(storage._client._session, int(nth), when)
    agent = agent_of(storage, session_id)
    agent("What does Rome cost?")
    print(json.dumps(shown(agent)))


if __name__ == "__main__":
    main()
