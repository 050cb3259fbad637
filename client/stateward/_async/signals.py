"""Signals for asyncio. The twin of `_sync_signals`, which has the docs."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from stateward import _listing, _signals, _sync_signals
from stateward._async_io import AsyncStream
from stateward._saving import SaveOptions
from stateward._shell import documented_as
from stateward._signals import AnswerReader, SignalReader
from stateward.errors import Fenced
from stateward.models import Durability, ThreadInfo
from stateward.signals import ANSWER, APPROVE, REJECT, Signal, Wake
from stateward.state import State

if TYPE_CHECKING:
    from stateward._async import AsyncClient


class AsyncSignalStream(AsyncStream[Wake]):
    """What waits already, then what comes."""

    _reader: SignalReader
    _has_listed = False

    async def _pump(self) -> bool:
        goes_on = await super()._pump()
        if goes_on and not self._has_listed:
            waiting = await self._client._run(self._reader.waiting())
            self._reading.ready.extendleft(reversed(waiting))
            self._has_listed = True
        return goes_on


@documented_as(_sync_signals.Signalling)
class AsyncSignalling:
    """What `AsyncClient` has."""

    if TYPE_CHECKING:
        namespace: str
        _run: Any
        _read_list: Any
        _reading: Any

    def waiting(self, *, labels: Mapping[str, str] | None = None) -> AsyncIterator[ThreadInfo]:
        found: AsyncIterator[ThreadInfo] = self._read_list(
            _listing.ThreadList.next_page, _listing.ThreadList(_signals.list_waiting(self.namespace, labels))
        )
        return found

    async def send(
        self,
        thread: str,
        name: str,
        payload: Any = None,
        *,
        sender: str = "",
        wait_id: str = "",
        durability: Durability | str | None = None,
        request_id: str | None = None,
    ) -> Signal:
        sent: Signal = await self._run(
            _signals.send(self.namespace, thread, name, payload, sender, wait_id, durability, request_id)
        )
        return sent

    async def answer(
        self,
        thread: str,
        value: Any,
        *,
        sender: str = "",
        wait_id: str | None = None,
        durability: Durability | str | None = None,
        request_id: str | None = None,
    ) -> Signal:
        return await self._answer(thread, ANSWER, value, sender, wait_id, durability, request_id)

    async def approve(
        self,
        thread: str,
        note: str | None = None,
        *,
        sender: str = "",
        wait_id: str | None = None,
        durability: Durability | str | None = None,
        request_id: str | None = None,
    ) -> Signal:
        return await self._answer(thread, APPROVE, note, sender, wait_id, durability, request_id)

    async def reject(
        self,
        thread: str,
        reason: str | None = None,
        *,
        sender: str = "",
        wait_id: str | None = None,
        durability: Durability | str | None = None,
        request_id: str | None = None,
    ) -> Signal:
        return await self._answer(thread, REJECT, reason, sender, wait_id, durability, request_id)

    def watch_signals(self, *, labels: Mapping[str, str] | None = None) -> AsyncStream[Wake]:
        reader = SignalReader(self.namespace, labels)
        stream = AsyncSignalStream(self, self._reading(reader))  # type: ignore[arg-type]
        stream._reader = reader
        return stream

    async def _answer(self, thread: str, *what: Any) -> Signal:
        sent: Signal = await self._run(_signals.answer(self.namespace, thread, *what))
        return sent


@documented_as(_sync_signals.Asking)
class AsyncAsking:
    """What `AsyncThread` has."""

    if TYPE_CHECKING:
        _ref: Any
        _run: Any

    async def ask(
        self,
        state: State,
        prompt: str,
        schema: Any = None,
        *,
        reason: str = "",
        **options: Unpack[SaveOptions],
    ) -> str:
        asked: str = await self._run(_signals.ask(self._ref, state, prompt, schema, reason, options))
        return asked

    async def signals(self) -> list[Signal]:
        found: list[Signal] = await self._run(_signals.list_signals(self._ref))
        return found

    async def answer_to(self, wait_id: str) -> Signal | None:
        found: Signal | None = await self._run(_signals.answer_to(self._ref, wait_id))
        return found

    async def wait_for_answer(
        self,
        wait_id: str | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109  as in the blocking twin
        look_again: float = _signals.LOOK_AGAIN_S,
    ) -> Signal:
        end = None if timeout is None else time.monotonic() + timeout
        if not wait_id:
            try:
                async with asyncio.timeout(timeout):
                    wait_id = str(await self._run(_signals.find_asked(self._ref)))
            except TimeoutError:
                raise _signals.no_answer(self._ref, None, timeout) from None
        while True:
            for_s = look_again if end is None else min(look_again, end - time.monotonic())
            found = await self._wait_for(wait_id, max(for_s, 0.001))
            if found is not None:
                return found
            if end is not None and time.monotonic() >= end:
                raise _signals.no_answer(self._ref, wait_id, timeout)

    async def _wait_for(self, wait_id: str, for_s: float) -> Signal | None:
        client: AsyncClient = self._client  # type: ignore[attr-defined]
        stream = client._open(AnswerReader(self._ref, wait_id))
        try:
            async with asyncio.timeout(for_s):
                await stream._pump()
                found: Signal | None = await self._run(_signals.find_answer(self._ref, wait_id))
                return found if found is not None else await anext(stream, None)
        except (Fenced, TimeoutError):
            return None
        finally:
            await stream.close()
