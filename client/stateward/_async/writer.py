"""Saving over one stream: carries out what `_operations.writer` yields."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, Unpack

from stateward._frames import ends_at_the_caller
from stateward._io.aio.background import Lock
from stateward._io.aio.call import WriterCall
from stateward._io.aio.driving import drive
from stateward._io.aio.session import AsyncSession
from stateward._operations.frames import Dial, Frame, Put, Run, Step, Steps, Take
from stateward._operations.leases import TERM_S, Claim
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import ThreadRef
from stateward._operations.writer import Writing
from stateward.durations import Duration
from stateward.errors import StatewardError
from stateward.models import Checkpoint
from stateward.options import ThreadOptions
from stateward.state import State


@ends_at_the_caller
class AsyncSaveHandle:
    """A version that a writer has sent. Waiting for it can be cancelled and started again."""

    def __init__(self, writer: AsyncWriter, frame: Frame) -> None:
        self._writer = writer
        self._frame = frame

    def __repr__(self) -> str:
        return f"{type(self).__name__}(version={self.version}, done={self.done})"

    @property
    def version(self) -> int:
        """The number of the version: the expected one until the daemon has answered."""
        known = self._frame.checkpoint or self._frame.expected
        assert known is not None  # a handle is of a frame that was sent ahead
        return known.version

    @property
    def done(self) -> bool:
        """Whether the answer was read. `result`, `flush` and `save` read answers, and `send` if too many are
        outstanding."""
        return self._frame.is_done

    @property
    def error(self) -> StatewardError | None:
        """The error that refused the version; None = none is known."""
        return self._frame.error

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The saved version; None = not known yet."""
        return self._frame.checkpoint

    async def result(self) -> Checkpoint:
        """Waits for the answer and returns the saved version.

        Raises the error that refused the version, or WriterAborted if an earlier version was refused. Raises
        NotArchivedYet if the version is saved, but less durably than asked.
        """
        checkpoint: Checkpoint = await self._writer._drive(lambda writing: writing.wait(self._frame))
        return checkpoint


@ends_at_the_caller
class AsyncWriter:
    """Saves over one stream that holds the thread's lease: the fastest way to save.

    `save` waits for the answer. `send` returns at once, and the state can be changed and sent again; `flush` waits for
    all answers. If a version is refused, all versions sent after it are refused too (WriterAborted), so there is never
    a gap. `send` and `flush` then raise the first error until `reset` returns a state to continue from.

    A stream that breaks is opened again, and unanswered versions are sent again: nothing is lost or written twice. If
    another client has taken the lease, unwritten versions raise LeaseHeld.

    A writer belongs to one task or thread, as a State does. Leaving the block waits for all answers and gives the lease
    back.
    """

    def __init__(
        self,
        session: AsyncSession,
        ref: ThreadRef,
        *,
        term: Duration = TERM_S,
        wait: Duration = 0.0,
        take_over: bool = False,
        create: ThreadOptions | None = None,
    ) -> None:
        self._session = session
        self._claim = Claim.of(session.holder, term, wait, take_over, create)
        settings = session.settings
        self._writing = Writing(
            ref, self._claim, session.patience_s, settings.call_timeout_s, session.renew_token, settings.take_over
        )
        self._pid = os.getpid()
        self._is_closed = False
        self._lock = Lock()
        self._call: WriterCall | None = None

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._writing.ref.thread!r}, version={self.version})"

    @property
    def token(self) -> int:
        """The fencing token of the writer's lease. Others can refuse what an older holder still sends."""
        return self._writing.token

    def _note_call(self) -> None:
        """Notes a save of another handle under the writer's lease: it may have taken the number of the next version."""
        self._writing.ref.held.for_call()

    @property
    def version(self) -> int:
        """The newest version that was answered; 0 = none yet."""
        return self._writing.head[0]

    @property
    def is_ours(self) -> bool:
        """Whether this process made the writer. A forked child must not use its parent's stream."""
        return self._pid == os.getpid()

    async def __aenter__(self) -> Self:
        try:
            await self._run(self._writing.open())
            await self._look(again=False)  # the thread may be new
        except BaseException:
            await self._drop()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._close(is_quiet=error is not None)

    async def close(self) -> None:
        """Waits for all answers, gives the lease back and closes the stream. Closing again does nothing.

        Raises the error that refused a version, if no call has raised it yet.
        """
        await self._close(is_quiet=False)

    async def save(self, state: State, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Saves what changed in `state` as a new version, as `thread.save` does. A refusal leaves it unchanged."""
        checkpoint: Checkpoint = await self._drive(lambda writing: writing.save(state, options))
        return checkpoint

    async def send(self, state: State, **options: Unpack[SaveOptions]) -> AsyncSaveHandle:
        """Sends what changed in `state` and returns at once. Waits only if too many versions are unanswered.

        The state continues from the version that was sent. If that version is refused later, the state fits no version
        any more: continue with the state that `reset` returns.
        """
        return AsyncSaveHandle(self, await self._drive(lambda writing: writing.send(state, options)))

    async def flush(self) -> None:
        """Waits until all versions that were sent are answered. Raises the error that refused one."""
        await self._drive(lambda writing: writing.flush())

    async def reset(self) -> State:
        """Reads the head after a refusal, and returns it as the state to continue from."""
        state: State = await self._drive(lambda writing: writing.reset())
        return state

    def _require_ours(self) -> None:
        if not self.is_ours:
            raise RuntimeError("this writer is the parent process's; open one of your own")
        if self._is_closed or not self._writing.token:
            raise RuntimeError("this writer is not open; use it with `with`")

    async def _drive(self, begin: Callable[[Any], Steps]) -> Any:
        self._require_ours()
        return await self._run(begin(self._writing))

    async def _run(self, steps: Steps) -> Any:
        async with self._lock:
            return await drive(steps, self._perform)

    async def _close(self, *, is_quiet: bool) -> None:
        if self._is_closed or not self.is_ours:
            return
        try:
            await self._run(self._writing.close(is_quiet=is_quiet))
        finally:
            self._is_closed = True
            await self._drop()

    async def _drop(self) -> None:
        if self._call is not None:
            await self._call.close()

    async def _look(self, *, again: bool) -> None:
        await self._session.look("Write", self._writing.ref.namespace, self._writing.ref.thread, again=again)

    async def _perform(self, step: Step) -> Any:
        match step:
            case Put():
                if self._call is not None:
                    await self._call.put(step.message)
            case Take():
                assert self._call is not None
                message = await self._call.take(step.seconds)
                self._session.hear(self._writing.ref.namespace, self._writing.ref.thread, message)
                return message
            case Dial():
                await self._drop()
                await self._look(again=self._call is not None)
                self._call = WriterCall(self._session)
            case Run():
                return await self._session.run(step.operation)
            case _:
                await self._session.perform(step)
        return None
