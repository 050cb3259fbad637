"""What the times of entries mean if a clock was wrong, and when leases and claims end.

An entry has the time that the clock of its writer told. Small differences between machines are hidden: a time is never
a little earlier than the last one. But a clock that is an hour behind the newest entry is not overruled, because one
moment of a clock that ran ahead would stop all ageing until the true time has caught up. The head notes the place where
the times went back (``ClockStep``). Nobody can tell at that place which of the two clocks was wrong. A reader can tell
by its own clock: no entry was written in the future.

* An entry of the future was written no later than the next entry after a step. If there is no such step, it counts as
  written now.
* An entry after a step was written no earlier than the entry before the step, unless that one is of the future.

When terms end: those of leases, and those of claims on effects.

Only this process knows the ends of terms, on the boot-time clock, which never jumps. A lease or claim that was granted
before a restart or on another machine begins its full term when it is first asked for. So nobody loses a right too
early.
"""

from __future__ import annotations

from collections import OrderedDict

from stateward.storage.v1.head_pb2 import BlobRow, ThreadHead
from stateward_sidecar.clock import Clock

SECOND_US = 1_000_000
# Clocks of machines that differ by less are taken for right.
WRONG_US = 3600 * SECOND_US
# Places that a head notes. An older one is dropped; the newer ones still say that an entry is not of the future.
STEPS_KEPT = 8


def next_time_us(head: ThreadHead, now_us: int) -> int:
    """Returns the time of the entry that follows the newest one of a head. Notes it in the head if times go back."""
    last_us = head.update_time_us
    if now_us >= last_us - WRONG_US:
        return max(now_us, last_us)
    head.clock_steps.add(sequence=head.tip_sequence, before_us=last_us, after_us=now_us)
    del head.clock_steps[:-STEPS_KEPT]
    return now_us


def made_us(head: ThreadHead, sequence: int, time_us: int, now_us: int) -> int:
    """Returns when an entry was written, given its time and the reader's clock: never earlier than it really was, as
    far as the thread's times can tell."""
    if not head.clock_steps and time_us <= now_us + WRONG_US:
        return time_us
    latest_us = now_us + WRONG_US
    if time_us > latest_us:
        after = (step.after_us for step in head.clock_steps if step.sequence >= sequence and step.after_us <= latest_us)
        return next(after, now_us)
    before = (step.before_us for step in head.clock_steps if step.sequence < sequence and step.before_us <= latest_us)
    return max((time_us, *before))


def blob_written_us(head: ThreadHead, row: BlobRow, now_us: int) -> int:
    """Returns when a blob was last written, as ``made_us`` does."""
    return made_us(head, row.write_sequence, row.write_time_us, now_us)


# -- expiry of threads --------------------------------------------------------------------------------------------


def expire_second(head: ThreadHead) -> int:
    """Returns the earliest second since 1970 in which the thread may expire, rounded up; 0 = never.

    It depends on the head alone, so it is the key of an index. A clock that was behind makes it too early:
    ``has_expired`` decides.
    """
    if not head.options.HasField("ttl"):
        return 0
    sequence, time_us = _last_save(head)
    after = (step.after_us for step in head.clock_steps if step.sequence >= sequence)
    return -(-(min(time_us, next(after, time_us)) + head.options.ttl.ToMicroseconds()) // SECOND_US)


def has_expired(head: ThreadHead, now_us: int) -> bool:
    """Returns whether the thread's TTL is over by this clock."""
    if not head.options.HasField("ttl"):
        return False
    return made_us(head, *_last_save(head), now_us) + head.options.ttl.ToMicroseconds() <= now_us


def _last_save(head: ThreadHead) -> tuple[int, int]:
    """Returns sequence and time of the newest version; of the first entry if there is no version."""
    if not head.save_time_us:
        return 1, head.create_time_us
    # The newest version of a copy or a restored thread may be pruned, and then its entry is not here.
    return min(head.last_version + head.version_offset, head.tip_sequence), head.save_time_us


# With more leases and claims than this, the oldest are forgotten, and begin their full term again.
KEPT_MAX = 100_000
Key = tuple[int, bytes]
LEASE = b""  # the second part of a key: empty for the lease of the thread, else the row of an effect


class Terms:
    """The ends of terms, by thread number and row."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._ends: OrderedDict[Key, tuple[int, float]] = OrderedDict()  # token, end

    def begin(self, key: Key, token: int, term_us: int) -> None:
        """Begins a term of ``term_us`` microseconds now."""
        self._ends[key] = token, self._clock.boottime() + term_us / 1e6
        self._ends.move_to_end(key)
        while len(self._ends) > KEPT_MAX:
            self._ends.popitem(last=False)

    def begin_again(self, key: Key, token: int, term_us: int) -> None:
        """Begins a term now, if it is still that of the token."""
        if self._ends.get(key, (0, 0.0))[0] == token:
            self.begin(key, token, term_us)

    def remaining_s(self, key: Key, token: int, term_us: int) -> float:
        """Returns the seconds that are left of a term; 0 = it is over. An unknown term begins now."""
        known = self._ends.get(key)
        if known is None or known[0] != token:
            self.begin(key, token, term_us)
            return term_us / 1e6
        return max(known[1] - self._clock.boottime(), 0.0)

    def end_of(self, key: Key, token: int) -> float | None:
        """Returns when a term ends, on the boot-time clock; None if nobody has asked for it in this process."""
        known = self._ends.get(key)
        return known[1] if known is not None and known[0] == token else None

    def forget(self, key: Key) -> None:
        """Forgets a term, because the lease was given back or the effect is over."""
        self._ends.pop(key, None)
