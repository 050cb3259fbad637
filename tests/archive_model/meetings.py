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

    @rule(who=WHO, name=NAMES, own=st.integers(1, 4), count=st.integers(1, 4), size=SIZES, plan=PLANS)
    def part(self, who: int, name: str, own: int, count: int, size: int, plan: tuple[Fault, ...]) -> None:
        """One goes on, and does not archive all of it; the other takes the thread, goes on otherwise, and archives."""
        other = (who + 1) % SIDECARS
        self.read(who, name, "main", ())
        self.take_over(who, name)
        self.work(who, name, 1, 10, archived=True)
        self.work(who, name, own, 10, archived=False)
        self.take_over(other, name)
        self.work(other, name, count, size, archived=True)
        self.ship(who, plan)

    @rule(who=WHO, name=NAMES, lost=st.integers(1, 3), count=st.integers(1, 3), size=SIZES, now=SELDOM)
    def lose_line(self, who: int, name: str, lost: int, count: int, size: int, now: bool) -> None:
        """The bucket is set back to before what one machine has read; the thread goes on from there elsewhere."""
        reader = (who + 1) % SIDECARS
        if not now or self.turns.under_way:
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
        self.read(reader, name, "main", ())
