"""Operations on signals: asking, sending, answering, and who waits; and the streams that tell of signals."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypedDict

from google.protobuf.message import Message

from stateward import values
from stateward._operations import listing, saving, threads
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Call, Operation, ThreadRef, new_request_id
from stateward._operations.streams import Reader, WatchReader
from stateward.errors import NotArchivedYet, StaleAnswer, ThreadNotFound
from stateward.handoff import handed_to
from stateward.models import Durability, Status, ThreadInfo, choice_number
from stateward.signals import ANSWER, APPROVE, REJECT, AnswerRefused, Question, Signal, Wake, answer_in
from stateward.state import State
from stateward.v1 import signal_service_pb2 as service
from stateward.v1 import thread_service_pb2 as pb

# How often a thread that is waited for is looked at again: an answer may have reached the archive through another
# sidecar, which no watch of this one tells.
LOOK_AGAIN_S = 30.0
# What a look has even where less is left: with a timeout of 0 the answer that is there already is still found.
LOOK_S_MIN = 0.25
PAGE_MAX = 1000


def ask(ref: ThreadRef, state: State, prompt: str, schema: Any, reason: str, options: SaveOptions) -> Operation[str]:
    """Saves the state as WAITING, with a question. Returns the wait id."""
    taken = options.keys() & {"status", "status_detail", "question"}
    if taken:
        raise TypeError(f"ask says {', '.join(sorted(taken))} itself")
    if ref.branch != "main":
        raise ValueError(f"branch {ref.branch!r} cannot ask: a thread waits for what the head of its branch main asks")
    chosen = options.get("wait_id") or os.urandom(8).hex()
    asked: SaveOptions = {
        **options,
        "status": Status.WAITING,
        "status_detail": reason,
        "wait_id": chosen,
        "question": Question(prompt, schema),
        # Also under the same wait id: an answer to what was asked before must not pass for one to this.
        "ack": [*(options.get("ack") or ()), *([state.answer] if state.answer is not None else [])],
    }
    yield from saving.save(ref, state, asked)
    return chosen


def list_signals(ref: ThreadRef) -> Operation[list[Signal]]:
    """What no save acknowledged yet, oldest first."""
    request = ref.about(service.ListSignalsRequest)
    return list(map(Signal.from_proto, (yield Call("ListSignals", request)).signals))


class SignalOptions(TypedDict, total=False):
    """What a signal can say besides its content. Everything is optional."""

    sender: str
    """The sender's name; the daemon does not prove it. At most 256 bytes."""
    wait_id: str | None
    """The question that is answered. None = no question, or for an answer the question that the thread asks now."""
    durability: Durability | str | None
    """The level that must be reached before the daemon answers; None = the daemon's default."""
    request_id: str | None
    """Give one if another process may send the same signal again. None = a new one for this call and all its
    retries."""


def send(
    ref: ThreadRef,
    name: str,
    payload: Any,
    *,
    sender: str = "",
    wait_id: str | None = None,
    durability: Durability | str | None = None,
    request_id: str | None = None,
) -> Operation[Signal]:
    """Adds a signal. Raises NotArchivedYet if the signal is stored, but less durably than asked."""
    request = ref.about(
        service.SendSignalRequest,
        name=name,
        payload=None if payload is None else values.encode(payload, "payload"),
        sender=sender,
        wait_id=wait_id or "",
        request_id=request_id or new_request_id(),
        durability=choice_number(Durability, durability),
    )
    response: service.SendSignalResponse = yield Call(
        "SendSignal",
        request,
        waits_for_owner=False,  # an agent at work may be silent for minutes, and keeps its thread
    )
    if response.durability < request.durability:
        raise NotArchivedYet(ref.thread, response.signal.sequence)
    return Signal.from_proto(response.signal)


def answer(ref: ThreadRef, name: str, payload: Any, *, wait_id: str | None = None, **options: Any) -> Operation[Signal]:
    """Sends the answer to the thread's present question, after checking its form.

    With a `wait_id` the daemon judges, which also knows a request that was answered before.
    """
    info = yield from threads.get_thread(ref)
    if not wait_id:
        wait_id = current_wait_id(info)
    else:
        _refuse_handoff(ref.thread, wait_id)
    if info.question is not None and info.wait_id == wait_id:
        check(info.question, name, payload)
    return (yield from send(ref, name, payload, wait_id=wait_id, **options))


def check(question: Question, name: str, payload: Any) -> None:
    """Raises AnswerRefused where the question wants something else. Who is asked may always refuse."""
    if name == REJECT:
        return
    if name == ANSWER:
        question.check(payload)
    elif name == APPROVE:
        try:
            question.check(True)
        except AnswerRefused as error:
            raise AnswerRefused(f"this question cannot be approved, only answered or rejected: {error}") from None


def current_wait_id(info: ThreadInfo) -> str:
    """What a thread waits for. StaleAnswer where that is nothing."""
    if info.status != Status.WAITING or not info.wait_id:
        raise StaleAnswer(
            f"thread {info.name!r} does not wait for an answer: its status is "
            f"{info.status.name if isinstance(info.status, Status) else info.status or 'not known'}",
            reason="STALE_ANSWER",
            metadata={"thread": info.name},
        )
    _refuse_handoff(info.name, info.wait_id)
    return info.wait_id


def _refuse_handoff(thread: str, wait_id: str) -> None:
    taker = handed_to(wait_id)
    if taker is not None:
        raise StaleAnswer(
            f"thread {thread!r} asks nothing: it is handed to {taker!r}, and waits until that agent takes it",
            reason="STALE_ANSWER",
            metadata={"thread": thread},
        )


def list_waiting(namespace: str, labels: Mapping[str, str] | None) -> pb.ListThreadsRequest:
    """The request for the first page of threads that wait."""
    return threads.list_threads(namespace, status=Status.WAITING, labels=labels)


def find_asked(ref: ThreadRef) -> Operation[str]:
    """The wait id of the question that a thread asks now."""
    return current_wait_id((yield from threads.get_thread(ref)))


def find_answer(ref: ThreadRef, wait_id: str) -> Operation[Signal | None]:
    """The answer to a question, None = none yet. StaleAnswer where it is not asked any more."""
    found = answer_in((yield from list_signals(ref)), wait_id)
    if found is None:
        info = yield from threads.get_thread(ref)
        if info.status != Status.WAITING or info.wait_id != wait_id:
            raise _withdrawn(ref.thread, wait_id)
    return found


def no_answer(ref: ThreadRef, wait_id: str | None, timeout_s: float | None) -> TimeoutError:
    """What is raised when the time is over; without a wait id even the question could not be read."""
    what = f" to {wait_id!r}" if wait_id else ""
    return TimeoutError(f"thread {ref.thread!r} got no answer{what} within {timeout_s:g} s")


def _withdrawn(thread: str, wait_id: str) -> StaleAnswer:
    return StaleAnswer(
        f"thread {thread!r} does not wait for {wait_id!r} any more: it was saved anew meanwhile",
        reason="STALE_ANSWER",
        metadata={"thread": thread},
    )


class AnswerReader(Reader[Signal]):
    """The answer to one question, when it comes. StaleAnswer or ThreadNotFound where none can come any more."""

    method = "Watch"

    def __init__(self, ref: ThreadRef, wait_id: str) -> None:
        self._events = WatchReader(ref, after_sequence=None, after_cursor="", include_diff=False)
        self._ref, self._wait_id = ref, wait_id

    def request(self) -> Message:
        return self._events.request()

    def take(self, message: pb.WatchResponse) -> list[Signal]:
        for event in self._events.take(message):
            if isinstance(event.what, Signal) and event.what.wait_id == self._wait_id:
                return [event.what]
            saved = event.checkpoint
            if saved is not None and saved.branch == "main" and saved.wait_id != self._wait_id:
                raise _withdrawn(self._ref.thread, self._wait_id)
            if event.kind == "deleted":
                raise ThreadNotFound(
                    f"thread {self._ref.thread!r} was deleted", reason="THREAD_NOT_FOUND",
                    metadata={"thread": self._ref.thread},
                )  # fmt: skip
        return []


class SignalReader(Reader[Wake]):
    """Threads to which a signal comes, from when the stream was opened first on. What waited before is listed once."""

    method = "Watch"

    def __init__(self, namespace: str, labels: Mapping[str, str] | None) -> None:
        self._namespace, self._labels = namespace, labels
        ref = ThreadRef(namespace, "-", "")
        self._events = WatchReader(ref, after_sequence=None, after_cursor="", include_diff=False, labels=labels)
        self._seen: set[str] = set()  # ids of signals that were listed, and that the watch may tell too

    def request(self) -> Message:
        return self._events.request()

    def take(self, message: pb.WatchResponse) -> list[Wake]:
        wakes = []
        for event in self._events.take(message):
            if isinstance(event.what, Signal) and event.what.id not in self._seen:
                wakes.append(Wake(event.thread, (event.what,)))
            elif isinstance(event.what, Signal):
                self._seen.discard(event.what.id)
        return wakes

    def waiting(self) -> Operation[list[Wake]]:
        """What waits already. To be asked when the stream is open, so that nothing falls between the two."""
        request = threads.list_threads(self._namespace, labels=self._labels, page_size=PAGE_MAX)
        names = [each.name for each in (yield from listing.read_all(request)) if each.pending_signals]
        wakes: list[Wake] = []
        for name in names:
            try:
                found = yield from list_signals(ThreadRef(self._namespace, name, ""))
            except ThreadNotFound:
                continue  # deleted meanwhile
            if found:
                wakes.append(Wake(name, tuple(found)))
                self._seen.update(each.id for each in found)
        return wakes
