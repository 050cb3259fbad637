"""The danger: two workers pay once too often, or a restart is refused, in an order of events that nobody thought of.

Workers are the client's own operations, which do no I/O; the daemon is a real one without gRPC; and time is a number.
So a minute of three workers that work, stall, die and start again takes some milliseconds.
"""

from __future__ import annotations

import heapq
import random
import shutil
import tempfile
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.daemon.driven import NAMESPACE
from tests.daemon.town import Town

from stateward import NOT_HAPPENED, ClaimLost, EffectInProgress
from stateward import errors as client_errors
from stateward._operations import effects
from stateward._operations import holder as holders
from stateward._operations.effects import Daemon, Plan
from stateward._operations.holder import Holder
from stateward._operations.retry import Backoff
from stateward._operations.steps import Call, Pause, ThreadRef
from stateward._operations.tools import Outcome, ToolCall
from stateward.effects import EffectState
from stateward.errors import StatewardError
from stateward.v1 import lease_pb2
from stateward.v1.effect_service_pb2 import CompleteEffectRequest, RenewEffectRequest
from stateward_sidecar.errors import StatewardError as DaemonError

# What the guide promises: the claim of a caller that died ends after so long, and others wait for it at least so long.
TERM_S, WAIT_S = 10.0, 30.0
SLACK_S = 2.0
LONGEST_S = 600.0


@dataclass(frozen=True)
class Life:
    """One process of a worker: when it starts after its predecessor, how long its tool works, and when it dies."""

    after_s: float
    works_s: float
    pays_at: float  # share of the work
    dies_at: float | None  # share of the work; None = it lives


@dataclass
class Work:
    """A step: a tool is called, and the claim is renewed meanwhile."""

    call: ToolCall
    renew: Callable[[], Generator[Any, Any, None]]
    interval_s: float


class Tools:
    """Leaves the calling to the town."""

    def call(
        self, tool: ToolCall, renew: Callable[[], Generator[Any, Any, None]], interval_s: float
    ) -> Generator[Any, Any, Outcome]:
        return (yield Work(tool, renew, interval_s))


@dataclass
class Worker:
    """A process. Its module-level memory is its own."""

    town: PayingTown
    life: Life
    holder: lease_pb2.Holder
    then: Callable[[], None]
    left: dict[Any, Any] = field(default_factory=dict)
    is_dead: bool = False
    is_working: bool = False
    began_s: float = 0.0
    result: str = ""

    def start(self) -> None:
        self.began_s = self.town.time.now_s
        plan = Plan("pay", lambda key: ToolCall(self.pay, (key,)), {"check": self.town.find})
        ref = ThreadRef(NAMESPACE, "order", "main")
        self.operation = effects.effect(ref, self.holder, plan, Tools(), Daemon("town"))  # type: ignore[arg-type]
        self.resume(lambda: next(self.operation))

    def pay(self, key: str) -> str:
        self.town.paid.append(key)
        return key

    def resume(self, step: Callable[[], Any]) -> None:
        """Runs the operation up to its next step, and says what becomes of it."""
        if self.is_dead:
            return
        effects._left = self.left
        try:
            self.take(step())
        except StopIteration as end:
            self.result = end.value
        except EffectInProgress as error:
            self.town.check_refused(self, error)

    def take(self, step: Any) -> None:
        if isinstance(step, Pause):
            self.town.at(step.seconds, lambda: self.resume(lambda: self.operation.send(None)))
        elif isinstance(step, Call):
            self.town.at(self.town.dice.uniform(0.0, 0.05), lambda: self.resume(lambda: self.answer(step)))
        else:
            self.work(step)

    def answer(self, step: Call) -> Any:
        try:
            found = self.town.call(step)
        except StatewardError as error:
            return self.operation.throw(error)
        return self.operation.send(found)

    def work(self, step: Work) -> None:
        """A tool works for some time, and the process may die before it is over. A check takes no time."""
        if step.call.fn != self.pay:
            found = step.call()
            self.resume(lambda: self.operation.send(Outcome(EffectState.DONE, found)))
            return
        life, town = self.life, self.town
        self.is_working = True
        if life.dies_at is not None:
            town.at(life.works_s * life.dies_at, self.die)
        paid: list[str] = []
        town.at(life.works_s * life.pays_at, lambda: None if self.is_dead else paid.append(step.call()))
        town.at(life.works_s, lambda: self.end(paid[0] if paid else ""))
        town.at(step.interval_s, lambda: self.keep_up(step))

    def end(self, receipt: str) -> None:
        self.town.note(self, is_over=True)
        self.is_working = False
        self.resume(lambda: self.operation.send(Outcome(EffectState.DONE, receipt)))

    def keep_up(self, step: Work) -> None:
        if self.is_dead or not self.is_working:
            return
        renewal = step.renew()
        try:
            self.town.call(next(renewal))
        except ClaimLost:
            return
        except StatewardError:
            pass
        renewal.close()
        self.town.at(step.interval_s, lambda: self.keep_up(step))

    def die(self) -> None:
        if not self.is_dead:
            self.town.note(self, is_over=True)
            self.is_dead, self.is_working = True, False
            self.town.deaths.append(self.town.time.now_s)
            self.then()


class PayingTown(Town):
    """A daemon, workers, a bank, and time."""

    def __init__(self, home: Path, seed: int) -> None:
        super().__init__(home)
        self.dice = random.Random(seed)
        self.daemon = self.machine("town")
        self.paid: list[str] = []
        self.deaths: list[float] = []
        self.starts: list[float] = []  # of the daemon
        self.workers: list[Worker] = []
        self.worked: list[tuple[float, float]] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []

    def at(self, in_s: float, what: Callable[[], None]) -> None:
        heapq.heappush(self._due, (self.time.now_s + in_s, next(self._numbers), what))

    def begin(self, lives: list[Life], name: str | None) -> None:
        """One worker after the other, each when its predecessor has died."""
        if not lives:
            return
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(holders, "_incarnation", f"process-{next(self._numbers)}")
            holder = Holder.named(name).to_proto()
        worker = Worker(self, lives[0], holder, lambda: self.begin(lives[1:], name))
        self.workers.append(worker)
        self.at(lives[0].after_s, worker.start)

    def call(self, step: Call) -> Any:
        request = type(step.request)()
        request.CopyFrom(step.request)
        try:
            if isinstance(request, CompleteEffectRequest):
                return self.daemon.complete(request)
            if isinstance(request, RenewEffectRequest):
                return self.daemon.renew(request)
            return self.daemon.begin(request)  # type: ignore[arg-type]
        except DaemonError as error:
            kind = getattr(client_errors, type(error).__name__)
            raise kind(error.message, metadata=dict(error.metadata)) from None

    def restart(self) -> None:
        """The daemon dies and starts again: it does not know how much of a term is over."""
        self.daemon.restart()
        self.starts.append(self.time.now_s)

    def find(self, key: str) -> Any:
        return key if key in self.paid else NOT_HAPPENED

    def note(self, worker: Worker, *, is_over: bool) -> None:
        if worker.is_working and is_over:
            self.worked.append((self.time.now_s - worker.life.works_s, self.time.now_s))

    def run(self) -> None:
        end = self.time.now_s + LONGEST_S
        while self._due and self._due[0][0] <= end:
            due, _, what = heapq.heappop(self._due)
            self.time.now_s = max(self.time.now_s, due)
            what()

    def check_refused(self, worker: Worker, error: EffectInProgress) -> None:
        """A caller gives up only after it has waited, while others worked, or a term ran out."""
        now_s = self.time.now_s
        waited_s = now_s - worker.began_s
        worked = [*self.worked, *((each.began_s, now_s) for each in self.workers if each.is_working)]
        busy_s = sum(max(min(end, now_s) - max(begin, worker.began_s), 0.0) for begin, end in worked)
        since = worker.began_s - TERM_S
        excuses = sum(each > since for each in (*self.deaths, *self.starts))
        assert waited_s > WAIT_S - SLACK_S, f"a caller waited for {waited_s:.1f} s only: {error}"
        assert busy_s + excuses * TERM_S > WAIT_S - SLACK_S, f"a restart was refused, and nobody worked: {error}"

    def check_end(self) -> None:
        assert len(self.paid) <= 1, f"paid {len(self.paid)} times"
        for worker in self.workers:
            assert worker.result in ("", *self.paid), "a worker was told something else than the bank's receipt"


LIVES = st.builds(
    Life, st.sampled_from((0.0, 0.0, 0.5, 3.0, 12.0)), st.sampled_from((0.1, 4.0, 9.0, 14.0, 26.0)),
    st.sampled_from((0.0, 0.5, 1.0)), st.sampled_from((None, 0.2, 0.7, 0.7)),
)  # fmt: skip


@settings(max_examples=40, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None)
@given(
    slots=st.lists(st.tuples(st.lists(LIVES, min_size=1, max_size=3), st.booleans()), min_size=1, max_size=3),
    restarts=st.lists(st.floats(0.0, 40.0), max_size=1), seed=st.integers(0, 1000),
)  # fmt: skip
def test_workers_pay_once(slots: list[tuple[list[Life], bool]], restarts: list[float], seed: int) -> None:
    """Workers of one script with and without names, which die within their tools and start again at once, and a daemon
    that dies: the tool is paid once, and whoever lives goes on within the default wait."""
    home = Path(tempfile.mkdtemp(prefix="workers-", dir="/dev/shm" if Path("/dev/shm").is_dir() else None))
    town = PayingTown(home, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(effects, "time", town.time)
        patch.setattr(effects, "Backoff", partial(Backoff, clock=town.time.monotonic))
        patch.setattr(effects, "_left", {})
        try:
            for number, (lives, has_name) in enumerate(slots):
                town.begin(lives, f"worker-{number}" if has_name else None)
            for at_s in restarts:
                town.at(at_s, town.restart)
            town.run()
            town.check_end()
        finally:
            town.close()
            shutil.rmtree(home)
