"""The simple things that happen: reads, work, background, time, losses. Other rules are made of them."""

from __future__ import annotations

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import BRANCHES, KEPT, NAMES, PLANS, SELDOM, SIZES, STARTS, WHO
from tests.archive_model.faults import Fault
from tests.archive_model.machine import ArchiveMachine
from tests.archive_model.sidecar import Sidecar
from tests.daemon.driven import GRACE_S

from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN


class Steps(ArchiveMachine):
    """One at a time."""

    # -- reading --------------------------------------------------------------------------------------------------

    @rule(who=WHO, name=NAMES, branch=BRANCHES, plan=PLANS)
    def read(self, who: int, name: str, branch: str, plan: tuple[Fault, ...]) -> None:
        self.act(who, f"hydrate {name}/{branch}", lambda it: self.read_branch(it, name, branch), plan)

    def read_branch(self, sidecar: Sidecar, name: str, branch: str) -> None:
        if branch == "main" or self.truth.head(self.key_of(sidecar, name)) is not None:
            thread = sidecar.find(name)
            if branch != "main" and (thread is None or branch not in thread.branches):
                return
            self.hydrate(sidecar, name, branch)

    @rule(who=WHO, which=st.integers(0, 2), version=st.integers(0, 12), plan=PLANS)
    def read_aside(self, who: int, which: int, version: int, plan: tuple[Fault, ...]) -> None:
        """Old versions of an orphan, and its own."""
        orphans = [thread for thread in self.sidecars[who].threads() if thread.access == THREAD_ACCESS_ORPHAN]
        if orphans:
            name, last = orphans[which % len(orphans)].name, orphans[which % len(orphans)].head.last_version
            chosen = (version % last + 1) if last else 0
            self.act(who, f"hydrate {name} version {chosen}", lambda it: self.hydrate(it, name, "main", chosen), plan)

    @rule(who=WHO, name=NAMES, version=st.integers(1, 12), plan=PLANS)
    def read_old(self, who: int, name: str, version: int, plan: tuple[Fault, ...]) -> None:
        """Time travel, for which history may have to come from the archive."""
        what = f"hydrate {name} version {version}"
        self.act(who, what, lambda it: self.hydrate(it, name, "main", version), plan)

    @rule(who=WHO, name=NAMES, plan=PLANS)
    def list_all(self, who: int, name: str, plan: tuple[Fault, ...]) -> None:
        """All versions of a thread; of its newest orphan, where it is the other name's turn."""
        orphans = [thread.name for thread in self.sidecars[who].threads() if thread.access == THREAD_ACCESS_ORPHAN]
        chosen = orphans[-1] if orphans and name == "b" else name
        self.act(who, f"list {chosen}", lambda it: self.list_versions(it, chosen), plan)

    # -- writing --------------------------------------------------------------------------------------------------

    @rule(who=WHO, name=NAMES, count=st.integers(2, 6), size=SIZES, archived=st.booleans())
    def work(self, who: int, name: str, count: int, size: int, archived: bool) -> None:
        """An agent makes some steps."""
        for at in range(count):
            request = self.request(name, "main", conditional=False, size=size, status=WORK_STATUS_RUNNING)
            self.act(who, f"work on {name}", lambda it, request=request: self.save(it, request, archived=archived))
            if self.keeps_records:
                put = self.put_request(name, (KEPT[at % len(KEPT)],), size=size)
                self.act(who, f"put {name}", lambda it, put=put: self.put(it, put, archived=archived))

    @rule(who=WHO, plan=PLANS)
    def ship(self, who: int, plan: tuple[Fault, ...]) -> None:
        self.act(who, "ship", self.ship_all, plan)

    @rule(who=WHO, plan=PLANS)
    def background(self, who: int, plan: tuple[Fault, ...]) -> None:
        """Uploads and deletions that nobody waits for."""
        self.act(who, "background", lambda it: it.tidy(), plan)

    @rule(who=WHO)
    def write_rows(self, who: int) -> None:
        """What is known of HEADs is written down, as it is once a second."""
        self.act(who, "write rows", lambda it: it.write_rows())

    @rule(who=WHO)
    def forget(self, who: int) -> None:
        """Memory is short."""
        self.act(who, "forget", lambda it: it.forget())

    @rule(which=st.integers(0, 3))
    def resume(self, which: int) -> None:
        """A call that was held goes on."""
        self.go_on(which)

    @rule(who=WHO, name=NAMES, plan=PLANS)
    def take(self, who: int, name: str, plan: tuple[Fault, ...]) -> None:
        self.take_over(who, name, plan)

    @rule(who=WHO, plan=STARTS)
    def crash(self, who: int, plan: tuple[Fault, ...] = ()) -> None:
        self.steps.append(f"{who}: crash [{', '.join(map(str, plan))}]")
        self.guarded(lambda: self.restart(who, plan))

    @rule(who=WHO, now=SELDOM)
    def lose(self, who: int, now: bool) -> None:
        if now:
            self.guarded(lambda: self.lose_disk(who))

    @rule()
    def back_up_bucket(self) -> None:
        self.back_up()

    @rule(now=SELDOM)
    def set_back_bucket(self, now: bool) -> None:
        if self.backups and now and not self.turns.under_way:
            self.guarded(self.set_back)

    @rule(seconds=st.sampled_from((1.0, 11.0, 11.0, GRACE_S + 100)))
    def wait(self, seconds: float) -> None:
        self.time.sleep(seconds)
        self.guarded(self.turns.advance)
