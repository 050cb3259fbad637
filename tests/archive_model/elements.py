"""Rules in which a machine sleeps or tells a wrong time, has no room, or a bucket that is slow or busy."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import NAMES, SELDOM, WHO
from tests.archive_model.faults import REQUEST_S
from tests.archive_model.meetings import Meetings
from tests.archive_model.sidecar import Sidecar
from tests.daemon.driven import NAMESPACE
from tests.daemon.small import SLICE_BYTES

from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING
from stateward_sidecar.errors import DiskFull
from stateward_sidecar.store.thread.times import WRONG_US

ASLEEP_S = 7200
ROOM_BYTES = 16_400  # for the smallest write
YEAR_HOURS = 365 * 24
# A slice needs less than a request may take, and two of them need more.
WIRE_BYTES_S = 0.7 * 2 * SLICE_BYTES / REQUEST_S


class Elements(Meetings):
    """What befalls a machine, and no other one."""

    @rule(who=WHO, hours=st.sampled_from((-YEAR_HOURS, -30, -1, 1, 30, YEAR_HOURS)))
    def turn_clock(self, who: int, hours: int) -> None:
        """A wall clock jumps."""
        self.sidecars[who].clock.skew_s += hours * 3600

    @rule(who=WHO, name=NAMES)
    def set_clock_right(self, who: int, name: str) -> None:
        """A wall clock is set right, and the thread is saved: from now on it ages."""
        self.sidecars[who].clock.skew_s = 0.0
        request = self.request(name, "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)

        def save(it: Sidecar) -> None:
            before_us = it.clock.now_us()
            answer = self.save(it, request, archived=True)
            thread = it.find(name)
            if thread is None or answer.receipt.replayed or thread.identity.uid.hex() != answer.receipt.uid:
                return
            latest_us = max(before_us, it.clock.now_us()) + WRONG_US  # the clock may jump while the save waits
            if thread.head.last_version == answer.version:
                assert thread.head.save_time_us <= latest_us, "a save by a right clock is of the future: no TTL ends"
            hold = it.hold_of(name)
            if hold is not None and hold.archived_sequence >= answer.receipt.sequence:
                dropped = max((item.time_us for item in hold.head.garbage), default=0)
                assert max(dropped, hold.head.update_time_us) <= latest_us, "garbage of the future is never due"

        self.act(who, f"save {name} by a right clock", save)

    @rule(who=WHO, now=SELDOM)
    def sleep_one(self, who: int, now: bool) -> None:
        """A machine sleeps for two hours, and the others do not. Nothing of it is under way."""
        if not now or self.turns.under_way:
            return
        self.sidecars[who].clock.slept_s += ASLEEP_S
        self.guarded(lambda: self.time.sleep(ASLEEP_S))

    @rule(who=WHO, name=NAMES, takes=st.booleans())
    def take_without_room(self, who: int, name: str, takes: bool) -> None:
        """A sidecar whose disk is full wants a thread. If it does not fit, the archive does not say that it has it."""
        sidecar = self.sidecars[who]
        engine = sidecar.store.context.engine
        room = engine.room_bytes
        is_full: list[bool] = []
        before = self.truth.heads.get(self.key_of(sidecar, name))

        def own(it: Sidecar) -> None:
            try:
                it.archive.own(NAMESPACE, name, take_over=takes, must_exist=True)
            except DiskFull:
                is_full.append(True)

        engine.room_bytes = lambda: ROOM_BYTES  # type: ignore[method-assign]
        sidecar.is_full = True  # for its other calls, too, which go on meanwhile
        try:
            self.act(who, f"take {name} without room", own, takes_over=takes)
        finally:
            engine.room_bytes = room  # type: ignore[method-assign]
            sidecar.is_full = False
        if not is_full or sidecar.is_dead or sidecar.holds(name):
            return
        now = self.truth.heads.get(self.key_of(sidecar, name))
        if now is None or now is before:
            return
        head, is_mine = now.head, now.head.boot_id == sidecar.archive.state.boot_id
        is_free = head.detached or head.deleted or not head.tip_sequence  # a claim of another call has no entries
        assert not is_mine or is_free, "a thread was taken by a sidecar without room for it"

    @rule(every=st.sampled_from((0, 0, 3, 4, 7)))
    def throttle(self, every: int) -> None:
        """The bucket answers 503 to every n-th request of any kind, until this rule says 0."""
        self.net.refuses_every = every

    @rule(speed=st.sampled_from((0, 0, WIRE_BYTES_S)))
    def narrow(self, speed: float) -> None:
        """Objects reach the bucket slowly, until this rule says 0: a slice in time, and several of them in one request
        not."""
        self.net.bytes_a_s = speed
