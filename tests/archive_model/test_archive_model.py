"""The danger: two sidecars, one bucket and bad luck make two histories of one, or lose what was answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from tests.archive_model import small
from tests.archive_model.faults import COMMIT_KINDS, DIES_AFTER, HELD, HELD_AFTER, HOLDS, KINDS, MEANWHILE, Fault
from tests.archive_model.machine import Machine
from tests.archive_model.sidecar import GRACE_S, NAMESPACE, Sidecar
from tests.archive_model.stage import SIDECARS

from stateward.v1.checkpoint_pb2 import STATUS_RUNNING, STATUS_WAITING
from stateward.v1.thread_pb2 import ACCESS_ORPHAN
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest, PruneThreadRequest, SetTagRequest

WHO = st.integers(0, SIDECARS - 1)
NAMES = st.sampled_from(("a", "a", "a", "b"))
KEYS = st.sampled_from(("fare", "hotel"))
BRANCHES = st.sampled_from(("main", "main", "main", "side"))
SIZES = st.sampled_from((10, 10, 60, 300, 1500))
MEANWHILES = st.integers(0, 23)
# Most of what can go wrong goes wrong around a HEAD.
FAULT = st.one_of(
    st.builds(Fault, st.sampled_from(KINDS), st.sampled_from((0, 0, 0, 1)), st.just(True), MEANWHILES),
    st.builds(Fault, st.sampled_from(KINDS), st.integers(0, 4), st.just(False), MEANWHILES),
    st.builds(
        Fault, st.sampled_from(COMMIT_KINDS), st.sampled_from((0, 0, 1, 2)), st.just(False), MEANWHILES, st.just(True)
    ),
)
PLANS = st.one_of(st.just(()), st.tuples(FAULT), st.tuples(FAULT, FAULT))
# What a start does by itself may take long.
STARTS = st.sampled_from(((), (), (Fault(HELD, 0, at_commit=True),)))
# Where giving a thread up takes long: before it is released, and while HEAD says so.
SLOW = (Fault(HELD, 1, at_commit=True), Fault(HELD, 0, at_head=True), Fault(HELD_AFTER, 0, at_head=True))
# Not "explain": it watches every line that runs, and finding takes a quarter of the time without.
PHASES = tuple(phase for phase in Phase if phase is not Phase.explain)
SELDOM = st.sampled_from((False, False, True))


class Rules(Machine):
    """What users, networks and machines do."""

    @initialize(size=SIZES, archived=st.booleans(), one_host=SELDOM)
    def first_steps(self, size: int, archived: bool, one_host: bool = False) -> None:
        """Most histories are of a thread that exists."""
        self.begin(one_host=one_host)
        for _ in range(2):
            request = self.request("a", "main", conditional=True, size=size, status=STATUS_RUNNING)
            self.act(0, "save a", lambda it, request=request: self.save(it, request, archived=archived))

    @rule(who=WHO, name=NAMES, branch=BRANCHES, size=SIZES, conditional=st.booleans(), archived=st.booleans(),
          rests=st.sampled_from((False, False, False, True)), plan=PLANS)  # fmt: skip
    def save_one(
        self, who: int, name: str, branch: str, size: int, conditional: bool, archived: bool, rests: bool,
        plan: tuple[Fault, ...],
    ) -> None:  # fmt: skip
        status = STATUS_WAITING if rests else STATUS_RUNNING
        request = self.request(name, branch, conditional=conditional, size=size, status=status)
        what = f"save {name}/{branch}{' if' if conditional else ''}{' archived' if archived else ''}"
        self.act(who, what, lambda it: self.save(it, request, archived=archived), plan)

    @rule(who=WHO, plan=PLANS, then=PLANS, takes=st.booleans())
    def flush(self, who: int, plan: tuple[Fault, ...], then: tuple[Fault, ...], takes: bool) -> None:
        """Two saves that are shipped, where the network is bad; perhaps the thread is taken first."""
        if takes:
            self.take_over(who, "a")
        for each in (plan, then):
            request = self.request("a", "main", conditional=takes, size=20, status=STATUS_RUNNING)
            self.act(who, "save a archived", lambda it, r=request: self.save(it, r, archived=True), each)

    @rule(who=WHO, name=NAMES, count=st.integers(2, 6), size=SIZES, archived=st.booleans())
    def work(self, who: int, name: str, count: int, size: int, archived: bool) -> None:
        """An agent makes some steps."""
        for _ in range(count):
            request = self.request(name, "main", conditional=False, size=size, status=STATUS_RUNNING)
            self.act(who, f"work on {name}", lambda it, request=request: self.save(it, request, archived=archived))

    @rule(who=WHO, name=NAMES, key=KEYS, restarted=st.booleans(), finishes=st.booleans(), plan=PLANS)
    def pay(
        self, who: int, name: str, key: str, restarted: bool, finishes: bool, plan: tuple[Fault, ...]
    ) -> None:  # fmt: skip
        """An agent calls a tool that must not be called twice."""

        def verb(it: Sidecar) -> None:
            super(Rules, self).pay(it, name, key, restarted=restarted, finishes=finishes)

        self.act(who, f"pay {key} of {name}", verb, plan)

    @rule(who=WHO, back=st.integers(1, 4), archived=st.booleans(), plan=PLANS)
    def retry(self, who: int, back: int, archived: bool, plan: tuple[Fault, ...]) -> None:
        """A client whose answer was lost asks again, anywhere."""
        if len(self.requests) >= back:
            request = self.requests[-back][0]
            self.act(who, f"retry {request.thread}", lambda it: self.save(it, request, archived=archived), plan)

    @rule(who=WHO, name=NAMES, worked=st.integers(0, 6), size=SIZES, count=st.integers(1, 4), archived=st.booleans(),
          is_new=SELDOM)  # fmt: skip
    def retry_after_takeover(
        self, who: int, name: str, worked: int, size: int, count: int, archived: bool, is_new: bool
    ) -> None:  # fmt: skip
        """A client goes on with another sidecar, perhaps a new one: it reads, the thread is taken, and old requests are
        sent again."""
        self.work((who + 1) % SIDECARS, name, worked, size, archived=True)
        self.lose(who, now=is_new)
        self.read(who, name, "main", ())
        self.take_over(who, name)
        for request, _ in self.requests[:: max(len(self.requests) // count, 1)]:
            if request.thread == name:
                self.act(who, f"retry {name}", lambda it, r=request: self.save(it, r, archived=archived))

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

    @rule(who=WHO, back=st.integers(1, 6), plan=PLANS)
    def wait_durable_of(self, who: int, back: int, plan: tuple[Fault, ...]) -> None:
        """A client asks whether what it was answered is archived."""
        answers = [
            (request.thread, answer) for request, known in self.requests for one in known.values() for answer in one
        ]
        if len(answers) >= back:
            name, saved = answers[-back]
            self.act(who, f"wait for {name} {saved.sequence}", lambda it: self.wait_durable(it, name, saved), plan)

    @rule(who=WHO, name=NAMES, branch=BRANCHES, plan=PLANS)
    def read(self, who: int, name: str, branch: str, plan: tuple[Fault, ...]) -> None:
        self.act(who, f"hydrate {name}/{branch}", lambda it: self.read_branch(it, name, branch), plan)

    def read_branch(self, sidecar: Sidecar, name: str, branch: str) -> None:
        if branch == "main" or self.truth.head(self.key_of(sidecar, name)) is not None:
            thread = sidecar.find(name)
            if branch != "main" and (thread is None or branch not in thread.branches):
                return
            self.hydrate(sidecar, name, branch)

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
    def attach(self, who: int, name: str, plan: tuple[Fault, ...]) -> None:
        self.act(who, f"attach {name}", lambda it: it.archive.own(NAMESPACE, name, must_exist=True), plan)

    @rule(who=WHO, name=NAMES, plan=PLANS)
    def take(self, who: int, name: str, plan: tuple[Fault, ...]) -> None:
        self.take_over(who, name, plan)

    @rule(who=WHO, name=NAMES, plan=PLANS)
    def detach(self, who: int, name: str, plan: tuple[Fault, ...]) -> None:
        self.act(who, f"detach {name}", lambda it: it.archive.detach(NAMESPACE, name), plan)

    @rule(who=WHO, name=NAMES, tag=st.sampled_from(("x", "y")), plan=PLANS)
    def tag(self, who: int, name: str, tag: str, plan: tuple[Fault, ...]) -> None:
        def set_tag(sidecar: Sidecar) -> None:
            stops = self.turns.stops
            answer = sidecar.tag(SetTagRequest(namespace=NAMESPACE, thread=name, tag=tag))
            thread = sidecar.find(name)
            if thread is None or stops != self.turns.stops:
                return  # perhaps of another line
            line = {item.number: line for item, line in self.journals(sidecar)}[thread.number]
            sidecar.disk.promised.append((thread.identity.uid, answer.sequence, line[answer.sequence]))

        self.act(who, f"tag {name}", set_tag, plan)

    @rule(who=WHO, name=NAMES, keep=st.integers(1, 3), plan=PLANS)
    def prune(self, who: int, name: str, keep: int, plan: tuple[Fault, ...]) -> None:
        request = PruneThreadRequest(namespace=NAMESPACE, thread=name, keep_latest_per_branch=keep)
        self.act(who, f"prune {name}", lambda it: it.prune(request), plan)

    @rule(who=WHO, name=NAMES, plan=PLANS, now=SELDOM)
    def delete(self, who: int, name: str, plan: tuple[Fault, ...], now: bool) -> None:
        if not now:
            return

        def delete(sidecar: Sidecar) -> None:
            answer = sidecar.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=name))
            uid = bytes.fromhex(answer.uid)
            assert uid in self.truth.deleted or self.era, "deleted here, and not in the archive"
            self.truth.deleted.add(uid)

        self.act(who, f"delete {name}", delete, plan)

    @rule(who=WHO, name=NAMES, plan=PLANS, now=SELDOM)
    def delete_here(self, who: int, name: str, plan: tuple[Fault, ...], now: bool) -> None:
        """The copy on this disk goes, and what was not archived with it; the thread stays in the archive."""

        def delete(sidecar: Sidecar) -> None:
            thread = sidecar.find(name)
            if thread is None:
                return
            uid = thread.identity.uid
            sidecar.disk.drop(uid)
            sidecar.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=name, local_only=True))
            sidecar.disk.drop(uid)  # what was saved before the deletion's commit goes with it

        if now:
            self.act(who, f"delete {name} here", delete, plan)

    @rule(who=WHO, name=NAMES, at=st.sampled_from(SLOW), before=st.integers(0, 3), goes_on=st.booleans())
    def give_up_slowly(self, who: int, name: str, at: Fault, before: int, goes_on: bool) -> None:
        """While the HEAD that gives a thread up is on its way, rows are written, memory is short, and a save comes."""
        self.save_one(who, name, "main", 10, conditional=False, archived=True, rests=True, plan=(at,))
        if before & 1:
            self.write_rows(who)
        if before & 2:
            self.forget(who)
            self.read(who, name, "main", ())
        self.work(who, name, 1, 10, archived=False)
        if goes_on:
            self.resume(len(self.turns.held) - 1)

    @rule(who=WHO, name=NAMES, dies=st.booleans(), plan=STARTS, now=SELDOM)
    def come_back(self, who: int, name: str, dies: bool, plan: tuple[Fault, ...], now: bool) -> None:
        """A thread that was deleted here is used again, perhaps while the next start still clears up after it."""
        if now:
            self.delete_here(who, name, (Fault(DIES_AFTER, 0, at_commit=True),) if dies else (), now=True)
            self.crash(who, plan)
            self.read(who, name, "main", ())
            self.work(who, name, 1, 10, archived=False)
            self.background(who, ())
            self.crash(who)

    @rule(who=WHO, which=st.integers(0, 2), version=st.integers(0, 12), plan=PLANS)
    def read_aside(self, who: int, which: int, version: int, plan: tuple[Fault, ...]) -> None:
        """Old versions of an orphan, and its own."""
        orphans = [thread for thread in self.sidecars[who].threads() if thread.access == ACCESS_ORPHAN]
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
    def fork(self, who: int, name: str, plan: tuple[Fault, ...]) -> None:
        """A copy of main's head, of an orphan where there is one."""

        def fork(sidecar: Sidecar) -> None:
            orphans = [thread.name for thread in sidecar.threads() if thread.access == ACCESS_ORPHAN]
            source = orphans[0] if orphans and name == "b" else name
            sidecar.fork(ForkThreadRequest(namespace=NAMESPACE, thread=source, new_thread="fork"))
            self.see_fork(sidecar, source, "fork")

        self.act(who, f"fork {name}", fork, plan)

    @rule(who=WHO, plan=PLANS, grace=st.sampled_from((0, int(GRACE_S))))
    def collect(self, who: int, plan: tuple[Fault, ...], grace: int) -> None:
        """Garbage in the bucket; nobody reads meanwhile, so that there need be no grace."""
        if not grace:
            if self.turns.under_way:
                return
            plan = tuple(fault for fault in plan if fault.kind not in (MEANWHILE, *HOLDS))
        self.act(who, f"collect after {grace} s", lambda it: it.collect(grace), plan)

    @rule(who=WHO, hours=st.sampled_from((-30, -1, 1, 30)))
    def turn_clock(self, who: int, hours: int) -> None:
        """A wall clock jumps."""
        self.sidecars[who].clock.skew_s += hours * 3600

    @rule(who=WHO, plan=STARTS)
    def crash(self, who: int, plan: tuple[Fault, ...] = ()) -> None:
        self.steps.append(f"{who}: crash [{', '.join(map(str, plan))}]")
        self.guarded(lambda: self.restart(who, plan))

    @rule(who=WHO)
    def stop(self, who: int) -> None:
        """SIGTERM, and a start."""
        self.act(who, "stop", lambda it: it.stop())
        self.guarded(lambda: self.restart(who))

    @rule(who=WHO, now=SELDOM)
    def lose(self, who: int, now: bool) -> None:
        if now:
            self.guarded(lambda: self.lose_disk(who))

    @rule(who=WHO)
    def copy(self, who: int) -> None:
        self.keep_copy(who)

    @rule(who=WHO, owner=WHO, now=SELDOM)
    def restore(self, who: int, owner: int, now: bool) -> None:
        if self.copies and now:
            self.guarded(lambda: self.use_copy(who, self.owner(owner)))

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

    @rule()
    def arrive(self) -> None:
        """What was under way to the bucket arrives."""
        self.guarded(self.net.arrive)


RULES: Any = Rules


@pytest.fixture(autouse=True)
def _limits() -> Any:
    yield
    small.restore()


def run(examples: int, steps: int = 30) -> None:
    """The machine, so many times, with the same dice each time: others are thrown by `make soak`."""
    run_state_machine_as_test(
        RULES,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, print_blob=True,
            derandomize=True, database=None, suppress_health_check=list(HealthCheck), phases=PHASES,
        ),
    )  # fmt: skip


def test_two_sidecars_agree_with_the_truth() -> None:
    """Whatever happens to two sidecars and their bucket, no promise is broken and HEAD names one history."""
    run(40)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_sidecars_agree_with_the_truth_for_long() -> None:
    """The same with many and long histories."""
    run(1000, steps=40)
