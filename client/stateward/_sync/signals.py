"""Signals: the parts of `Client` and `Thread` that ask, answer and wait."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Unpack

from stateward import _listing, _signals
from stateward._operations import Operation, Pause, T
from stateward._saving import SaveOptions
from stateward._signals import AnswerReader, SignalReader
from stateward._streams import Open, Read
from stateward._sync_io import Stream
from stateward._timelimit import limited
from stateward.errors import DeadlineExceeded, Fenced, ServerUnavailable
from stateward.models import Durability, ThreadInfo
from stateward.signals import ANSWER, APPROVE, REJECT, Signal, Wake
from stateward.state import State

if TYPE_CHECKING:
    from stateward._sync import Client


class SignalStream(Stream[Wake]):
    """What waits already, then what comes."""

    _reader: SignalReader
    _has_listed = False

    def _pump(self) -> bool:
        goes_on = super()._pump()
        if goes_on and not self._has_listed:
            waiting = self._client._run(self._reader.waiting())
            self._reading.ready.extendleft(reversed(waiting))
            self._has_listed = True
        return goes_on


class AnswerStream(Stream[Signal]):
    """The answer to a question, until some time of the monotonic clock."""

    _end: float

    def _perform(self, step: Open | Read | Pause) -> Any:
        if isinstance(step, Pause):  # `close` cuts a read short, and no pause
            step = Pause(min(step.seconds, max(self._end - time.monotonic(), 0.0)))
        return super()._perform(step)


class Signalling:
    """What `Client` has."""

    if TYPE_CHECKING:
        namespace: str
        _run: Any
        _read_list: Any
        _reading: Any

    def waiting(self, *, labels: Mapping[str, str] | None = None) -> Iterator[ThreadInfo]:
        """The threads that wait for something, the most recently changed first: `question`, `wait_id`, and
        `pending_signals` where it came and no agent has taken it yet."""
        found: Iterator[ThreadInfo] = self._read_list(
            _listing.ThreadList.next_page, _listing.ThreadList(_signals.list_waiting(self.namespace, labels))
        )
        return found

    def send(
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
        """Sends a message to a thread that exists; nobody's lease is in its way. At most 64 KiB.

        It is kept until a save acknowledges it. With a `wait_id` the thread must be waiting for just that: StaleAnswer.
        1,024 that wait are QuotaExceeded. With an archive, a thread that is free is attached; NotOwner where another
        sidecar holds it. Give a `request_id` where the same message may be sent again by another process.
        """
        sent: Signal = self._run(
            _signals.send(self.namespace, thread, name, payload, sender, wait_id, durability, request_id)
        )
        return sent

    def answer(
        self,
        thread: str,
        value: Any,
        *,
        sender: str = "",
        wait_id: str | None = None,
        durability: Durability | str | None = None,
        request_id: str | None = None,
    ) -> Signal:
        """Answers the question that a thread asks now, or the one with this `wait_id`: StaleAnswer where that is not
        asked any more, or was answered.

        AnswerRefused, and nothing sent, where the value is not what the question's JSON schema asks for; checked by the
        package jsonschema (`pip install 'stateward[schema]'`), and without it SchemaNotChecked is warned.
        """
        return self._answer(thread, ANSWER, value, sender, wait_id, durability, request_id)

    def approve(
        self,
        thread: str,
        note: str | None = None,
        *,
        sender: str = "",
        wait_id: str | None = None,
        durability: Durability | str | None = None,
        request_id: str | None = None,
    ) -> Signal:
        """Says yes to what a thread asks, as `answer` does; the note is the signal's payload."""
        return self._answer(thread, APPROVE, note, sender, wait_id, durability, request_id)

    def reject(
        self,
        thread: str,
        reason: str | None = None,
        *,
        sender: str = "",
        wait_id: str | None = None,
        durability: Durability | str | None = None,
        request_id: str | None = None,
    ) -> Signal:
        """Says no to what a thread asks, whatever form the answer should have; the reason is the signal's payload."""
        return self._answer(thread, REJECT, reason, sender, wait_id, durability, request_id)

    def watch_signals(self, *, labels: Mapping[str, str] | None = None) -> Stream[Wake]:
        """Threads whose agents have something to do: first those with signals that wait already, then each to which
        one comes. Close it, or use it with `with`.

        It goes on after a restart of the daemon, and nothing is missed then. A signal that came to the archive through
        another sidecar is told when this one looks at the thread: `stateward run` does that from time to time.
        """
        reader = SignalReader(self.namespace, labels)
        stream = SignalStream(self, self._reading(reader))  # type: ignore[arg-type]
        stream._reader = reader
        stream._pump()
        return stream

    def _answer(self, thread: str, *what: Any) -> Signal:
        sent: Signal = self._run(_signals.answer(self.namespace, thread, *what))
        return sent


class Asking:
    """What `Thread` has."""

    if TYPE_CHECKING:
        _ref: Any
        _run: Any

    def ask(
        self,
        state: State,
        prompt: str,
        schema: Any = None,
        *,
        reason: str = "",
        **options: Unpack[SaveOptions],
    ) -> str:
        """Saves the state as WAITING for the answer to a question; returns its `wait_id`, which is random unless given.

        The agent may end then: with an archive the thread is given up, and any machine may go on. `schema` is a JSON
        schema that the answer must fit. The other options are those of `save`; with `durability="archived"` the
        question is where others find it when this returns.
        """
        asked: str = self._run(_signals.ask(self._ref, state, prompt, schema, reason, options))
        return asked

    def signals(self) -> list[Signal]:
        """What no save acknowledged yet, oldest first; `hydrate` brings the same as `state.signals`."""
        found: list[Signal] = self._run(_signals.list_signals(self._ref))
        return found

    def answer_to(self, wait_id: str) -> Signal | None:
        """The answer to a question, as long as no save acknowledged it; None = there is none."""
        found: Signal | None = self._run(_signals.answer_to(self._ref, wait_id))
        return found

    def wait_for_answer(
        self, wait_id: str | None = None, *, timeout: float | None = None, look_again: float = _signals.LOOK_AGAIN_S
    ) -> Signal:
        """Waits for the answer to a question (None = the one that the thread asks now): for agents that stay.

        TimeoutError after `timeout` seconds; StaleAnswer where the thread waits for it no more. A watch tells of the
        answer. One that reached the archive through another sidecar is found at the next look, every `look_again`
        seconds.
        """
        end = None if timeout is None else time.monotonic() + timeout
        wait_id = wait_id or self._find_asked(end, timeout)
        while True:
            for_s = look_again if end is None else min(look_again, end - time.monotonic())
            found = self._wait_for(wait_id, max(for_s, 0.001))
            if found is not None:
                return found
            if end is not None and time.monotonic() >= end:
                raise _signals.no_answer(self._ref, wait_id, timeout)

    def _find_asked(self, end: float | None, timeout: float | None) -> str:
        asked = _signals.find_asked(self._ref)
        if end is None:
            return str(self._run(asked))
        try:
            return str(self._run(self._until(end, asked)))
        except (DeadlineExceeded, ServerUnavailable):
            if time.monotonic() < end:
                raise
            raise _signals.no_answer(self._ref, None, timeout) from None

    def _wait_for(self, wait_id: str, for_s: float) -> Signal | None:
        client: Client = self._client  # type: ignore[attr-defined]
        stream = AnswerStream(client, client._reading(AnswerReader(self._ref, wait_id)))
        stream._end = end = time.monotonic() + for_s
        ending = threading.Timer(for_s, stream.close)
        ending.daemon = True
        ending.start()
        try:
            stream._pump()
            found: Signal | None = self._run(self._until(end, _signals.find_answer(self._ref, wait_id)))
            return found if found is not None else next(stream, None)
        except Fenced:  # taken by another sidecar, perhaps by the one that brings the answer
            return None
        except (DeadlineExceeded, ServerUnavailable):  # also as `close` ends a stream that is waiting for the daemon
            if time.monotonic() < end:
                raise
            return None
        finally:
            ending.cancel()
            stream.close()

    def _until(self, end: float, operation: Operation[T]) -> Operation[T]:
        """The operation, for which nobody waits longer than until then, nor a call longer than the client's."""
        deadline_s = self._client._settings.deadline_s  # type: ignore[attr-defined]
        return limited(operation, lambda: min(deadline_s, max(end - time.monotonic(), _signals.LOOK_S_MIN)))
