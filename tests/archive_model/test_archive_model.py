"""The danger: two sidecars, one bucket and bad luck make two histories of one, or lose what was answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from tests.archive_model.ageing import Ageing
from tests.archive_model.backing_up import BackingUp
from tests.archive_model.choices import BRANCHES, KEYS, NAMES, PLANS, SELDOM, SIZES, STARTS, WHO, WINDOWS
from tests.archive_model.clearing import Clearing
from tests.archive_model.faults import DIES_AFTER, GATHERS, HELD, HELD_AFTER, HOLDS, MEANWHILE, READ_HELD, Fault
from tests.archive_model.halves import Halves
from tests.archive_model.letting_go import LettingGo
from tests.archive_model.recordrules import RecordRules
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.stage import SIDECARS
from tests.daemon import small
from tests.daemon.driven import GRACE_S, LEASE_S, NAMESPACE

from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING, WORK_STATUS_WAITING
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest, PruneThreadRequest, SetTagRequest
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_ENTRIES

# Not "explain": it watches every line that runs, and finding takes a quarter of the time without.
PHASES = tuple(phase for phase in Phase if phase is not Phase.explain)


class Rules(LettingGo, RecordRules, Clearing, BackingUp, Halves, Ageing):
    """What users, networks and machines do."""

    @initialize(size=SIZES, archived=st.booleans(), one_host=SELDOM, window=WINDOWS, keeps_records=st.booleans())
    def first_steps(
        self, size: int, archived: bool, one_host: bool = False, window: int = REQUEST_WINDOW_ENTRIES,
        keeps_records: bool = False,
    ) -> None:  # fmt: skip
        """Most histories are of a thread that exists."""
        self.begin(one_host=one_host, window=window, keeps_records=keeps_records)
        for _ in range(2):
            request = self.request("a", "main", conditional=True, size=size, status=WORK_STATUS_RUNNING)
            self.act(0, "save a", lambda it, request=request: self.save(it, request, archived=archived))

    @rule(who=WHO, name=NAMES, branch=BRANCHES, size=SIZES, conditional=st.booleans(), archived=st.booleans(),
          rests=st.sampled_from((False, False, False, True)), plan=PLANS)  # fmt: skip
    def save_one(
        self, who: int, name: str, branch: str, size: int, conditional: bool, archived: bool, rests: bool,
        plan: tuple[Fault, ...],
    ) -> None:  # fmt: skip
        status = WORK_STATUS_WAITING if rests else WORK_STATUS_RUNNING
        request = self.request(name, branch, conditional=conditional, size=size, status=status)
        what = f"save {name}/{branch}{' if' if conditional else ''}{' archived' if archived else ''}"
        self.act(who, what, lambda it: self.save(it, request, archived=archived), plan)

    @rule(who=WHO, plan=PLANS, then=PLANS, takes=st.booleans())
    def flush(self, who: int, plan: tuple[Fault, ...], then: tuple[Fault, ...], takes: bool) -> None:
        """Two saves that are shipped, where the network is bad; perhaps the thread is taken first."""
        if takes:
            self.take_over(who, "a")
        for each in (plan, then):
            request = self.request("a", "main", conditional=takes, size=20, status=WORK_STATUS_RUNNING)
            self.act(who, "save a archived", lambda it, r=request: self.save(it, r, archived=True), each)

    @rule(who=WHO, name=NAMES, key=KEYS, restarted=st.booleans(), finishes=st.booleans(), plan=PLANS)
    def pay(
        self, who: int, name: str, key: str, restarted: bool, finishes: bool, plan: tuple[Fault, ...]
    ) -> None:  # fmt: skip
        """An agent calls a tool that must not be called twice."""

        def verb(it: Sidecar) -> None:
            self.call_tool(it, name, key, restarted=restarted, finishes=finishes)

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

    @rule(who=WHO, back=st.integers(1, 6), plan=PLANS)
    def wait_durable_of(self, who: int, back: int, plan: tuple[Fault, ...]) -> None:
        """A client asks whether what it was answered is archived."""
        answers = [
            (request.thread, answer) for request, known in self.requests for one in known.values() for answer in one
        ]
        if len(answers) >= back:
            name, saved = answers[-back]
            self.act(
                who, f"wait for {name} {saved.receipt.sequence}", lambda it: self.wait_durable(it, name, saved), plan
            )

    @rule(who=WHO, name=NAMES, plan=PLANS)
    def attach(self, who: int, name: str, plan: tuple[Fault, ...]) -> None:
        self.act(who, f"attach {name}", lambda it: it.archive.own(NAMESPACE, name, must_exist=True), plan)

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
            sidecar.disk.promised.append((thread.identity.uid, answer.receipt.sequence, line[answer.receipt.sequence]))

        self.act(who, f"tag {name}", set_tag, plan)

    @rule(who=WHO, name=NAMES, size=st.sampled_from((1500, 4000)), at=st.integers(0, 3), tries=st.integers(1, 4),
          pause=st.sampled_from((LEASE_S / 5, LEASE_S + 1)))  # fmt: skip
    def upload_slowly(self, who: int, name: str, size: int, at: int, tries: int, pause: float) -> None:
        """An owner has something to upload that takes long, and works on; others would like to have the thread."""
        request = self.request(name, "main", conditional=False, size=size, status=WORK_STATUS_RUNNING)
        slow = (Fault(HELD, at),)
        self.act(who, f"save {name} archived", lambda it: self.save(it, request, archived=True), slow)
        for _ in range(tries):
            self.wait(pause)
            for each in ((who + 1) % SIDECARS, who):
                more = self.request(name, "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
                self.act(each, f"save {name}", lambda it, more=more: self.save(it, more))
        self.resume(len(self.turns.held) - 1)

    @rule(who=WHO, at=st.integers(1, 5), tries=st.integers(5, 7), is_new=st.sampled_from((True, True, False)))
    def fetch_slowly(self, who: int, at: int, tries: int, is_new: bool) -> None:
        """An owner that took a thread fetches older history, which takes long, and works on; others would like to have
        the thread."""
        other = (who + 1) % SIDECARS
        if is_new:
            self.take_over(other, "a")
            for _ in range(4):
                self.work(other, "a", 3, 1500, archived=True)
                self.background(other, ())
            self.lose(who, now=True)
        self.take_over(who, "a")
        if is_new:
            self.wait(LEASE_S + 1)
            self.read(other, "a", "main", ())  # it knows now that it was replaced
            self.work(who, "a", 2, 10, archived=True)
        slow = (Fault(READ_HELD, at),)
        self.act(who, "look back at a", lambda it: it.archive.complete(NAMESPACE, "a"), slow)
        for _ in range(tries):
            self.wait(LEASE_S / 4)
            for each in ((who + 1) % SIDECARS, who):
                more = self.request("a", "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
                self.act(each, "save a", lambda it, more=more: self.save(it, more))
        self.resume(len(self.turns.held) - 1)

    @rule(who=WHO, name=NAMES, keep=st.integers(1, 3), plan=PLANS)
    def prune(self, who: int, name: str, keep: int, plan: tuple[Fault, ...]) -> None:
        request = PruneThreadRequest(namespace=NAMESPACE, thread=name, keep_latest_per_branch=keep)
        self.act(who, f"prune {name}", lambda it: it.prune(request), plan)

    @rule(who=WHO, name=NAMES, plan=PLANS, now=SELDOM)
    def delete(self, who: int, name: str, plan: tuple[Fault, ...], now: bool) -> None:
        if not now:
            return

        self.act(who, f"delete {name}", lambda it: self.delete_one(it, name, is_again=False), plan)

    @rule(who=WHO, again=WHO, name=NAMES, plan=PLANS, now=SELDOM)
    def delete_twice(self, who: int, again: int, name: str, plan: tuple[Fault, ...], now: bool) -> None:
        """A deletion is asked for again, there or elsewhere, because it failed or its answer was lost."""
        if now:
            self.delete(who, name, plan, now=True)
            self.act(again, f"delete {name} again", lambda it: self.delete_one(it, name, is_again=True))

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

    @rule(who=WHO, name=NAMES, dies=st.booleans(), plan=STARTS, now=SELDOM)
    def come_back(self, who: int, name: str, dies: bool, plan: tuple[Fault, ...], now: bool) -> None:
        """A thread that was deleted here is used again, perhaps while the next start still clears up after it."""
        if now:
            self.next_start = plan if dies else ()
            self.delete_here(who, name, (Fault(DIES_AFTER, 0, at_commit=True),) if dies else (), now=True)
            self.next_start = ()
            if not dies:
                self.crash(who, plan)
            self.read(who, name, "main", ())
            self.work(who, name, 1, 10, archived=False)
            self.background(who, ())
            self.resume(len(self.turns.held) - 1)  # what the start clears up
            self.read(who, name, "main", ())
            self.crash(who)

    @rule(who=WHO, name=NAMES, plan=PLANS)
    def fork(self, who: int, name: str, plan: tuple[Fault, ...]) -> None:
        """A copy of main's head, of an orphan where there is one."""

        def fork(sidecar: Sidecar) -> None:
            orphans = [thread.name for thread in sidecar.threads() if thread.access == THREAD_ACCESS_ORPHAN]
            source = orphans[0] if orphans and name == "b" else name
            sidecar.fork(ForkThreadRequest(namespace=NAMESPACE, thread=source, new_thread="fork"))
            self.see_fork(sidecar, source, "fork")

        self.act(who, f"fork {name}", fork, plan)

    @rule(who=WHO, at=st.integers(0, 2), goes=st.booleans(), now=SELDOM)
    def make_together(self, who: int, at: int, goes: bool, now: bool) -> None:
        """A copy and a first save make the same name, perhaps in one commit; the copy's source may go meanwhile."""
        if not now:
            return
        self.fork(who, "a", (Fault(HELD_AFTER, 0, at_commit=True), Fault(GATHERS, at + 1, at_commit=True)))
        if goes:
            self.delete_here(who, "a", (), now=True)
            self.background(who, ())  # its rows are gone too
        self.resume(len(self.turns.held) - 1)
        request = self.request("fork", "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
        self.act(who, "save fork", lambda it: self.save(it, request))
        self.resume(len(self.turns.held) - 1)
        self.crash(who)  # memory has the key

    @rule(who=WHO, plan=PLANS, grace=st.sampled_from((0, int(GRACE_S))))
    def collect(self, who: int, plan: tuple[Fault, ...], grace: int) -> None:
        """Garbage in the bucket; nobody reads meanwhile, so that there need be no grace."""
        if not grace:
            if self.turns.under_way:
                return
            plan = tuple(fault for fault in plan if fault.kind not in (MEANWHILE, *HOLDS))
        self.act(who, f"collect after {grace} s", lambda it: it.collect(grace), plan)

    @rule(who=WHO, name=NAMES, takes=st.booleans(), archived=st.booleans(), now=SELDOM)
    def upgrade_one(self, who: int, name: str, takes: bool, archived: bool, now: bool) -> None:
        """One of two sidecars gets the next format, and works; the other one goes on as long as it may."""
        if not now:
            return
        self.guarded(lambda: self.upgrade(who))
        if takes:
            self.take_over(who, name)
        for each in (who, 1 - who, who):
            more = self.request(name, "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
            self.act(each, f"save {name}", lambda it, more=more: self.save(it, more, archived=archived))
        self.read(1 - who, name, "main", ())

    @rule(who=WHO)
    def stop(self, who: int) -> None:
        """SIGTERM, and a start."""
        self.act(who, "stop", lambda it: it.stop())
        self.guarded(lambda: self.restart(who))

    @rule(who=WHO)
    def copy(self, who: int) -> None:
        self.keep_copy(who)

    @rule(who=WHO, owner=WHO, now=SELDOM)
    def restore(self, who: int, owner: int, now: bool) -> None:
        if self.copies and now:
            self.guarded(lambda: self.use_copy(who, self.owner(owner)))

    @rule()
    def arrive(self) -> None:
        """What was under way to the bucket arrives."""
        self.guarded(self.net.arrive)


RULES: Any = Rules


@pytest.fixture(autouse=True)
def _limits() -> Any:
    yield
    small.restore()


def run(examples: int, steps: int = 30, dice: int = 0) -> None:
    """The machine, so many times, with the same dice each time: others are thrown by `make soak`."""

    class Seeded(RULES):
        """A class of its own, because the seed is noted on it."""

    seed(dice)(Seeded)
    run_state_machine_as_test(
        Seeded,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, print_blob=True,
            database=None, suppress_health_check=list(HealthCheck), phases=PHASES,
        ),
    )  # fmt: skip


@pytest.mark.parametrize("dice", range(4))
def test_two_sidecars_agree_with_the_truth(dice: int) -> None:
    """Whatever happens to two sidecars and their bucket, no promise is broken and HEAD names one history."""
    run(10, dice=dice)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_two_sidecars_agree_with_the_truth_for_long() -> None:
    """The same with many and long histories."""
    run(1000, steps=40)
