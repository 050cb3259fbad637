"""Answers for the asking that was shown.

An agent may ask the same words again under the same wait id, once it has used an answer or has worked on. The contract
binds an answer to a moment of the thread's journal. So these functions send with the moment that was shown. If the
thread has changed since then, they look through all that was written, and send again only if the question stayed open.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stateward.cli.show.describe import quoted
from stateward.cli.show.output import CommandError
from stateward.errors import (
    InvalidField,
    StaleAnswer,
    ThreadNotFound,
    UidMismatch,
    VersionMismatch,
    VersionNotFound,
    VersionPruned,
)
from stateward.signals import Question, Signal, answer_in

if TYPE_CHECKING:
    from stateward import Checkpoint, Thread, ThreadInfo

# How often an answer is sent to a question that stays the same while its agent saves.
ROUNDS = 20
# So many versions an agent may save while its question is shown. A person who reads for longer looks again.
VERSIONS_MAX = 10_000
# How long the events since then may take to arrive.
EVENTS_TIMEOUT_S = 10.0


def send_to(thread: Thread, shown: ThreadInfo, send: Callable[[dict[str, Any]], Signal]) -> Signal:
    """Sends the answer to the question that was shown: the daemon checks that the thread is the same as it writes. If
    something was written meanwhile and the same question is still open, sends the answer again."""
    now = shown
    for _ in range(ROUNDS):
        try:
            return send({"unchanged_since": now})
        except (StaleAnswer, ThreadNotFound, UidMismatch, VersionMismatch) as error:
            problem = error
        before, now = now, thread.info()
        is_same = _asks(now) == _asks(shown)
        if is_same and not isinstance(problem, VersionMismatch):
            raise problem  # it says who has answered
        if not is_same or not _is_still_open(thread, before, now):
            break
    else:
        raise CommandError(f"thread {shown.name!r} changes all the time; nothing was sent, try again")
    if is_same and shown.wait_id and (other := answer_in(thread.signals.list(), shown.wait_id)) is not None:
        raise CommandError(
            f"{shown.wait_id!r} of thread {shown.name!r} was answered already, with signal {other.name!r} by "
            f"{other.sender!r}; nothing was sent"
        )
    what = f"it asks {quoted(now.question)}" if now.question else "it asks nothing"
    anew = " again, or may do so: the question that was shown may have an answer;" if is_same else " now;"
    raise CommandError(f"thread {shown.name!r} has changed since the question: {what}{anew} nothing was sent")


def _asks(info: ThreadInfo) -> Any:
    return info.uid, info.wait_id, info.question, info.status


def _is_still_open(thread: Thread, before: ThreadInfo, now: ThreadInfo) -> bool:
    """Whether the question of `before` is the one of `now`. An agent may ask the same words again under the same wait
    id, once it has used an answer or has worked on. So there must be no answer since then, used or not, and everything
    that was saved or told since then must ask the question. If a part of that is pruned, nobody knows: returns False.
    """
    if now.sequence == before.sequence:
        return now.sequence_digest == before.sequence_digest
    try:
        if not _is_quiet(thread, before, now):
            return False
        if (now.version, now.digest) == (before.version, before.digest):
            return True
        with thread.history(before.version, now.version, newest_first=True, slots=[]) as line:
            for number, (checkpoint, _, _) in enumerate(line):
                if number == 0 and checkpoint.digest != now.digest:
                    return False
                if checkpoint.version == before.version:
                    return checkpoint.digest == before.digest
                if number == VERSIONS_MAX or not _asks_on(thread, checkpoint, before):
                    return False
    except (InvalidField, ThreadNotFound, UidMismatch, VersionMismatch, VersionNotFound, VersionPruned):
        return False  # the head was moved, the thread was made anew, or a version is gone
    return False


def _is_quiet(thread: Thread, before: ThreadInfo, now: ThreadInfo) -> bool:
    """Whether no answer has come since `before`, and no effect told another status. An effect may use an answer and ask
    again, and the thread has no new version by that."""
    asked = before.status, before.wait_id, before.question
    with thread.watch(after_sequence=before.sequence, records=True) as events:
        # Some entries are no events. If the last one is none, the watch would wait for the next one.
        ending = threading.Timer(EVENTS_TIMEOUT_S, events.close)
        ending.daemon = True
        ending.start()
        try:
            for event in events:
                if isinstance(event.what, Signal) and event.what.wait_id == before.wait_id:
                    return False
                if (told := event.told) is not None:
                    question = Question.from_proto(told.question) if told.HasField("question") else None
                    if (told.status, told.wait_id, question) != asked:
                        return False
                if event.sequence >= now.sequence:
                    return True
        finally:
            ending.cancel()
    return False


def _asks_on(thread: Thread, checkpoint: Checkpoint, shown: ThreadInfo) -> bool:
    """Whether a version goes on asking what the thread asked."""
    if (checkpoint.status, checkpoint.wait_id, checkpoint.question) != (shown.status, shown.wait_id, shown.question):
        return False
    used = thread.signals.list(acknowledged_by=checkpoint) if checkpoint.acknowledged_signals else []
    return all(each.wait_id != shown.wait_id for each in used)
