# Generated from stateward/_async/writer.py by client/generate.py. Do not edit.
"""Saving over one stream: carries out what `_operations.writer` yields."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Self, Unpack

from stateward._io.blocking.background import Lock
from stateward._io.blocking.call import WriterCall
from stateward._io.blocking.connection import drive
from stateward._io.blocking.session import Session
from stateward._operations.frames import Dial, Put, Run, Step, Steps, Take
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import ThreadRef
from stateward.models import Checkpoint
from stateward.state import State
from stateward.writer import HandleShell, WriterShell


class SaveHandle(HandleShell):
    """A version that a writer has sent. Waiting for it may be cancelled and taken up again."""

    def result(self) -> Checkpoint:
        """Waits for the answer. Raises what refused it; WriterAborted where that was another one before it;
        NotArchivedYet where it is saved, but less durably than asked."""
        checkpoint: Checkpoint = self._writer._drive(lambda writing: writing.wait(self._frame))
        return checkpoint


class Writer(WriterShell):
    """Saves over one stream that holds the thread's lease: the fastest way to save.

    `save` is answered before it returns. `send` returns at once, and the state may be changed and sent again; `flush`
    waits for all. When a version is refused, those sent after it are refused too (WriterAborted), so nothing lands on
    a hole: `send` and `flush` raise what refused it until `reset` gives the state to go on from.

    A stream that breaks is opened again, and what was not answered is sent again: nothing is lost or written twice.
    Once somebody else has taken the lease, everything that was not written raises LeaseHeld.

    Belongs to one task, like a State. Leaving the `async with` block waits for what was sent and gives the lease back.
    """

    def __init__(self, session: Session, ref: ThreadRef, **options: Any) -> None:
        super().__init__(session, ref, **options)
        self._lock = Lock()
        self._call: WriterCall | None = None

    def __enter__(self) -> Self:
        try:
            self._run(self._writing.open())
        except BaseException:
            self._drop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close(is_quiet=error is not None)

    def close(self) -> None:
        """Waits for what was sent, gives the lease back and ends the stream. Closing again does nothing.

        Raises what refused a version, if nobody was told yet.
        """
        self._close(is_quiet=False)

    def save(self, state: State, **options: Unpack[SaveOptions]) -> Checkpoint:
        """Writes what changed in `state` as a new version, as `thread.save` does. A refusal leaves it as it was."""
        checkpoint: Checkpoint = self._drive(lambda writing: writing.save(state, options))
        return checkpoint

    def send(self, state: State, **options: Unpack[SaveOptions]) -> SaveHandle:
        """Sends what changed in `state` and returns at once; waits only where too much is under way.

        The state goes on from the new version. Where that is refused after all, it fits no version any more: go on with
        the one that `reset` gives.
        """
        return SaveHandle(self, self._drive(lambda writing: writing.send(state, options)))

    def flush(self) -> None:
        """Waits until everything that was sent is answered. Raises what was refused."""
        self._drive(lambda writing: writing.flush())

    def reset(self) -> State:
        """After a refusal: reads the head and returns it as the state to go on from."""
        state: State = self._drive(lambda writing: writing.reset())
        return state

    def _drive(self, begin: Callable[[Any], Steps]) -> Any:
        self._require_ours()
        return self._run(begin(self._writing))

    def _run(self, steps: Steps) -> Any:
        with self._lock:
            return drive(steps, self._perform)

    def _close(self, *, is_quiet: bool) -> None:
        if self._is_closed or not self.is_ours:
            return
        try:
            self._run(self._writing.close(is_quiet=is_quiet))
        finally:
            self._is_closed = True
            self._drop()

    def _drop(self) -> None:
        if self._call is not None:
            self._call.close()

    def _perform(self, step: Step) -> Any:
        match step:
            case Put():
                if self._call is not None:
                    self._call.put(step.message)
            case Take():
                assert self._call is not None
                return self._call.take(step.seconds)
            case Dial():
                self._drop()
                self._call = WriterCall(self._session)
            case Run():
                return self._session.run(step.operation)
            case _:
                self._session.perform(step)
        return None
