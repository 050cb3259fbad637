"""Operations on signals: to ask, send, answer and wait; and the readers of streams that report signals."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any, TypedDict, Unpack

from stateward import values
from stateward._operations import listing, saving, threads
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import (
    Call,
    Operation,
    ThreadRef,
    check_options,
    new_request_id,
    thread_error,
    unchanged,
    version_ref,
)
from stateward._operations.streams import Reader, WatchReader
from stateward.arguments import instance, several, text
from stateward.errors import NotArchivedYet, StaleAnswer, ThreadNotFound, UnreadAnswer
from stateward.handoff import handed_to
from stateward.models import Checkpoint, Durability, Status, ThreadInfo, choice_number
from stateward.signals import ANSWER, APPROVE, AnswerRefused, Question, Signal, Wake, answer_in, check_schema
from stateward.state import State
from stateward.v1 import signal_service_pb2 as service
from stateward.v1 import thread_service_pb2 as pb

# How often a waiting client reads the thread again: an answer may reach the archive through another sidecar, and the
# watch of this sidecar does not report it.
LOOK_AGAIN_S = 30.0
# The least time for one such look: with a timeout of 0 an answer that is there already is still found.
LOOK_S_MIN = 0.25
PAGE_MAX = 1000


def ask(ref: ThreadRef, state: State, question: Question, reason: str, options: SaveOptions) -> Operation[str]:
    """Saves the state as WAITING, with a question. Returns the wait id."""
    if taken := options.keys() & {"status", "status_detail", "question"}:
        raise TypeError(f"ask sets {', '.join(sorted(taken))} itself")
    saving.require_state(state, "ask")
    text(reason, "reason")
    check_schema(question.schema)
    if ref.branch != "main":
        raise ValueError(f"branch {ref.branch!r} cannot ask: only the head of the branch main asks a thread's question")
    done = several(options.get("ack") or (), "ack", saving.ACKNOWLEDGED)
    answer = state._waiting_answer
    if answer is not None and not state._is_answer_read:
        raise thread_error(
            UnreadAnswer, ref.thread, f"thread {ref.thread!r} has an answer by {answer.sender!r} that the program has "
            "not read; read state.answer before asking again",
        )  # fmt: skip
    open_id = state.checkpoint.wait_id if state.checkpoint is not None and answer is None else ""
    is_open = state.question is not None and state.question.is_same(question)
    chosen = options.get("wait_id") or (open_id if is_open else "") or os.urandom(8).hex()
    asked: SaveOptions = {
        **options,
        "status": Status.WAITING,
        "status_detail": reason,
        "wait_id": chosen,
        "question": question,
        # The earlier question may have had the same wait id: its answer must not count for this question.
        "ack": [*done, *([answer] if answer is not None else [])],
    }
    yield from saving.save(ref, state, asked)
    return chosen


def list_signals(ref: ThreadRef, acknowledged_by: Checkpoint | int | None = None) -> Operation[list[Signal]]:
    """Returns the signals that no save has acknowledged yet, or those that a version acknowledged, oldest first."""
    saved = version_ref(acknowledged_by, called="acknowledged_by")
    found, request = list[Signal](), ref.about(service.ListSignalsRequest, acknowledged_by=saved)
    while True:
        page: service.ListSignalsResponse = yield Call("ListSignals", request)
        found += map(Signal.from_proto, page.signals)
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


class SignalOptions(TypedDict, total=False):
    """What a signal has besides its name and payload. Everything is optional."""

    sender: str
    """The sender's name, at most 256 bytes. The daemon does not check it."""
    wait_id: str | None
    """The question that the signal answers. None = no question; for an answer, the thread's present question."""
    durability: Durability | str | None
    """The level that must be reached before the daemon answers; None = the daemon's default."""
    expected_uid: str
    """The uid that the thread must have, from `ThreadInfo.uid`. Empty = the creation that the handle works on."""
    unchanged_since: ThreadInfo | None
    """The thread as `info` showed it: sends nothing, and raises VersionMismatch, if anything was written to it since.
    An agent may ask another question under the same wait id. None = any."""
    request_id: str | None
    """Lets another process send the same signal again safely. None = a new id for this call and all its retries."""


def send(
    ref: ThreadRef, name: str, payload: Any, uid: str = "", parts: Iterable[str] = (), **options: Unpack[SignalOptions]
) -> Operation[Signal]:  # fmt: skip
    """Adds a signal to the creation `uid` of the thread; empty = the one that the handle works on. `parts`: those of
    the question that it answers; none = all. Raises NotArchivedYet if the signal is stored, but less durably than
    asked."""
    check_options(options, SignalOptions, "a signal")
    shown = options.get("unchanged_since")
    if shown is not None:
        instance(shown, "unchanged_since", ThreadInfo, "a ThreadInfo")
    request = ref.to_write(
        service.SendSignalRequest,
        expected_uid=options.get("expected_uid") or (shown.uid if shown is not None else uid) or ref.held.uid,
        **unchanged(shown),
        name=name,
        payload=None if payload is None else values.encode(payload, "payload"),
        sender=options.get("sender"),
        wait_id=options.get("wait_id"),
        parts=parts,
        request_id=options.get("request_id") or new_request_id(),
        durability=choice_number(Durability, options.get("durability")),
    )
    response: service.SendSignalResponse = yield Call(
        "SendSignal",
        request,
        waits_for_owner=False,  # a working agent keeps its thread, and may save nothing for minutes
    )
    if response.receipt.durability < request.options.durability:
        raise NotArchivedYet(ref.thread, response.signal.sequence)
    return Signal.from_proto(response.signal)


def answer(ref: ThreadRef, name: str, payload: Any, *, wait_id: str | None = None, **options: Any) -> Operation[Signal]:
    """Sends the answer to the question that the thread asks now, and checks its form first.

    The daemon checks a given `wait_id`: only the daemon recognizes a request that it answered before.
    """
    if wait_id is not None:
        text(wait_id, "wait_id")
    info = yield from threads.get_thread(ref)
    if not wait_id:
        wait_id = current_wait_id(info)
    else:
        _refuse_handoff(ref.thread, wait_id)
    parts: Iterable[str] = ()
    if info.question is not None and info.wait_id == wait_id:
        check(info.question, name, payload)
        parts = _answered_by(info.question, payload) if name == ANSWER else ()
    return (yield from send(ref, name, payload, info.uid, parts, wait_id=wait_id, **options))


def _answered_by(question: Question, answer: Any) -> Iterable[str]:
    """Returns the names of the parts that an answer is about: the question may get others before it arrives."""
    names = [part.name for part in question.parts]
    return answer if isinstance(answer, dict) and answer and answer.keys() <= set(names) else names[:1]


def check(question: Question, name: str, payload: Any) -> None:
    """Raises AnswerRefused if the answer does not fit the question. A rejection always fits."""
    if name == ANSWER:
        question.check(payload)
    elif name == APPROVE:
        try:
            question.check_yes()
        except AnswerRefused as error:
            raise AnswerRefused(f"this question cannot be approved, only answered or rejected: {error}") from None


def current_wait_id(info: ThreadInfo) -> str:
    """Returns the wait id of the question that a thread asks. Raises StaleAnswer if the thread asks nothing."""
    if info.status != Status.WAITING or not info.wait_id:
        status = info.status.name if isinstance(info.status, Status) else info.status or "not known"
        raise _stale(info.name, f"does not wait for an answer: its status is {status}")
    _refuse_handoff(info.name, info.wait_id)
    return info.wait_id


def _refuse_handoff(thread: str, wait_id: str) -> None:
    taker = handed_to(wait_id)
    if taker is not None:
        raise _stale(thread, f"asks nothing: it is handed to {taker!r}, and waits until that agent takes it")


def _stale(thread: str, why: str) -> StaleAnswer:
    return thread_error(StaleAnswer, thread, f"thread {thread!r} {why}", reason="STALE_ANSWER")


def _withdrawn(ref: ThreadRef, wait_id: str) -> StaleAnswer:
    return _stale(ref.thread, f"does not wait for {wait_id!r} any more: a newer version was saved in the meantime")


def find_asked(ref: ThreadRef) -> Operation[str]:
    """Returns the wait id of the question that a thread asks. Raises StaleAnswer if the thread asks nothing."""
    return current_wait_id((yield from threads.get_thread(ref)))


def find_answer(ref: ThreadRef, wait_id: str) -> Operation[Signal | None]:
    """Returns the answer to a question; None = none yet. Raises StaleAnswer if the thread asks it no longer."""
    found = answer_in((yield from list_signals(ref)), wait_id)
    if found is None:
        info = yield from threads.get_thread(ref)
        if info.status != Status.WAITING or info.wait_id != wait_id:
            raise _withdrawn(ref, wait_id)
    return found


def no_answer(ref: ThreadRef, wait_id: str | None, timeout_s: float | None) -> TimeoutError:
    """Returns the error for the end of the time; `wait_id` None = not even the question could be read."""
    what = f" to {wait_id!r}" if wait_id else ""
    return TimeoutError(f"thread {ref.thread!r} got no answer{what} within {timeout_s:g} s")


class AnswerReader(Reader[Signal]):
    """Waits for the answer to one question. Raises StaleAnswer or ThreadNotFound once no answer can come any more."""

    def __init__(self, ref: ThreadRef, wait_id: str) -> None:
        self._events = WatchReader(ref)
        super().__init__("Watch", self._events.request())
        self._ref, self._wait_id = ref, wait_id

    def take(self, message: pb.WatchResponse) -> list[Signal]:
        for event in self._events.take(message):
            if isinstance(event.what, Signal) and event.what.wait_id == self._wait_id:
                return [event.what]
            saved = event.checkpoint
            if saved is not None and saved.branch == "main" and saved.wait_id != self._wait_id:
                raise _withdrawn(self._ref, self._wait_id)
            if event.kind == "deleted":
                what = f"thread {self._ref.thread!r} was deleted"
                raise thread_error(ThreadNotFound, self._ref.thread, what, reason="THREAD_NOT_FOUND")
        return []


class SignalReader(Reader[Wake]):
    """Reports each thread to which a signal comes once the stream is open. `waiting` lists the earlier signals."""

    def __init__(self, namespace: str, labels: Mapping[str, str] | None) -> None:
        self._namespace, self._labels = namespace, labels
        self._events = WatchReader(ThreadRef(namespace, "-", ""), labels=labels)
        super().__init__("Watch", self._events.request())
        self._seen: set[str] = set()  # ids of signals that were listed, and that the watch may report too

    def take(self, message: pb.WatchResponse) -> list[Wake]:
        wakes = []
        for event in self._events.take(message):
            if isinstance(event.what, Signal) and event.what.id not in self._seen:
                wakes.append(Wake(event.thread, (event.what,)))
            elif isinstance(event.what, Signal):
                self._seen.discard(event.what.id)
        return wakes

    def waiting(self) -> Operation[list[Wake]]:
        """Returns the threads that have signals already. Call it when the stream is open, or signals may be missed."""
        request = threads.list_threads(self._namespace, labels=self._labels, page_size=PAGE_MAX)
        names = [each.name for each in (yield from listing.read_all(request, {})) if each.pending_signals]
        wakes: list[Wake] = []
        for name in names:
            with suppress(ThreadNotFound):  # deleted in the meantime
                if found := (yield from list_signals(ThreadRef(self._namespace, name, ""))):
                    wakes.append(Wake(name, tuple(found)))
                    self._seen.update(each.id for each in found)
        return wakes
