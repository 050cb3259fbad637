"""The part of `Thread` that saves by itself: after steps, by the clock, at the end, before what is risky."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar, Unpack

from stateward import _before
from stateward._before import TERM_S, Check, RiskyStep, Save
from stateward._cadence import Cadence, check_sigterm, report_loss
from stateward._operations import Operation, ThreadRef
from stateward._saving import SaveOptions
from stateward._sigterm import Sigterm
from stateward.models import Checkpoint, Status
from stateward.state import State
from stateward.window import Summarise, Window, estimate_tokens

if TYPE_CHECKING:
    from stateward._sync import Client

T = TypeVar("T")
GRACE_S = 20.0


class Autosave:
    """Saves a state while an agent works; `Thread.autosave` makes it. Use it with `with`, or `open` and `close` it."""

    def __init__(
        self, thread: ThreadCadence, cadence: Cadence, sigterm_grace_s: float | None, status: Status | str
    ) -> None:
        self._run: Callable[[Operation[Any]], Any] = thread._run
        self._thread = thread
        self._cadence = cadence
        self._lock = threading.RLock()
        self._wake = threading.Event()
        self._timer: threading.Thread | None = None
        self._is_open = False
        self._sigterm = None if sigterm_grace_s is None else Sigterm(sigterm_grace_s, self._wake.set, self._save_mark)
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
    def lock(self) -> AbstractContextManager[Any]:
        """Held while the state changes or is saved; see `changing`. To ask for it starts the timer."""
        self._start_timer()
        return self._lock

    @contextmanager
    def changing(self) -> Iterator[State]:
        """Around every change of the state: from the first use on the state counts as whole outside of these blocks,
        and the timer saves it there by itself. Waits while a save is under way."""
        with self.lock:
            yield self.state

    def step(self, **options: Unpack[SaveOptions]) -> Checkpoint | None:
        """Says that a step is done and the state is whole: saves now, or later with `after_each_step=False`.

        None where nothing changed or nothing is due. Raises what a save in the background met, unless trying again
        helped. After a SIGTERM the final save is made here, and the process ends as it would have.
        """
        with self._lock:
            if not self._is_open:
                raise RuntimeError("this autosave is not open: use it with `with`")
            if self._is_asked_to_end():
                return self._end(options)
            checkpoint: Checkpoint | None = self._run(self._cadence.step(options))
            return checkpoint

    def before(
        self,
        name: str,
        *,
        key: str = "",
        check: Check | None = None,
        term: float = TERM_S,
        **options: Unpack[SaveOptions],
    ) -> BeforeStep:
        """As `thread.before`, saving this state as a save between two steps would: with the step and metrics that were
        said last, and the options and windows of this autosave. `options` say more, or otherwise."""
        save = partial(self._cadence.before, name, options)
        return self._thread._risky(name, save, key, check, term, self._lock)

    def open(self) -> Self:
        """Begins. With `on_sigterm`: ValueError outside of the main thread; with asyncio RuntimeError where the event
        loop has a handler for SIGTERM that cannot be taken over (uvloop)."""
        if self._sigterm is not None:
            self._sigterm.install()
        self._is_open = True
        return self

    def close(self) -> None:
        """The final save, and the end. Closing again does nothing."""
        self._close(None)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(error)

    def _close(self, error: BaseException | None) -> None:
        if not self._is_open:
            return
        self._is_open = False
        self._wake.set()
        if self._timer is not None:
            self._timer.join()
        try:
            if error is None and self._is_asked_to_end():
                self._end({})
            elif error is None:
                self._run(self._cadence.finish())
            else:
                self._finish_after(error)
        finally:
            if self._sigterm is not None:
                self._sigterm.restore()

    def _finish_after(self, error: BaseException) -> None:
        came = self._sigterm is not None and self._sigterm.is_pending
        try:
            self._run(self._cadence.finish_after_error(self._sigterm_status if came else None))
        except Exception as failure:  # noqa: BLE001  what ended the block is what its caller must see
            error.add_note(f"and the last steps were not saved: {failure}")
            if came:
                report_loss(failure)

    def _is_asked_to_end(self) -> bool:
        return self._sigterm is not None and self._sigterm.is_pending and not self._sigterm.is_over

    def _end(self, options: SaveOptions) -> Checkpoint | None:
        """The final save after SIGTERM; then the signal goes its way, and comes back only if nothing ends for it."""
        assert self._sigterm is not None
        try:
            checkpoint: Checkpoint | None = self._run(self._cadence.end(self._sigterm_status, options))
        except Exception as error:
            report_loss(error)  # the process may not live to raise it
            self._save_mark()
            raise
        finally:
            self._sigterm.hand_over()
        return checkpoint

    def _save_mark(self) -> None:
        """Where the process ends for certain: saves the last step as it was, and hands the signal over.

        On the thread that waits for SIGTERM when the grace time is over, or where the final save failed. The state may
        be half changed by another thread, and is not looked at. Holds others off until the signal is under way.
        """
        assert self._sigterm is not None
        if not self._sigterm.ends_process:
            return
        is_mine = self._lock.acquire(blocking=False)  # an agent that is `changing` holds it
        try:
            self._run(self._cadence.save_mark(self._sigterm_status))
        except Exception as error:  # noqa: BLE001  the process ends
            report_loss(error)
        finally:
            self._sigterm.hand_over()
            if is_mine:
                self._lock.release()

    # -- the timer ------------------------------------------------------------------------------------------------

    def _start_timer(self) -> None:
        if self._timer is None and self._is_open:
            self._timer = threading.Thread(target=self._tick, name="stateward-autosave", daemon=True)
            self._timer.start()

    def _tick(self) -> None:
        while self._is_open:
            wait_s = self._cadence.wait_s()
            if wait_s and not self._is_asked_to_end():
                self._wake.wait(min(wait_s, threading.TIMEOUT_MAX))
                self._wake.clear()
                continue
            with self._lock:
                if self._is_open:
                    self._save_in_background()

    def _save_in_background(self) -> None:
        if not self._is_asked_to_end():
            self._run(self._cadence.in_background())
            return
        assert self._sigterm is not None
        self._run(self._cadence.in_background(self._sigterm_status))
        if self._cadence.error is not None:
            report_loss(self._cadence.error)
            self._save_mark()
        self._sigterm.hand_over()
        self._wake.wait(1.0)  # the main thread is about to end the process


class BeforeStep:
    """What `Thread.before` returns, to be used with `with`."""

    def __init__(
        self,
        run: Callable[[Operation[Any]], Any],
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

    def __enter__(self) -> RiskyStep:
        with self._lock:
            must_check = self._run(self._step.enter(self._save, self._check is not None))
        if must_check:
            assert self._check is not None
            try:
                found = self._check(self._step.idempotency_key)
            except BaseException:
                self._run(self._step.give_up())
                raise
            self._run(self._step.learn(found))
        return self._step

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._run(self._step.leave(error))


class ThreadCadence:
    """Methods of `Thread`."""

    _client: Client
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
    ) -> Autosave:
        """Saves a state while an agent works on it: `with thread.autosave(state) as auto: …; auto.step(step=7)`.

        `auto.step()` says that the state is whole; it saves, or with `after_each_step=False` only where `every_s`
        seconds have passed since the last save. Between steps nobody but the agent knows when the state is whole: a
        timer saves there once changes are made `with auto.changing():` (read what you edit inside of it). Nothing is
        saved where nothing changed. At the end of the block what is left is saved; after an exception only what the
        last step had left whole. A save in the background that fails is tried again, and raised at the next step if
        that does not help; VersionMismatch is never tried again.

        `on_sigterm` (main thread only) makes the final save when SIGTERM comes, with `sigterm_status`, at the next
        step, or between two changes; then the former handler has the signal. After `grace_s` seconds it has it anyway:
        where that ends the process, the last step is saved first, as it was, if it is not saved yet (with asyncio only
        if the event loop runs). A final save that fails is told to the log `stateward`, or else to stderr.

        `windows` trim logs before each save; `options` are those of every save. Where others must be kept from the
        thread meanwhile, use `thread.lease()` with autosave: a `thread.writer()` of one's own holds it off too
        (LeaseHeld).
        """
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
        return Autosave(self, cadence, grace_s if on_sigterm else None, sigterm_status)

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
    ) -> BeforeStep:
        """Saves the state (if given) and claims a risky step, which is recorded as done at the end of the block:
        `with thread.before("charge card", state) as risky: risky.result = risky.result if risky.done else charge()`.

        The version has the label `before` with the step's name. A step that was done before has `risky.done`, and its
        result: leave it out then. One that was begun and not seen to end is EffectUncertain, unless `check(idempotency
        key)` finds out: it returns the result, or NOT_HAPPENED. Somebody else at it is EffectInProgress. An exception
        in the block leaves it uncertain, unless `risky.nothing_happened` is set; so does a result that cannot be
        recorded, which is raised. `key` (empty = the name) names this occurrence in the thread: a step that comes again
        needs one of its own, such as f"charge {order}". The claim of a process that died is free after `term` seconds,
        and at once for a client with the same `holder`.
        """
        save = partial(_before.saving, self._ref, state, name, options)
        return self._risky(name, save, key, check, term, lock or threading.Lock())

    def _risky(self, name: str, save: Save, key: str, check: Check | None, term: float, lock: Any) -> BeforeStep:
        client = self._client
        risky = RiskyStep(self._ref, client._identity.to_proto(), client.target, name, key or name, term)
        return BeforeStep(self._run, risky, save, check, lock)

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
        """A sliding window over a log, for `window.save(state)` or `autosave(state, windows=[window])`; see Window."""
        return Window(log, keep_last, keep_tokens, summarise, into, slack, tokens, self)

    def _run(self, operation: Operation[T]) -> T:
        raise NotImplementedError
