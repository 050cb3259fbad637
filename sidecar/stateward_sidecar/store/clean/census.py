"""Counts what no counter knows: threads, questions that are open, and claims on effects.

A census reads the head of each thread and the rows of its effects, some rows in each transaction. It rests four times
as long as it works, so that calls and the writer hardly notice it, and may take minutes with very many threads.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass

import lmdb

from stateward.storage.v1.head_pb2 import EffectRow
from stateward.v1.checkpoint_pb2 import WORK_STATUS_WAITING
from stateward.v1.effect_pb2 import EFFECT_STATE_IN_PROGRESS, EFFECT_STATE_UNCERTAIN
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_REMOTE
from stateward_sidecar.errors import Corrupt, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.store.kinds.effect import EFFECT_ROWS
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.thread.threads import Threads

# Rows that one transaction reads, because LMDB reuses no freed page meanwhile.
ROWS = 100
# How long it rests after each transaction: at least, and as a multiple of the time that it worked.
REST_S, REST_SHARE = 0.002, 4.0


@dataclass(slots=True)
class Counted:
    """What a census found."""

    threads: int = 0
    # Threads that cannot be read.
    unreadable: int = 0
    # Threads of this sidecar that wait for an answer, and when the oldest of them began to wait (0 = none waits).
    questions: int = 0
    oldest_question_us: int = 0
    # Claims of threads of this sidecar: on calls that may be under way, and on calls whose outcome nobody knows.
    in_progress: int = 0
    uncertain: int = 0
    # Without its rests.
    worked_s: float = 0.0


class Census:
    """Counts a store."""

    def __init__(self, context: Context, threads: Threads, sleep: Callable[[float], object] = time.sleep) -> None:
        self._context = context
        self._threads = threads
        self._sleep = sleep
        # Open claims whose terms this process does not know, and when a census first saw them.
        self._seen: dict[tuple[int, bytes], tuple[int, float]] = {}
        self._before = self._seen

    def take(self, is_over: Callable[[], bool] = lambda: False) -> Counted | None:
        """Counts all threads. Returns None if ``is_over`` says that the daemon stops."""
        counted, at = Counted(), b"N"
        self._before, self._seen = self._seen, {}
        while at:
            began = time.monotonic()
            numbers, at = self._names(at)
            counted.threads += len(numbers)
            with_effects: list[Thread] = []
            with self._context.engine.read() as txn:
                for number in numbers:
                    thread = self._count(txn, number, counted)
                    if thread is not None and thread.head.effects:
                        with_effects.append(thread)
            self._rest(began, counted)
            for thread in with_effects:
                self._count_effects(thread, counted, is_over)
            if is_over():
                return None
        return counted

    def _rest(self, began: float, counted: Counted) -> None:
        worked_s = time.monotonic() - began
        counted.worked_s += worked_s
        self._sleep(max(REST_S, REST_SHARE * worked_s))

    def _names(self, at: bytes) -> tuple[list[int], bytes]:
        """Returns the numbers of the next threads, and the key of the name after them; empty = there are no more."""
        numbers: list[int] = []
        with self._context.engine.read() as txn:
            cursor = txn.cursor()
            found = cursor.set_range(at)
            while found and cursor.key()[:1] == b"N":
                if len(numbers) == ROWS:
                    return numbers, bytes(cursor.key())
                with suppress(Corrupt):  # ``stateward verify`` reports it
                    numbers.append(layout.unpack_name(cursor.value())[0])
                found = cursor.next()
        return numbers, b""

    def _count(self, txn: lmdb.Transaction, number: int, counted: Counted) -> Thread | None:
        """Counts a thread. Returns it if its effects count."""
        try:
            thread = self._threads.head(txn, number)
        except StatewardError:
            counted.unreadable += 1
            return None
        if thread is None or thread.access in (THREAD_ACCESS_REMOTE, THREAD_ACCESS_ORPHAN):
            return None
        head = thread.head
        if head.status == WORK_STATUS_WAITING and head.wait_id:
            counted.questions += 1
            since = head.told.time_us or head.save_time_us or head.update_time_us
            counted.oldest_question_us = min(counted.oldest_question_us or since, since)
        return thread

    def _count_effects(self, thread: Thread, counted: Counted, is_over: Callable[[], bool]) -> None:
        prefix = thread.identity.keys.all_of(b"E")
        at: bytes = prefix
        while at and not is_over():
            began = time.monotonic()
            with self._context.engine.read() as txn:
                at = self._count_some(txn, thread, prefix, at, counted)
            self._rest(began, counted)

    def _count_some(self, txn: lmdb.Transaction, thread: Thread, prefix: bytes, at: bytes, counted: Counted) -> bytes:
        cursor, rows = txn.cursor(), 0
        found = cursor.set_range(at)
        while found and bytes(cursor.key()).startswith(prefix):
            key = bytes(cursor.key())
            if rows == ROWS:
                return key
            rows += 1
            try:
                row = EFFECT_ROWS.open(thread.identity, key, cursor.value())
            except StatewardError:
                return b""  # the thread's next read reports it
            self._judge(thread, key, row, counted)
            found = cursor.next()
        return b""

    def _judge(self, thread: Thread, key: bytes, row: EffectRow, counted: Counted) -> None:
        record = row.record
        if record.state == EFFECT_STATE_UNCERTAIN:
            counted.uncertain += 1
        elif record.state == EFFECT_STATE_IN_PROGRESS:
            was_overtaken = bool(record.lease_token) and thread.head.lease.token > record.lease_token
            is_over = was_overtaken or self._is_over((thread.number, key), record.claim_token, record.term_us)
            counted.uncertain += is_over
            counted.in_progress += not is_over

    def _is_over(self, claim: tuple[int, bytes], token: int, term_us: int) -> bool:
        now = self._context.clock.boottime()
        end = self._context.terms.end_of(claim, token)
        if end is None:
            known = self._before.get(claim)
            first = known[1] if known is not None and known[0] == token else now
            self._seen[claim] = token, first
            end = first + term_us / 1e6
        return end <= now
