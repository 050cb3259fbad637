"""The content of a blob as messages, for asyncio clients."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, AsyncIterator

from stateward.blobs import Content, slices
from stateward.v1.blob_service_pb2 import BlobBegin, WriteBlobRequest


async def messages_of(begin: BlobBegin, content: Content) -> AsyncIterator[WriteBlobRequest]:
    """Yields the messages that write a blob. An error of the source of its bytes is raised unchanged."""
    yield WriteBlobRequest(begin=begin)
    async for piece in _each(content):
        for part in slices(piece):
            yield WriteBlobRequest(data=part)


async def _each(content: Content) -> AsyncIterator[bytes]:
    pieces = content.pieces()
    if isinstance(pieces, AsyncIterable):
        async for piece in pieces:
            yield piece
        return
    iterator = iter(pieces)

    def step() -> bytes | None:
        return next(iterator, None)

    # Files are read on another thread, so that they do not block the event loop.
    while (found := await asyncio.to_thread(step) if content.is_blocking else step()) is not None:
        yield found
