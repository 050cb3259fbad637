"""The stream of threads whose agents have signals to handle."""

from __future__ import annotations

from stateward._io.aio.session import AsyncSession
from stateward._io.aio.stream import AsyncStream
from stateward._operations.signals import SignalReader
from stateward.signals import Wake


class AsyncSignalStream(AsyncStream[Wake]):
    """Streams the threads that have signals already, then each thread to which a signal comes."""

    def __init__(self, session: AsyncSession, reader: SignalReader) -> None:
        super().__init__(session, session.reading(reader))
        self._run = session.run
        self._reader = reader
        self._has_listed = False

    async def _pump(self) -> bool:
        goes_on = await super()._pump()
        if goes_on and not self._has_listed:
            waiting = await self._run(self._reader.waiting())
            self._reading.ready.extendleft(reversed(waiting))
            self._has_listed = True
        return goes_on
