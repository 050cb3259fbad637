"""The content of a blob as messages, for asyncio clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator
from typing import Any

from google.protobuf.message import Message

from stateward.blobs import Content


async def messages_of(begin: Message, content: Content) -> AsyncIterator[Message]:
    """Yields the messages of an upload. An error of the source of its bytes is raised unchanged."""
    yield content.begin(begin)
    async for piece in _each(content):
        for message in content.parts(piece):
            yield message


async def _each(content: Content) -> AsyncIterator[Any]:
    pieces = content.pieces()
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
        return
    iterator = iter(pieces)

    def step() -> Any:
        return next(iterator, None)

    # Files are read on another thread, so that they do not block the event loop.
    while (found := await asyncio.to_thread(step) if content.is_blocking else step()) is not None:
        yield found
