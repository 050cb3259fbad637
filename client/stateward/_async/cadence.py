"""The same for asyncio. The twin of `_sync_cadence`, which has the docs."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from concurrent.futures import CancelledError
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from stateward import _before, _sync_cadence
from stateward._before import TERM_S, Check, RiskyStep, Save
from stateward._cadence import Cadence, check_sigterm, report_loss
from stateward._marks import FINAL_SAVE_S
from stateward._operations import Operation, ThreadRef
from stateward._saving import SaveOptions
from stateward._shell import documented_as
from stateward._sigterm import Sigterm
from stateward._sync_cadence import GRACE_S
from stateward.models import Checkpoint, Status
from stateward.state import State
from stateward.window import Summarise, Window, estimate_tokens

if TYPE_CHECKING:
    from stateward._async import AsyncClient

T = TypeVar("T")


class TaskLock:
    """A lock that its task may take again, as `threading.RLock` is for threads."""

    def __init__(self) -> None:
        self._lock = asyncio.Lock()
        self._holder: asyncio.Task[Any] | None = None
        self._depth = 0

    @property
    def is_taken(self) -> bool:
        """Whether a task holds it."""
        return self._lock.locked()

    async def __aenter__(self) -> None:
        task = asyncio.current_task()
        if self._holder is not task:
            await self._lock.acquire()
            self._holder = task
        self._depth += 1

    async def __aexit__(self, *error: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            self._holder = None
            self._lock.release()


@documented_as(_sync_cadence.Autosave)
class AsyncAutosave:
    """Saves a state while an agent works; `AsyncThread.autosave` makes it. Use it with `async with`."""

    def __init__(
        self, thread: AsyncThreadCadence, cadence: Cadence, sigterm_grace_s: float | None, status: Status | str
    ) -> None:
        self._run: Callable[[Operation[Any]], Awaitable[Any]] = thread._run
        self._thread = thread
        self._cadence = cadence
        self._lock = TaskLock()
        self._wake = asyncio.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._timer: asyncio.Task[None] | None = None
        self._is_open = False
        self._sigterm = None if sigterm_grace_s is None else Sigterm(sigterm_grace_s, self._wake_soon, self._save_mark)
        self._sigterm_status = status

    @property
    def state(self) -> State:
        """What is saved."""
        return self._cadence.state

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The version that was saved last by this object; None = none yet."""
        return self._cadence.last

    @property
    def error(self) -> BaseException | None:
        """What a save in the background met, until it is raised by the next step, or a later save succeeds."""
        return self._cadence.error

    @property
    def lock(self) -> TaskLock:
        """Held while the state changes or is saved; see `changing`. To ask for it starts the timer."""
        self._start_timer()
        return self._lock

    @asynccontextmanager
    async def changing(self) -> AsyncIterator[State]:
        """Around every change of the state, also those without an await, as in `Autosave`."""
        async with self.lock:
            yield self.state

    async def step(self, **options: Unpack[SaveOptions]) -> Checkpoint | None:
        async with self._lock:
            if not self._is_open:
                raise RuntimeError("this autosave is not open: use it with `async with`")
            if self._is_asked_to_end():
                return await self._end(options)
            checkpoint: Checkpoint | None = await self._run(self._cadence.step(options))
            return checkpoint

    def before(
        self,
        name: str,
        *,
        key: str = "",
        check: Check | None = None,
        term: float = TERM_S,
        **options: Unpack[SaveOptions],
    ) -> AsyncBeforeStep:
        save = partial(self._cadence.before, name, options)
        return self._thread._risky(name, save, key, check, term, self._lock)

    async def open(self) -> Self:
        self._loop = asyncio.get_running_loop()
        if self._sigterm is not None:
            self._sigterm.install(self._loop)
        self._is_open = True
        return self

    async def close(self) -> None:
        await self._close(None)

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(error)

    async def _close(self, error: BaseException | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._wake.set()
        if self._timer is not None:
            await self._timer
        try:
            if error is None and self._is_asked_to_end():
                await self._end({})
            elif error is None:
                await self._run(self._cadence.finish())
            else:
                await self._finish_after(error)
        finally:
            if self._sigterm is not None:
                self._sigterm.restore()

    async def _finish_after(self, error: BaseException) -> None:
        came = self._sigterm is not None and self._sigterm.is_pending
        try:
            await self._run(self._cadence.finish_after_error(self._sigterm_status if came else None))
        except Exception as failure:  # noqa: BLE001  what ended the block is what its caller must see
            error.add_note(f"and the last steps were not saved: {failure}")
            if came:
                report_loss(failure)

    def _is_asked_to_end(self) -> bool:
        return self._sigterm is not None and self._sigterm.is_pending and not self._sigterm.is_over

    async def _end(self, options: SaveOptions) -> Checkpoint | None:
        assert self._sigterm is not None
        try:
            checkpoint: Checkpoint | None = await self._run(self._cadence.end(self._sigterm_status, options))
        except Exception as error:
            report_loss(error)  # the process may not live to raise it
            await self._save_mark_and_end()
            raise
        finally:
            self._sigterm.hand_over()
        return checkpoint

    def _wake_soon(self) -> None:
        """On the thread that waits for SIGTERM."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop is closed: nobody waits
                self._loop.call_soon_threadsafe(self._wake.set)

    def _save_mark(self) -> None:
        """On the thread that waits for SIGTERM, as in `Autosave`; the loop does it, which a blocking call may keep."""
        assert self._sigterm is not None
        if self._loop is None or not self._sigterm.ends_process:  # of the loop nothing is asked then
            return
        try:
            asyncio.run_coroutine_threadsafe(self._save_mark_and_end(), self._loop).result(FINAL_SAVE_S)
        except TimeoutError:
            report_loss(TimeoutError("the event loop did not run, or the daemon did not answer"))
        except (RuntimeError, CancelledError):  # the loop is closed: nothing is left to be saved
            pass

    async def _save_mark_and_end(self) -> None:
        assert self._sigterm is not None
        if not self._sigterm.ends_process:
            return
        async with AsyncExitStack() as held:
            if not self._lock.is_taken:
                await held.enter_async_context(self._lock)
            try:
                await self._run(self._cadence.save_mark(self._sigterm_status))
            except Exception as error:  # noqa: BLE001  the process ends
                report_loss(error)
            finally:
                self._sigterm.hand_over()

    # -- the timer ------------------------------------------------------------------------------------------------

    def _start_timer(self) -> None:
        if self._timer is None and self._is_open:
            self._timer = asyncio.ensure_future(self._tick())

    async def _tick(self) -> None:
        while self._is_open:
            wait_s = self._cadence.wait_s()
            if wait_s and not self._is_asked_to_end():
                with suppress(TimeoutError):
                    async with asyncio.timeout(None if wait_s == float("inf") else wait_s):
                        await self._wake.wait()
                self._wake.clear()
                continue
            async with self._lock:
                if self._is_open:
                    await self._save_in_background()

    async def _save_in_background(self) -> None:
        if not self._is_asked_to_end():
            await self._run(self._cadence.in_background())
            return
        assert self._sigterm is not None
        await self._run(self._cadence.in_background(self._sigterm_status))
        if self._cadence.error is not None:
            report_loss(self._cadence.error)
            await self._save_mark_and_end()
        self._sigterm.hand_over()


@documented_as(_sync_cadence.BeforeStep)
class AsyncBeforeStep:
    """What `AsyncThread.before` returns, to be used with `async with`."""

    def __init__(
        self,
        run: Callable[[Operation[Any]], Awaitable[Any]],
        step: RiskyStep,
        save: Save,
        check: Check | None,
        lock: Any,
    ) -> None:
        self._run = run
        self._step = step
        self._save = save
        self._check = check
        self._lock = lock

    async def __aenter__(self) -> RiskyStep:
        async with self._lock:
            must_check = await self._run(self._step.enter(self._save, self._check is not None))
        if must_check:
            assert self._check is not None
            try:
                found = self._check(self._step.idempotency_key)
                if inspect.isawaitable(found):
                    found = await found
            except BaseException:
                await self._run(self._step.give_up())
                raise
            await self._run(self._step.learn(found))
        return self._step

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._run(self._step.leave(error))


@documented_as(_sync_cadence.ThreadCadence)
class AsyncThreadCadence:
    """Methods of `AsyncThread`."""

    _client: AsyncClient
    _ref: ThreadRef

    def autosave(
        self,
        state: State,
        *,
        every_s: float | None = 60.0,
        after_each_step: bool = True,
        windows: Iterable[Window] = (),
        on_sigterm: bool = False,
        grace_s: float = GRACE_S,
        sigterm_status: Status | str = Status.PAUSED,
        clock: Callable[[], float] = time.monotonic,
        **options: Unpack[SaveOptions],
    ) -> AsyncAutosave:
        check_sigterm(sigterm_status, grace_s)
        cadence = Cadence(
            self._ref,
            state,
            every_s=every_s,
            after_each_step=after_each_step,
            windows=tuple(windows),
            options=options,
            clock=clock,
        )
        return AsyncAutosave(self, cadence, grace_s if on_sigterm else None, sigterm_status)

    def before(
        self,
        name: str,
        state: State | None = None,
        *,
        key: str = "",
        check: Check | None = None,
        term: float = TERM_S,
        lock: Any = None,
        **options: Unpack[SaveOptions],
    ) -> AsyncBeforeStep:
        save = partial(_before.saving, self._ref, state, name, options)
        return self._risky(name, save, key, check, term, lock or TaskLock())

    def _risky(self, name: str, save: Save, key: str, check: Check | None, term: float, lock: Any) -> AsyncBeforeStep:
        client = self._client
        risky = RiskyStep(self._ref, client._identity.to_proto(), client.target, name, key or name, term)
        return AsyncBeforeStep(self._run, risky, save, check, lock)

    def window(
        self,
        log: str,
        *,
        keep_last: int | None = None,
        keep_tokens: int | None = None,
        summarise: Summarise | None = None,
        into: str = "summary",
        slack: float = 0.0,
        tokens: Callable[[Any], int] = estimate_tokens,
    ) -> Window:
        return Window(log, keep_last, keep_tokens, summarise, into, slack, tokens, self)

    async def _run(self, operation: Operation[T]) -> T:
        raise NotImplementedError
