"""Saving while an agent works: after steps, by a timer, at the end, and before risky steps."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from stateward._frames import ends_at_the_caller
from stateward._io.aio.background import Alarm, Background, Lock, running_loop, settled
from stateward._io.aio.driving import keep_up
from stateward._io.aio.session import AsyncSession
from stateward._io.sigterm import Sigterm
from stateward._operations.before import Check, RiskyStep, Save, plan_step
from stateward._operations.cadence import Cadence, report_loss
from stateward._operations.effects import TERM_S, Plan
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import ThreadRef
from stateward.arguments import function
from stateward.durations import Duration
from stateward.errors import ClaimLost
from stateward.models import Checkpoint, Status
from stateward.state import State

# How often the timer looks whether SIGTERM came: a handler may not wake it, as it could hold the timer's lock.
LOOK_S = 0.25


@ends_at_the_caller
class AsyncAutosave:
    """Saves a state while an agent works. `AsyncThread.autosave` makes it; use it as a context manager."""

    def __init__(
        self,
        session: AsyncSession,
        ref: ThreadRef,
        cadence: Cadence,
        sigterm_status: Status | str | None,
    ) -> None:
        """`sigterm_status` is the status of the final save after SIGTERM; None = SIGTERM is not handled."""
        self._session = session
        self._ref = ref
        self._cadence = cadence
        self._lock = Lock()
        self._wake = Alarm()
        self._timer: Background | None = None
        self._is_open, self._pid = False, os.getpid()
        self._sigterm = Sigterm()
        self._sigterm_status = sigterm_status

    @property
    def state(self) -> State:
        """The state that is saved."""
        return self._cadence.state

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The last version that this object saved; None = none yet."""
        return self._cadence.last

    @property
    def error(self) -> BaseException | None:
        """The error of a save in the background, until the next step raises it or a later save succeeds."""
        return self._cadence.error

    @property
    def lock(self) -> Lock:
        """The lock that is held while the state changes or is saved; see `changing`. Reading this property starts the
        timer."""
        self._start_timer()
        return self._lock

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[State]:
        """Surrounds a change of the state. Waits while a save is under way.

        After its first use, the state counts as whole outside of these blocks, and the timer saves it there. So put
        every change into such a block, with asyncio also changes without an await.
        """
        async with self.lock:
            yield self.state

    async def step(self, **options: Unpack[SaveOptions]) -> Checkpoint | None:
        """Says that a step is done and the state is whole. Saves now, or with `after_each_step=False` when a save is
        due.

        Returns None if nothing changed or no save is due. Raises the error of a save in the background, unless a retry
        succeeded. After SIGTERM this call makes the final save, and the process then ends as it would have.
        """
        async with self._lock:
            if not self._is_open:
                raise RuntimeError("this autosave is not open: use it with `async with`")
            if self._sigterm.is_pending:
                return await self._end(options)
            return await self._session.run(self._cadence.step(options))

    def before(
        self,
        name: str,
        *,
        key: str = "",
        check: Check | None = None,
        term: Duration = TERM_S,
        wait: Duration | None = None,
        **options: Unpack[SaveOptions],
    ) -> AsyncBeforeStep:
        """Does what `thread.before` does, with this state.

        The save has the step and metrics that were given last, and the options and windows of this autosave; `options`
        add to these or replace them.
        """
        save = partial(self._cadence.before, name, options)
        plan = plan_step(name, key, term, wait)
        return AsyncBeforeStep(self._session, self._ref, plan, save, check, self._lock)

    async def open(self) -> Self:
        """Begins to save.

        With `on_sigterm` it raises ValueError outside of the main thread. With asyncio it raises RuntimeError if the
        event loop has a handler for SIGTERM that cannot be replaced (uvloop).
        """
        if self._sigterm_status is not None:
            self._sigterm.install(running_loop())
        self._is_open, self._pid = True, os.getpid()
        return self

    async def close(self) -> None:
        """Makes the final save and stops. Closing again does nothing."""
        await self._close(None)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)

    async def _close(self, error: BaseException | None) -> None:
        if not self._is_open or self._pid != os.getpid():  # a forked child saves nothing of its parent
            return
        self._is_open = False
        self._wake.set()
        try:
            if self._timer is not None:
                await self._timer.ended()
            if error is not None:
                await self._finish_after(error)
            elif self._sigterm.is_pending:
                await self._end({})
            else:
                await self._session.run(self._cadence.finish())
        finally:
            self._sigterm.restore()

    async def _finish_after(self, error: BaseException) -> None:
        came = self._sigterm.is_pending
        try:
            await self._session.run(self._cadence.finish_after_error(self._sigterm_status if came else None))
        except Exception as failure:  # noqa: BLE001  what ended the block is what its caller must see
            error.add_note(f"and the last steps were not saved: {failure}")
            if came:
                report_loss(failure)

    async def _end(self, options: SaveOptions) -> Checkpoint | None:
        """Makes the final save after SIGTERM, then hands the signal over. Returns only if the process does not end."""
        try:
            checkpoint: Checkpoint | None = await self._session.run(self._cadence.finish(self._sigterm_status, options))
        except Exception as error:
            report_loss(error)  # the process may not live to raise it
            raise
        finally:
            self._sigterm.hand_over()
        return checkpoint

    def _start_timer(self) -> None:
        if self._timer is None and self._is_open:
            self._timer = Background("stateward-autosave", self._tick)

    async def _tick(self) -> None:
        while self._is_open:
            wait_s = self._cadence.wait_s()
            if wait_s and not self._sigterm.is_pending:
                await self._wake.wait(wait_s if self._sigterm_status is None else min(wait_s, LOOK_S))
                continue
            async with self._lock:
                if self._is_open:
                    await self._save_in_background()

    async def _save_in_background(self) -> None:
        came = self._sigterm.is_pending
        await self._session.run(self._cadence.in_background(self._sigterm_status if came else None))
        if came:
            if self._cadence.error is not None:
                report_loss(self._cadence.error)
            self._sigterm.hand_over()
            await self._wake.wait(1.0)  # the main thread is about to end the process


@ends_at_the_caller
class AsyncBeforeStep:
    """The result of `AsyncThread.before`, to be used as a context manager."""

    def __init__(
        self,
        session: AsyncSession,
        ref: ThreadRef,
        plan: Plan,
        save: Save,
        check: Check | None,
        lock: Lock,
    ) -> None:
        self._session = session
        self._step = RiskyStep(ref, session.holder.to_proto(), session.daemon, plan)
        self._ended = Alarm()
        self._save = save
        self._check = None if check is None else function(check, "check")
        if not hasattr(lock, "__aenter__"):
            raise TypeError(f"lock takes a lock, not {lock!r:.100}")
        self._lock = lock

    async def __aenter__(self) -> RiskyStep:
        async with self._lock:
            must_check = await self._session.run(self._step.enter(self._save, self._check is not None))
        if not self._step.done:
            Background("stateward-renewal", self._keep)
        if must_check:
            assert self._check is not None
            try:
                found = await settled(self._check(self._step.idempotency_key))
            except BaseException:
                self._ended.set()
                await self._session.run(self._step.give_up())
                raise
            await self._learn(found)
        return self._step

    async def _learn(self, found: Any) -> None:
        try:
            await self._session.run(self._step.learn(found))
        except BaseException:
            self._ended.set()
            raise
        if self._step.done:
            self._ended.set()

    async def _keep(self) -> None:
        step = self._step
        await keep_up(self._ended, step.interval_s, lambda: self._session.run(step.renew()), ClaimLost)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()
        await self._session.run(self._step.leave(error))
