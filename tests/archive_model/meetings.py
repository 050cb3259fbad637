"""Where two machines have met, and parted: one owner is replaced, and one line becomes two."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import NAMES, PLANS, SELDOM, SIZES, WHO
from tests.archive_model.faults import Fault
from tests.archive_model.stage import SIDECARS
from tests.archive_model.steps import Steps


class Meetings(Steps):
    """Rules that are made of steps."""

    @rule(who=WHO, name=NAMES, count=st.integers(1, 3), seconds=st.sampled_from((1.0, 11.0, 11.0)),
          aside=st.integers(0, 7), plan=PLANS)  # fmt: skip
    def be_idle(self, who: int, name: str, count: int, seconds: float, aside: int, plan: tuple[Fault, ...]) -> None:
        """An owner has nothing to do, while the other one takes its thread and goes on; then it is asked for it."""
        other = (who + 1) % SIDECARS
        self.take_over(who, name)
        self.work(who, name, 1, 10, archived=True)
        self.take_over(other, name)
        self.work(other, name, count, 10, archived=True)
        self.wait(seconds)
        if aside & 1:
            self.write_rows(who)
        if aside & 2:
            self.forget(who)
        self.read(who, name, "main", plan)
        if aside & 4:
            self.work(who, name, 1, 10, archived=False)
            self.read(other, name, "main", plan)

    @rule(who=WHO, name=NAMES, worked=st.sampled_from((0, 6, 12)), is_new=st.booleans(), own=st.integers(1, 6),
          count=st.integers(1, 8), size=SIZES, plan=PLANS)  # fmt: skip
    def part(
        self, who: int, name: str, own: int, count: int, size: int, plan: tuple[Fault, ...], worked: int = 0,
        is_new: bool = False,
    ) -> None:  # fmt: skip
        """One goes on, and does not archive all of it; the other takes the thread, goes on otherwise, and archives.

        The thread may have a long history before, and the first one be new, so that it has the newest part only.
        """
        other = (who + 1) % SIDECARS
        if worked:
            self.take_over(other, name)
            for _ in range(worked // 3):
                self.work(other, name, 3, size, archived=True)
                self.background(other, ())
        self.lose(who, now=is_new)
        self.read(who, name, "main", ())
        self.take_over(who, name)
        self.work(who, name, 1, 10, archived=True)
        self.work(who, name, own, 10, archived=False)
        self.take_over(other, name)
        self.work(other, name, count, size, archived=True)
        self.background(other, ())
        self.ship(who, plan)

    @rule(who=WHO, name=NAMES, lost=st.integers(1, 3), count=st.integers(1, 3), size=SIZES, touch=st.integers(0, 3),
          again=st.booleans(), now=SELDOM)  # fmt: skip
    def lose_line(
        self, who: int, name: str, lost: int, count: int, size: int, now: bool, touch: int = 0, again: bool = False
    ) -> None:  # fmt: skip
        """The bucket is set back to before what one machine has read; the thread goes on from there elsewhere."""
        reader = (who + 1) % SIDECARS
        if not now:
            return
        while self.turns.held:
            self.go_on(0)
        if self.turns.under_way:
            return
        self.take_over(who, name)
        self.work(who, name, 1, 10, archived=True)
        self.back_up()
        self.work(who, name, lost, size, archived=True)
        self.read(reader, name, "main", ())
        self.lose(who, now=True)
        self.set_back_bucket(now=True)
        self.take_over(who, name)
        self.work(who, name, count, size, archived=True)
        if again:
            self.crash(reader, ())
        if touch == 1:
            self.list_all(reader, name, ())
        elif touch == 2:
            self.take_over(reader, name)
        elif touch == 3:
            self.wait(11.0)
            self.work(reader, name, 1, 10, archived=True)
        self.read(reader, name, "main", ())
