"""The danger: two sidecars, one bucket and bad luck make two histories of one, or lose what was answered."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import initialize, rule, run_state_machine_as_test
from tests.archive_model import small
from tests.archive_model.faults import KINDS, MEANWHILE, Fault
from tests.archive_model.machine import SIDECARS, Machine
from tests.archive_model.sidecar import GRACE_S, NAMESPACE, Sidecar

from stateward.v1.checkpoint_pb2 import STATUS_RUNNING, STATUS_WAITING
from stateward.v1.thread_pb2 import ACCESS_ORPHAN
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest, PruneThreadRequest, SetTagRequest

WHO = st.integers(0, SIDECARS - 1)
NAMES = st.sampled_from(("a", "a", "a", "b"))
KEYS = st.sampled_from(("fare", "hotel"))
BRANCHES = st.sampled_from(("main", "main", "main", "side"))
SIZES = st.sampled_from((10, 10, 60, 300, 1500))
MEANWHILES = st.integers(0, 15)
# Most of what can go wrong goes wrong around a HEAD.
FAULT = st.one_of(
    st.builds(Fault, st.sampled_from(KINDS), st.sampled_from((0, 0, 0, 1)), st.just(True), MEANWHILES),
    st.builds(Fault, st.sampled_from(KINDS), st.integers(0, 4), st.just(False), MEANWHILES),
)
PLANS = st.one_of(st.just(()), st.tuples(FAULT), st.tuples(FAULT, FAULT))
# Not "explain": it watches every line that runs, and finding takes a quarter of the time without.
PHASES = tuple(phase for phase in Phase if phase is not Phase.explain)
SELDOM = st.sampled_from((False, False, True))


class Rules(Machine):
    """What users, networks and machines do."""

    @initialize(size=SIZES, archived=st.booleans())
    def first_steps(self, size: int, archived: bool) -> None:
        """Most histories are of a thread that exists."""
        self.begin()
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
        self.act(who, "background", lambda it: it.wire.background(), plan)

    @rule(who=WHO)
    def write_rows(self, who: int) -> None:
        """What is known of HEADs is written down, as it is once a second."""
        self.act(who, "write rows", lambda it: it.archive.schedule.write_rows(wait=True))

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
            answer = sidecar.tag(SetTagRequest(namespace=NAMESPACE, thread=name, tag=tag))
            thread = sidecar.find(name)
            assert thread is not None
            line = {item.number: line for item, line in self.journals(sidecar)}[thread.number]
            self.truth.tags[line[answer.sequence]] = tag, answer.tag.version
            sidecar.disk.promised.append((thread.identity.uid, answer.sequence, line[answer.sequence]))

        self.act(who, f"tag {name}", set_tag, plan)

    @rule(who=WHO, name=NAMES, keep=st.integers(1, 3), plan=PLANS)
    def prune(self, who: int, name: str, keep: int, plan: tuple[Fault, ...]) -> None:
        def prune(sidecar: Sidecar) -> None:
            answer = sidecar.prune(PruneThreadRequest(namespace=NAMESPACE, thread=name, keep_latest_per_branch=keep))
            thread = sidecar.find(name)
            assert thread is not None
            self.truth.pruned[thread.identity.uid] |= set(answer.pruned_versions)

        self.act(who, f"prune {name}", prune, plan)

    @rule(who=WHO, name=NAMES, plan=PLANS, now=SELDOM)
    def delete(self, who: int, name: str, plan: tuple[Fault, ...], now: bool) -> None:
        if not now:
            return

        def delete(sidecar: Sidecar) -> None:
            thread = sidecar.find(name)
            sidecar.delete(DeleteThreadRequest(namespace=NAMESPACE, thread=name))
            if thread is not None:
                uid = thread.identity.uid
                assert uid in self.truth.deleted or not self.truth.history(uid), "deleted here, and not in the archive"
                self.truth.deleted.add(uid)

        self.act(who, f"delete {name}", delete, plan)

    @rule(who=WHO, name=NAMES, version=st.integers(1, 12), plan=PLANS)
    def read_old(self, who: int, name: str, version: int, plan: tuple[Fault, ...]) -> None:
        """Time travel, for which history may have to come from the archive."""
        what = f"hydrate {name} version {version}"
        self.act(who, what, lambda it: self.hydrate(it, name, "main", version) and None, plan)

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
        plan = tuple(fault for fault in plan if fault.kind != MEANWHILE)
        self.act(who, f"collect after {grace} s", lambda it: it.collect(grace), plan)

    @rule(who=WHO, hours=st.sampled_from((-30, -1, 1, 30)))
    def turn_clock(self, who: int, hours: int) -> None:
        """A wall clock jumps."""
        self.sidecars[who].clock.skew_s += hours * 3600

    @rule(who=WHO)
    def crash(self, who: int) -> None:
        self.steps.append(f"{who}: crash")
        self.restart(who)

    @rule(who=WHO)
    def stop(self, who: int) -> None:
        """SIGTERM, and a start."""
        self.steps.append(f"{who}: stop")
        sidecar = self.sidecars[who]
        sidecar.archive.ship_all(1.0)
        self.look(sidecar)
        self.restart(who)

    @rule(who=WHO, now=SELDOM)
    def lose(self, who: int, now: bool) -> None:
        if now:
            self.lose_disk(who)

    @rule(who=WHO)
    def copy(self, who: int) -> None:
        self.keep_copy(who)

    @rule(who=WHO, owner=WHO, now=SELDOM)
    def restore(self, who: int, owner: int, now: bool) -> None:
        if self.copies and now:
            self.use_copy(who, f"owner-{owner}")

    @rule(seconds=st.sampled_from((1.0, 11.0, 11.0, GRACE_S + 100)))
    def wait(self, seconds: float) -> None:
        self.time.sleep(seconds)

    @rule()
    def arrive(self) -> None:
        """What was under way to the bucket arrives."""
        self.net.arrive()


RULES: Any = Rules


@pytest.fixture(autouse=True)
def _limits() -> Any:
    yield
    small.restore()


def run(examples: int, steps: int = 30) -> None:
    """The machine, so many times."""
    run_state_machine_as_test(
        RULES,
        settings=settings(
            max_examples=examples, stateful_step_count=steps, deadline=None, print_blob=True,
            suppress_health_check=list(HealthCheck), phases=PHASES,
        ),
    )  # fmt: skip


def test_two_sidecars_agree_with_the_truth() -> None:
    """Whatever happens to two sidecars and their bucket, no promise is broken and HEAD names one history."""
    run(60)
