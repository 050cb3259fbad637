"""Rules in which time passes for a thread, also in sleep and under a wrong clock."""

from __future__ import annotations

from hypothesis.stateful import rule
from tests.archive_model.choices import SELDOM, WHO
from tests.archive_model.elements import YEAR_HOURS, Elements
from tests.archive_model.replaced import Replaced

from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING
from stateward.v1.thread_pb2 import ThreadOptions

NAP, NAP_TTL_S = "nap", 8 * 3600


class Ageing(Replaced, Elements):
    """What is over goes, and nothing goes before."""

    def is_undisturbed(self) -> bool:
        """Whether nothing is wrong that a machine would wait for."""
        return not (self.turns.under_way or self.era or self.net.refuses_every or self.net.of_next_format)

    def save_nap(self, who: int) -> None:
        request = self.request(NAP, "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
        self.act(who, f"save {NAP}", lambda it: self.save(it, request, archived=True))

    @rule(who=WHO, behind=SELDOM, now=SELDOM)
    def outlive(self, who: int, behind: bool, now: bool) -> None:
        """A thread has a TTL, and perhaps its last save is by a clock that is a year behind. It stays while its TTL is
        not over by a right clock. Then it goes, although the machine slept meanwhile."""
        if not now or not self.is_undisturbed():
            return
        clock = self.sidecars[who].clock
        clock.skew_s = 0.0
        self.guarded(lambda: self.restart(who))
        clock = self.sidecars[who].clock
        clock.skew_s = 0.0
        self.take_over(who, NAP)
        self.save_nap(who)
        options = ThreadOptions()
        options.ttl.FromSeconds(NAP_TTL_S)
        self.set_options(who, NAP, options, "ttl")
        if behind:
            clock.skew_s = -YEAR_HOURS * 3600.0
            self.save_nap(who)
            clock.skew_s = 0.0
        was_there = self.has_nap(who)
        self.time.sleep(60.0)
        self.act(who, "sweep", lambda it: it.sweep(), sweeps=True)
        if was_there and self.is_undisturbed():
            assert self.has_nap(who), "a thread went long before its time"
        clock.slept_s += 2 * NAP_TTL_S
        self.guarded(lambda: self.time.sleep(2 * NAP_TTL_S))
        self.act(who, "sweep", lambda it: it.sweep(), sweeps=True)
        if self.is_undisturbed():
            assert not self.has_nap(who), "the time of a thread is over since hours, and it is there"

    def has_nap(self, who: int) -> bool:
        thread = self.sidecars[who].find(NAP)
        return thread is not None and thread.identity.uid not in self.truth.deleted
