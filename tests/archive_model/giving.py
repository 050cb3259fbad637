"""Giving threads up while the bucket is slow: what other calls of the same process do, and what it does by itself."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import strategies as st
from hypothesis.stateful import rule
from tests.archive_model.choices import NAMES, WHO
from tests.archive_model.faults import APPLIED, GATHERS, HELD, HELD_AFTER, HOLDS, Fault
from tests.archive_model.sidecar import Sidecar
from tests.archive_model.steps import Steps
from tests.daemon.driven import NAMESPACE

from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING, WORK_STATUS_WAITING
from stateward.v1.thread_pb2 import Retention, ThreadOptions
from stateward.v1.thread_service_pb2 import SetTagRequest, UpdateThreadRequest

# Where it takes long: when the thread is released, when HEAD says so, when that is written down.
RELEASE, HEAD, ROW = "release", "HEAD", "row"
SLOW = st.sampled_from(
    (
        (HELD, RELEASE), (HELD, RELEASE), (GATHERS, RELEASE), (APPLIED, RELEASE), (HELD_AFTER, RELEASE),
        (HELD, HEAD), (HELD, HEAD), (HELD_AFTER, HEAD), (HELD, ROW), (APPLIED, ROW),
    )
)  # fmt: skip
SLOW_SWEEPS = st.sampled_from(
    (
        (), (), *((Fault(kind, 0, at_commit=True),) for kind in HOLDS), (Fault(HELD, 0, at_head=True),),
        (Fault(HELD_AFTER, 0, at_head=True),),
    )
)  # fmt: skip
# Clients more often than what a daemon does by itself.
CALLS = st.sampled_from(
    ("save", "save", "save archived", "read", "tag", "forget", "read anew", "read anew", "page in", "write rows",
     "write rows", "sweep", "ship", "put", "put archived", "list records")
)  # fmt: skip
TTL_S = 3600


class GivingUp(Steps):
    """Rules for all of it."""

    @rule(who=WHO, name=NAMES, how=st.sampled_from(("rests", "rests", "detach", "leave")), at=SLOW,
          calls=st.lists(CALLS, min_size=1, max_size=5), goes_on=st.sampled_from((True, True, False)))  # fmt: skip
    def give_up_slowly(
        self, who: int, name: str, how: str, at: tuple[str, str], calls: list[str], goes_on: bool
    ) -> None:
        """A thread of this process is given up, which takes long; calls come meanwhile, a save at last."""
        self.take_over(who, name)
        self.call(who, name, "save archived")
        before = list(self.turns.held)
        self.act(who, f"{how} {name}", self.way_of(name, how), (fault_of(how, *at),))
        for call in (*calls, "save"):
            self.call(who, name, call)
        slow = [call for call in self.turns.held if call not in before]
        if goes_on and slow:
            self.go_on(self.turns.held.index(slow[0]))

    def way_of(self, name: str, how: str) -> Callable[[Sidecar], object]:
        """A way to give a thread up: nobody works on it, somebody says so, or the machine is to be emptied."""
        request = self.request(name, "main", conditional=False, size=10, status=WORK_STATUS_WAITING)
        if how == "rests":
            return lambda it: self.save(it, request, archived=True)
        if how == "detach":
            return lambda it: it.archive.detach(NAMESPACE, name)
        return lambda it: it.archive.leaver.leave(1.0)

    def call(self, who: int, name: str, what: str) -> None:
        """What comes while something else is under way, without any plan of its own."""
        request = self.request(name, "main", conditional=False, size=10, status=WORK_STATUS_RUNNING)
        put = self.put_request(name, ("a", "b"), size=10)
        verbs: dict[str, Callable[[Sidecar], object]] = {
            "save": lambda it: self.save(it, request),
            "save archived": lambda it: self.save(it, request, archived=True),
            "read": lambda it: self.hydrate(it, name, "main"),
            "tag": lambda it: it.tag(SetTagRequest(namespace=NAMESPACE, thread=name, tag="x")),
            "forget": lambda it: it.forget(),
            "read anew": lambda it: (it.forget(), it.page_in(name)),
            "page in": lambda it: it.page_in(name),
            "write rows": lambda it: it.write_rows(),
            "sweep": lambda it: it.sweep(),
            "ship": self.ship_all,
            "put": lambda it: self.put(it, put),
            "put archived": lambda it: self.put(it, put, archived=True),
            "list records": lambda it: self.read_records(it, name),
        }
        self.act(who, f"{what} {name}", verbs[what], sweeps=what == "sweep")

    @rule(who=WHO, name=NAMES, keep_last=st.integers(0, 2))
    def set_retention(self, who: int, name: str, keep_last: int) -> None:
        """From now on a sweep prunes the thread; 0 = no more."""
        options = ThreadOptions()
        if keep_last:
            options.retention.CopyFrom(Retention(keep_last=keep_last))
        self.set_options(who, name, options, "retention")

    @rule(who=WHO, name=NAMES)
    def set_ttl(self, who: int, name: str) -> None:
        """From now on the thread goes when nothing was saved for so long."""
        options = ThreadOptions()
        options.ttl.FromSeconds(TTL_S)
        self.set_options(who, name, options, "ttl")

    def set_options(self, who: int, name: str, options: ThreadOptions, path: str) -> None:
        change = UpdateThreadRequest(namespace=NAMESPACE, thread=name, update=options)
        change.update_mask.paths.append(path)
        self.act(who, f"set {path} of {name}", lambda it: it.update(change))

    @rule(who=WHO, plan=SLOW_SWEEPS, calls=st.lists(CALLS, max_size=3), hours=st.sampled_from((0, 0, 1)))
    def sweep(self, who: int, plan: tuple[Fault, ...], calls: list[str], hours: int) -> None:
        """What a daemon does now and then, perhaps after a quiet time; calls come meanwhile."""
        self.time.sleep(hours * (TTL_S + 1))
        self.act(who, "sweep", self.sweep_here, plan, sweeps=True)
        for call in calls:
            self.call(who, "a", call)


def fault_of(how: str, kind: str, place: str) -> Fault:
    """Where an operation that gives one thread up is slow. One that saves first commits that first."""
    if place == HEAD:
        return Fault(kind, 0, at_head=True)
    return Fault(kind, (how == "rests") + (place == ROW), at_commit=True)
