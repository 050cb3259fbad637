"""The kinds of histories, and what a seed makes of them."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from tests.histories.clients import Habits
from tests.histories.pictures import HUGE_BYTES

CLOCKS = {"turn_clock": 2, "sleep": 1}
PROCESSES = {"kill": 4, "stop": 2, "pause": 1, "copy": 4, **CLOCKS}
HANDS = {"take_over": 5, "detach": 3, "away": 2, "kill": 3, "stop": 2, "pause": 2, "look_back": 2, "copy": 6, **CLOCKS}
DISKS = {"lose_disk": 1, "delete_here": 2}
WIRES = {"storm": 4, "cut": 2, "slow_heads": 2, "slow_detach": 3, "throttle": 2, "slow_wire": 2}


@dataclass(frozen=True)
class Scenario:
    """``archive``: "" = none, "directory" or "s3". ``promise``: as in checker/record.go."""

    name: str
    machines: int
    archive: str
    promise: str
    evils: dict[str, int] = field(default_factory=dict)
    is_calm: bool = False
    habits: Habits = Habits()  # noqa: RUF009  frozen
    # Daemons as somebody starts them who says nothing about who they are.
    says_owner: bool = True
    lease_s: float = 1.0
    threads: int = 3  # at most
    # When a daemon gives up a request to the bucket, in seconds: one of these.
    patience_s: tuple[float, ...] = (1.5, 4.0)
    # How fast objects reach the bucket; 0 = at once.
    put_bytes_s: float = 0.0
    # Clients of one more thread, which is deleted and made again.
    late_writers: int = 0

    def habits_of(self, dice: random.Random) -> Habits:
        """The habits of one history: some have many takeovers, some have almost none, and so on."""
        if self.promise != "archived" or self.is_calm:
            return self.habits
        return replace(
            self.habits, takes_over=dice.choice((0.02, 0.2, 0.8)), archived=dice.choice((0.1, 0.35, 0.7)),
            waiting=dice.choice((0.0, 0.05, 0.3)), moves=dice.choice((0.05, 0.3)),
        )  # fmt: skip


ALONE, ALL = "committed", "archived"
CALM = Habits(waiting=0.0, takes_over=0.0, moves=0.05, archived=0.5)
# Nobody leaves its machine, so that an owner that was idle, and was replaced with reason, is not written to any more.
SETTLED = Habits(waiting=0.0, takes_over=0.0, moves=0.0, archived=0.2, only_reads=0.0, huge=0.08)

SCENARIOS = (
    Scenario("one daemon", 1, "", ALONE, PROCESSES, habits=Habits(archived=0.0)),
    Scenario("one daemon, directory", 1, "directory", ALONE, {**PROCESSES, "detach": 2, "take_over": 1}),
    Scenario("one daemon, S3", 1, "s3", ALONE, {**PROCESSES, **WIRES, "detach": 2}),
    Scenario("two daemons, directory", 2, "directory", ALL, {**HANDS, **DISKS}),
    Scenario("two daemons, S3", 2, "s3", ALL, {**HANDS, **WIRES}),
    Scenario("two daemons, S3, disks", 2, "s3", ALL, {**HANDS, **WIRES, **DISKS}, late_writers=2),
    Scenario("three daemons, directory", 3, "directory", ALL, {**HANDS, **DISKS}, late_writers=2),
    Scenario("three daemons, S3", 3, "s3", ALL, {**HANDS, **WIRES, **DISKS}),
    Scenario("upgrade", 2, "directory", ALL, {**HANDS, "upgrade": 3}, late_writers=1),
    Scenario("neighbours", 2, "directory", ALL, {}, is_calm=True, habits=CALM, says_owner=False, lease_s=30.0),
    Scenario(  # a huge blob takes two leases and more, while both daemons want the thread
        "slow uploads", 2, "s3", ALL, {}, is_calm=True, habits=SETTLED, lease_s=4.0, threads=1, patience_s=(30.0,),
        put_bytes_s=HUGE_BYTES / 9,
    ),
    Scenario(
        "bucket set back", 2, "directory", "set back", {"set_bucket_back": 1, "kill": 1, "detach": 1},
        habits=Habits(pictures=0.0),
    ),
)


def scenario_of(seed: int) -> Scenario:
    """Seeds go through all scenarios in turn."""
    return SCENARIOS[seed % len(SCENARIOS)]
