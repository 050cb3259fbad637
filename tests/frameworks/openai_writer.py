"""A process that adds items to a session, and takes some back.

    python -m tests.frameworks.openai_writer TARGET NAME N

It prints the items that it took, as JSON.
"""

from __future__ import annotations

import asyncio
import json
import sys
from typing import Any

from stateward.openai_agents import StatewardSession


async def main() -> None:
    """Adds N pairs of items; after every fifth pair it takes the newest item, whoever added it."""
    target, name, count = sys.argv[1:]
    taken: list[Any] = []
    async with StatewardSession("shared", target=target) as session:
        for number in range(int(count)):
            pair: list[Any] = [{"role": "user", "content": f"{name}-{number}-{part}"} for part in "ab"]
            await session.add_items(pair)
            if number % 5 == 4:
                taken.append(await session.pop_item())
    print(json.dumps(taken))


if __name__ == "__main__":
    asyncio.run(main())
