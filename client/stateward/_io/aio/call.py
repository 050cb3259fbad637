"""The stream of an asyncio writer. `blocking.call` is the pair of this file."""

from __future__ import annotations

import asyncio
from typing import Any

from stateward._io.aio.connection import Connection
from stateward._io.channel import Reaching
from stateward.errors import ServerUnavailable, StatewardError


class WriterCall:
    """The stream of a writer. If a wait is cancelled, the next one waits for the same message."""

    def __init__(self, session: Reaching[Connection]) -> None:
        self._session = session
        connection = session.connected()
        self._stream = connection.open("Write", None)
        self._reading: asyncio.Future[Any] | None = None
        connection.streams.add(self)

    async def put(self, message: Any) -> None:
        """Sends a message; None = there are no more. The next `take` raises the error of a failed `put`."""
        if message is None:
            await self._stream.done_writing()
        else:
            await self._stream.write(message)

    async def take(self, seconds: float | None) -> Any:
        """Returns the next message, or END. Raises ServerUnavailable if none comes within this many seconds."""
        if self._reading is None:
            self._reading = asyncio.ensure_future(self._stream.read())
        done, _ = await asyncio.wait([self._reading], timeout=seconds)
        if not done:
            await self.close()
            raise ServerUnavailable("the daemon did not answer in time", code="DEADLINE_EXCEEDED")
        reading, self._reading = self._reading, None
        if reading.cancelled():
            raise ServerUnavailable("the writer's stream was ended here", code="CANCELLED")
        try:
            message = reading.result()
        except StatewardError as error:
            self._session.has_met_daemon |= bool(error.reason)
            raise
        self._session.has_met_daemon = True
        return message

    async def close(self) -> None:
        """Ends the stream."""
        self._stream.cancel()
        # The event loop of an unfinished read may be idle, and would never end it for a `close` on another loop.
        if self._reading is not None and self._reading.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([self._reading])
            if not self._reading.cancelled():
                self._reading.exception()  # else asyncio logs that it was never retrieved
