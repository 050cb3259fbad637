"""The stream of a blocking writer. `aio.call` is the pair of this file."""

from __future__ import annotations

from typing import Any

from stateward._io.blocking.connection import Connection
from stateward._io.blocking.stream import close_at_exit
from stateward._io.channel import Reaching
from stateward.errors import StatewardError


class WriterCall:
    """The stream of a writer."""

    def __init__(self, session: Reaching[Connection]) -> None:
        self._session = session
        self._is_closed = False
        connection = session.connected()
        self._stream = connection.open("Write", None)
        connection.streams.add(self)
        close_at_exit(self)

    def put(self, message: Any) -> None:
        """Sends a message; None = there are no more. The next `take` raises the error of a failed `put`."""
        if message is None:
            self._stream.done_writing()
        else:
            self._stream.write(message)

    def take(self, seconds: float | None) -> Any:
        """Returns the next message, or END. Raises ServerUnavailable if none comes within this many seconds."""
        try:
            message = self._stream.read(seconds)
        except StatewardError as error:
            self._session.has_met_daemon |= bool(error.reason)
            raise
        self._session.has_met_daemon = True
        return message

    def close(self) -> None:
        """Ends the stream without waiting. The lease lasts until its term ends or the daemon notices the end."""
        if not self._is_closed:
            self._is_closed = True
            self._stream.cancel()
