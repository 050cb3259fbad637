"""`thread.signals`: messages to the agent of a thread."""

from __future__ import annotations

import builtins
from typing import Any, Unpack

from stateward._frames import ends_at_the_caller
from stateward._io.aio.session import AsyncSession
from stateward._operations import signals
from stateward._operations.signals import SignalOptions
from stateward._operations.steps import ThreadRef
from stateward.models import Checkpoint
from stateward.signals import Signal


@ends_at_the_caller
class AsyncSignals:
    """The signals of a thread: messages that wait until its agent acknowledges them with a save.

    An answer to a question is a signal, too: `thread.answer` sends it.
    """

    def __init__(self, session: AsyncSession, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r})"

    async def send(self, name: str, payload: Any = None, **options: Unpack[SignalOptions]) -> Signal:
        """Sends a message to the thread's agent. The payload has at most 512 KiB.

        The message stays until a save acknowledges it. A lease keeps nobody from sending. With a `wait_id` the thread
        must wait for exactly that, else StaleAnswer. Raises QuotaExceeded if 1,024 messages wait already. With an
        archive the daemon attaches a free thread; raises NotOwner if another sidecar holds the thread.
        """
        return await self._session.run(signals.send(self._ref, name, payload, **options))

    async def list(self, *, acknowledged_by: Checkpoint | int | None = None) -> builtins.list[Signal]:
        """Returns the signals that no save has acknowledged yet, oldest first; `hydrate` has them as `state.signals`.

        With `acknowledged_by` those that this version acknowledged, such as the answer that it used. They are kept as
        long as the version; a backup does not have them.
        """
        return await self._session.run(signals.list_signals(self._ref, acknowledged_by))
