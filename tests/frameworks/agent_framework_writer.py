"""A process whose agent talks in a session in which the agent of another process talks, too.

    python -m tests.frameworks.agent_framework_writer TARGET NAME N

It prints a line when it is ready, and begins when it reads one.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping, Sequence
from typing import Any

from agent_framework import Agent, BaseChatClient, ChatResponse, Message

from stateward.agent_framework import StatewardHistoryProvider


class EchoingClient(BaseChatClient[Any]):
    """A model that repeats the last message."""

    async def _inner_get_response(  # type: ignore[override]
        self, *, messages: Sequence[Message], stream: bool, options: Mapping[str, Any], **kwargs: Any
    ) -> ChatResponse:
        return ChatResponse(messages=[Message(role="assistant", contents=[f"re {messages[-1].text}"])])


async def main() -> None:
    """Runs the agent N times."""
    target, name, count = sys.argv[1:]
    async with StatewardHistoryProvider(target=target) as provider:
        agent = Agent(EchoingClient(), context_providers=[provider])
        session = agent.create_session(session_id="shared")
        print("ready", flush=True)
        await asyncio.to_thread(sys.stdin.readline)
        for number in range(int(count)):
            assert (await agent.run(f"{name}-{number}", session=session)).text == f"re {name}-{number}"


if __name__ == "__main__":
    asyncio.run(main())
