"""How an adapter ends a write that its caller cancels."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def settle(write: Coroutine[Any, Any, T]) -> T:
    """Carries out a write to its end, and returns its result.

    If the caller is cancelled meanwhile, CancelledError comes after the write has ended: what it stores is there then,
    or never comes. So a caller that catches the error can read what is stored. The wait is bounded as the write itself
    is: a call is retried for `retry_timeout` seconds at most.
    """
    task = asyncio.get_running_loop().create_task(write)
    cancelled: asyncio.CancelledError | None = None
    while not task.done():
        try:
            await asyncio.shield(task)
        except asyncio.CancelledError as error:
            if not task.cancelled():
                cancelled = cancelled or error
        except BaseException:
            if not task.done():  # not the task's own: whoever runs this coroutine ends it, such as with GeneratorExit
                raise
            break  # its result raises it
    if cancelled is not None:
        if not task.cancelled():
            task.exception()  # else asyncio logs that it was never retrieved
        raise cancelled
    return task.result()
