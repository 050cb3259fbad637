"""Chooses the versions that a prune removes.

Sequences grow with versions, and so do times once a wrong clock is left out (``times.py``). So "not archived yet" and
"not old enough" are found by bisection, and the cost does not grow with the history. Only a rule that counts by branch,
in a thread with several branches, reads the newest versions one by one.
"""

from __future__ import annotations

import time
from bisect import bisect_left, bisect_right
from collections.abc import Iterable

import lmdb

from stateward.v1.thread_pb2 import Retention
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward_sidecar.errors import InvalidField, VersionNotFound
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.ranges import Ranges, numbers_of
from stateward_sidecar.store.thread.thread import MAIN, Thread, ThreadDraft
from stateward_sidecar.store.thread.times import made_us

ENTRIES_A_STEP = 100
# Pause between two steps, so that other threads get the interpreter.
PAUSE_S = 0.0005


class Chooser:
    """Chooses versions. Opens short transactions of its own, so not for the event loop or the writer."""

    def __init__(self, context: Context) -> None:
        self._context = context

    def by_request(self, thread: Thread, request: PruneThreadRequest) -> list[int]:
        """Returns the versions that a request prunes, ascending. Raises InvalidField or VersionNotFound."""
        kind = request.WhichOneof("what")
        if kind == "versions":
            return self._named(thread, numbers_of(request.versions), move_heads=request.move_heads)
        rule = Retention(keep_last=request.keep_latest_per_branch)
        if kind == "older_than":
            rule = Retention(keep_for=request.older_than)
        return self.by_rule(thread, rule)

    def by_rule(self, thread: Thread, rule: Retention) -> list[int]:
        """Returns the retained versions that a rule prunes, ascending. Every part of the rule must allow it."""
        retained = thread.pruned.missing(thread.head.last_version)
        count, others = len(retained), list[int]()
        if rule.keep_last:
            count, others = self._before_newest(thread, retained, rule.keep_last)
        with self._context.engine.read() as txn:
            until = self._last_archived(txn, thread, retained)
            if rule.HasField("keep_for"):
                now_us = self._context.clock.now_us()
                oldest_us = now_us - rule.keep_for.ToMicroseconds()
                until = min(until, _first_since(txn, thread, retained, now_us, oldest_us))
        newest = retained[until - 1] if until else 0
        kept = protected(ThreadDraft(thread))
        first = retained.until(retained[count - 1]) if count else ()
        return [version for version in (*first, *others) if version <= newest and version not in kept]

    def ages_us(self, thread: Thread, rule: Retention) -> int:
        """Returns when the next version is old enough for a rule, in microseconds since 1970; 0 = never."""
        kept = protected(ThreadDraft(thread))
        for version in thread.pruned.missing(thread.head.last_version):
            if version not in kept:
                with self._context.engine.read() as txn:
                    time_us = _made_us(txn, thread, version, self._context.clock.now_us())
                return int(time_us + rule.keep_for.ToMicroseconds())
        return 0

    def _last_archived(self, txn: lmdb.Transaction, thread: Thread, retained: Ranges) -> int:
        """Returns how many of the oldest retained versions are archived. No other version may be pruned."""
        if self._context.archive is None:
            return len(retained)
        return bisect_right(
            range(len(retained)), thread.archived_sequence,
            key=lambda at: replay.sequence_of(txn, thread, retained[at]),
        )  # fmt: skip

    def _named(self, thread: Thread, versions: Iterable[int], *, move_heads: bool) -> list[int]:
        doomed = choose_named(ThreadDraft(thread), versions, move_heads=move_heads)
        with self._context.engine.read() as txn:
            archived = thread.archived_sequence
            return [
                version for version in doomed
                if self._context.archive is None or replay.sequence_of(txn, thread, version) <= archived
            ]  # fmt: skip

    def _before_newest(self, thread: Thread, retained: Ranges, keep_last: int) -> tuple[int, list[int]]:
        """Returns the versions that are not among the ``keep_last`` newest of their branch.

        Returns a number of oldest versions that all may go, and a list of later versions.
        """
        deleted = thread.head.deleted_version
        if len(thread.branches) == 1 and not (deleted and retained.pairs() and retained[0] <= deleted):
            return max(len(retained) - keep_last, 0), []
        left = dict.fromkeys(thread.branches, keep_last)
        at, over = len(retained), list[int]()
        firsts = {name: head.first_version for name, head in thread.branches.copy().items()}
        while at and any(left[name] and first <= retained[at - 1] for name, first in firsts.items()):
            with self._context.engine.read() as txn:
                for version in (retained[index] for index in range(at - 1, max(at - ENTRIES_A_STEP, 0) - 1, -1)):
                    entry = replay.read_version(txn, thread, version)
                    branch = replay.open_metadata(thread.identity, entry).checkpoint.branch or MAIN
                    if left.get(branch) and version >= firsts[branch]:
                        left[branch] -= 1
                    else:  # enough of this branch stay, or the branch was deleted
                        over.append(version)
            at = max(at - ENTRIES_A_STEP, 0)
            time.sleep(PAUSE_S)
        return at, over[::-1]


def _first_since(txn: lmdb.Transaction, thread: Thread, retained: Ranges, now_us: int, time_us: int) -> int:
    """Returns how many of the oldest retained versions were made before a time."""
    return bisect_left(
        range(len(retained)), time_us, key=lambda at: _made_us(txn, thread, retained[at], now_us)
    )  # fmt: skip


def _made_us(txn: lmdb.Transaction, thread: Thread, version: int, now_us: int) -> int:
    header = replay.read_version(txn, thread, version).header
    return made_us(thread.head, header.sequence, header.create_time_us, now_us)


def choose_named(draft: ThreadDraft, versions: Iterable[int], *, move_heads: bool) -> list[int]:
    """Returns the retained versions among ``versions``, ascending.

    Raises VersionNotFound if a version does not exist, InvalidField if it has a tag, or is a head that may not move.
    """
    doomed = sorted(set(versions))
    last = draft.head.last_version
    heads = {branch.version: branch.name for branch in draft.all_branches().values()}
    tagged = {version: name for name, version in draft.all_tags().items()}
    for version in doomed:
        if not 1 <= version <= last:
            raise VersionNotFound(
                f"thread {draft.identity.name!r} has no version {version}", thread=draft.identity.name, version=version
            )
        if version in heads and not move_heads:
            raise InvalidField("versions", f"version {version} is the head of branch {heads[version]!r}")
        if version in tagged:
            raise InvalidField("versions", f"version {version} has the tag {tagged[version]!r}; delete the tag first")
    return [version for version in doomed if version not in draft.pruned]


def protected(draft: ThreadDraft) -> set[int]:
    """Returns the versions that no rule prunes: heads, bases of branches, tagged versions."""
    branches = draft.all_branches().values()
    return (
        {branch.version for branch in branches}
        | {branch.base_version for branch in branches}
        | set(draft.all_tags().values())
    )
