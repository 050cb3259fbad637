"""Sessions of the OpenAI Agents SDK in Stateward. Needs the extra `openai-agents`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stateward._async.client import AsyncClient
from stateward._connected import Connected
from stateward._keeping import keep, kept
from stateward._naming import name_for
from stateward._settling import settle
from stateward.changes import LogTrimmed
from stateward.errors import VersionMismatch

if TYPE_CHECKING:
    from agents.items import TResponseInputItem
    from agents.memory.session_settings import SessionSettings

__all__ = ["StatewardSession"]

LOG = "items"


class StatewardSession(Connected):
    """The history of one conversation, as a thread of Stateward with a log of items.

    It implements the SDK's `Session`. Adding items sends these items only, and they are durable when `add_items`
    returns. Any number of processes may use one session: none of their items is lost, and all see one order.

    A call that writes and is cancelled ends its write first, as the SDK's own sessions do: when CancelledError comes,
    the write is done, or never will be.

    `session_id` is the thread's name; an id that no thread can have is escaped. `client` is an AsyncClient that you
    keep; without it the session makes one from `target`, `namespace` and the further options of
    `stateward.AsyncClient`, and `close` closes it.
    """

    def __init__(
        self,
        session_id: str,
        *,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        session_settings: SessionSettings | None = None,
        **options: Any,
    ) -> None:
        self.session_id = session_id
        self.session_settings = session_settings
        super().__init__(client, target, namespace, options)
        self._thread = self._client.thread(name_for(session_id))

    async def get_items(self, limit: int | None = None) -> list[TResponseInputItem]:
        """Returns the newest `limit` items, oldest first; None = the limit of `session_settings`, or all."""
        if limit is None and self.session_settings is not None:
            limit = self.session_settings.limit
        last = None if limit is None or limit < 0 else limit
        state = await self._thread.hydrate(logs={LOG: last})
        return [kept(item) for item in state.logs[LOG]]

    async def add_items(self, items: list[TResponseInputItem]) -> None:
        """Adds items at the end: all of them, or none if this raises.

        Raises TypeError or ValueError for an item that is no JSON, with the place of what is wrong.
        """
        if items:
            encoded = [keep(item, f"items[{index}]") for index, item in enumerate(items)]
            await settle(self._thread.append(LOG, *encoded))

    async def pop_item(self) -> TResponseInputItem | None:
        """Removes the newest item and returns it; None = there is none. Two callers never get the same item."""
        return await settle(self._pop())

    async def _pop(self) -> TResponseInputItem | None:
        while True:
            state = await self._thread.hydrate(logs={LOG: 1})
            log = state.logs[LOG]
            if not len(log):
                return None
            item: TResponseInputItem = kept(log[-1])
            try:
                await self._thread.apply([LogTrimmed(LOG, from_index=log.next_index - 1)], parent=state.checkpoint)
            except VersionMismatch:
                continue  # somebody added or removed an item since
            return item

    async def clear_session(self) -> None:
        """Removes the session: its thread with all versions and its key. A later item makes a new one."""
        await settle(self._thread.delete(missing_ok=True))
