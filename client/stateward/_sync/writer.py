"""The blocking writer: carries out what `Writing` yields."""

from __future__ import annotations

import os
import queue
import threading
import time
import weakref
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, Unpack

from stateward import _sync_io
from stateward._channel import explain, grpc
from stateward._frames import END, Dial, Put, Run, Step, Steps, Take
from stateward._operations import ThreadRef
from stateward._saving import SaveOptions
from stateward.errors import ServerUnavailable
from stateward.models import Checkpoint, ThreadOptions
from stateward.state import State
from stateward.writer import HandleShell, WriterShell

if TYPE_CHECKING:
    from stateward._sync import Client

WATCH_S = 1.0


class SaveHandle(HandleShell):
    """A version that a writer has sent."""

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

    Belongs to one thread of control, like a State. Leaving the `with` block waits for what was sent and gives the lease
    back.
    """

    def __init__(self, client: Client, ref: ThreadRef, **options: Any) -> None:
        super().__init__(client, ref, **options)
        self._lock = threading.RLock()
        self._call: _Call | None = None

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
            return _sync_io.drive(steps, self._perform)

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
                    self._call.messages.put(step.message)
            case Take():
                assert self._call is not None
                return self._call.take(step.seconds)
            case Dial():
                self._drop()
                self._call = _Call(self._client)
            case Run():
                return self._client._run(step.operation)
            case _:
                self._client._connected().pause(time.sleep, step.seconds)
        return None


class _Call:
    """One stream: messages go through a queue to the thread on which gRPC takes them."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._connection = client._connected()
        self.messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.late_at = 0.0
        self._is_late = self._is_closed = False
        self._stream = self._connection.open("Write", iter(self.messages.get, None))  # type: ignore[arg-type]
        client._streams.add(self)
        _sync_io._open_streams.add(self)  # type: ignore[arg-type]
        _watch(self)

    def take(self, seconds: float | None) -> Any:
        """The next message, or END."""
        self.late_at = time.monotonic() + seconds if seconds is not None else 0.0
        try:
            message = next(self._stream, END)
        except grpc.RpcError as failure:
            # As with uploads: closing a channel whose peer died in the middle of a stream can crash the process.
            self._connection._is_brittle |= failure.code() is grpc.StatusCode.UNAVAILABLE
            if self._is_late:
                raise ServerUnavailable("the daemon did not answer in time", code="DEADLINE_EXCEEDED") from failure
            raise explain(failure, self._client._settings) from failure
        finally:
            self.late_at = 0.0
        self._client._has_met_daemon = True
        return message

    def close(self) -> None:
        """Ends the stream without waiting. The lease lives on for its term, unless the daemon saw the end before."""
        if not self._is_closed:
            self._is_closed = True
            self.messages.put(None)
            self._stream.cancel()

    def look(self, now: float) -> None:
        """Ends the stream where an answer is late."""
        if 0.0 < self.late_at < now:
            self._is_late = True
            self._stream.cancel()


_calls: weakref.WeakSet[_Call] = weakref.WeakSet()
_watchers: list[threading.Thread] = []  # at most one


def _watch(call: _Call) -> None:
    """A blocking read of gRPC's has no limit of its own: a thread looks at all of them now and then."""
    _calls.add(call)
    if not _watchers:
        _watchers.append(threading.Thread(target=_look, name="stateward-writers", daemon=True))
        _watchers[0].start()


def _look() -> None:
    while True:
        time.sleep(WATCH_S)
        now = time.monotonic()
        for call in list(_calls):
            call.look(now)


def _forget() -> None:
    _calls.clear()
    _watchers.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)  # they are the parent's


class ThreadWriting:
    """Part of `Thread`."""

    _client: Client
    _ref: ThreadRef

    def writer(
        self,
        *,
        term: float = 30.0,
        wait: float | None = None,
        take_over: bool = False,
        create: ThreadOptions | None = None,
    ) -> Writer:
        """A writer, to be used with `with`: it takes the thread's lease and saves over one stream.

        While it lives, nobody else can save to the thread (LeaseHeld). Saves of this handle by other means are made
        under its lease, and refused once it is lost: `autosave`, `before` with a state, `window.save`, `ask`,
        `handoff`, which gives the lease back, and others, also on other branches. So are `effect` and `put_effects`.
        Before a save by other means, `flush` what was sent. Another handle has no token: give its saves `lease=writer`.

        `wait` waits so many seconds for the lease, at most an hour, also where the thread is on another machine (else
        NotOwner); `take_over` takes it from a holder that is known to be dead. `term` is for how long, in seconds, the
        lease outlives a stream that broke: a client of the same `holder` name in a new process takes it at once.
        """
        return Writer(self._client, self._ref, term=term, wait=wait, take_over=take_over, create=create)
