"""A process that appends events to a session of ADK, beside others that do the same.

    python -m tests.frameworks.adk_writer TARGET NAME N

Event number n of NAME sets the key NAME of the app, of the user and of the session to n. The process prints how often
it was too late, and read the session again.
"""

from __future__ import annotations

import asyncio
import sys
from typing import Any

from google.adk.errors import StaleSessionError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.genai import types

from stateward.adk import StatewardSessionService

PLACE = {"app_name": "trips", "user_id": "ana", "session_id": "shared"}


def event_of(name: str, number: int) -> Event:
    """Event number `number` of a writer."""
    delta: dict[str, Any] = {f"app:{name}": number, f"user:{name}": number, name: number}
    content = types.UserContent(f"{name}-{number}")
    return Event(invocation_id="i", author=name, content=content, actions=EventActions(state_delta=delta))


async def main() -> None:
    """Appends N events."""
    target, name, count = sys.argv[1:]
    late = 0
    async with StatewardSessionService(target=target) as service:
        for number in range(1, int(count) + 1):
            while True:
                session = await service.get_session(**PLACE)  # type: ignore[arg-type]
                assert session is not None
                try:
                    await service.append_event(session, event_of(name, number))
                    break
                except StaleSessionError:
                    late += 1
    print(late)


if __name__ == "__main__":
    asyncio.run(main())
