"""The danger: an agent dies inside a tool's call, and its restart is refused, waits for ever, or pays again.

The agents are real processes, without a name unless the test says so, as the first lines of a user's script are.
"""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests import warm

from stateward import NOT_HAPPENED, EffectInProgress, EffectUncertain, StatewardError
from stateward._operations.effects import TERM_S, Plan
from stateward.testing import Daemon

AGENT = """
import asyncio, os, signal, sys, time
from pathlib import Path
from stateward import NOT_HAPPENED, AsyncClient, Client

kind, thread, how, ledger, holder, term = sys.argv[1:]
ledger, options = Path(ledger), {"holder": holder or None}
paid = lambda key: ledger.read_text() if ledger.exists() else NOT_HAPPENED

def pay(idempotency_key):
    if how == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    print("working", flush=True)
    if how == "waits":
        sys.stdin.readline()
    with ledger.open("a") as file:
        file.write(idempotency_key)
    return idempotency_key

async def pay_on_loop(idempotency_key):
    return await asyncio.to_thread(pay, idempotency_key)

async def on_loop():
    async with AsyncClient(**options) as client:
        return await client.thread(thread).effects.run("pay", pay_on_loop, check=paid, term=float(term))

if kind == "asyncio":
    print(asyncio.run(on_loop()))
else:
    with Client(**options) as client:
        print(client.thread(thread).effects.run("pay", pay, check=paid, term=float(term)))
"""


class Agents:
    """Starts agents on one thread, and sees to it that none is left."""

    def __init__(self, target: str, kind: str, thread: str, ledger: Path) -> None:
        self.ledger, self.started = ledger, list[warm.Process]()
        self._target, self._kind, self._thread = target, kind, thread

    def start(self, how: str, holder: str = "", term: float = 1.0) -> warm.Process:
        command = [sys.executable, "-c", AGENT, self._kind, self._thread, how, str(self.ledger), holder, str(term)]
        pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
        agent = warm.start(command, {"STATEWARD_TARGET": self._target}, **pipes)
        self.started.append(agent)
        return agent

    def working(self, **options: Any) -> warm.Process:
        """An agent that has the claim, and whose tool waits for `go`."""
        agent = self.start("waits", **options)
        assert agent.stdout is not None
        assert agent.stdout.readline() == "working\n"
        return agent


def go(agent: warm.Process) -> tuple[str, str]:
    """Lets its tool pay, if it waits, and returns what it printed last and its errors."""
    out, errors = agent.communicate("\n", timeout=60)
    return (out.splitlines() or [""])[-1], errors


@pytest.fixture(params=["blocking", "asyncio"])
def agents(request: pytest.FixtureRequest, real_daemon: Any, name: str, tmp_path: Path) -> Iterator[Agents]:
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    made = Agents(real_daemon.target, request.param, name, tmp_path / "ledger")
    yield made
    for agent in made.started:
        agent.kill()
        agent.communicate()


def test_a_restart_without_a_name_goes_on(agents: Agents) -> None:
    """The guide's recipe, with every default: the restart waits for the rest of the term, asks, and pays once."""
    dead = agents.start("dies", term=TERM_S)
    assert dead.wait(60) == -signal.SIGKILL
    receipt, errors = go(agents.start("pays", term=TERM_S))
    assert (receipt, errors) == (agents.ledger.read_text(), "")


def test_a_restart_with_a_name_need_not_wait(agents: Agents) -> None:
    """However long the term is: its former process is known to be dead."""
    dead = agents.start("dies", holder="worker", term=80_000)
    assert dead.wait(60) == -signal.SIGKILL
    receipt, errors = go(agents.start("pays", holder="worker", term=80_000))
    assert (receipt, errors) == (agents.ledger.read_text(), "")


def test_two_live_workers_pay_once(agents: Agents) -> None:
    """Two workers of one script, without names: the tool of the first takes two terms, and the second waits."""
    first = agents.working(term=2.5)
    second = agents.start("pays", term=2.5)
    time.sleep(6)  # of terms that real processes renew
    assert (second.poll(), agents.ledger.exists()) == (None, False)
    (receipt, errors), (same, others) = go(first), go(second)
    assert (receipt, errors) == (same, others) == (agents.ledger.read_text(), "")


def test_a_daemon_that_restarts_takes_no_claim(agents: Agents, real_daemon: Daemon) -> None:
    """Terms begin anew with the daemon, and the renewals go on."""
    first = agents.working(term=2.5)
    real_daemon.kill()
    real_daemon.start()
    second = agents.start("pays", term=2.5)
    time.sleep(4)  # of terms that real processes renew
    assert second.poll() is None
    (receipt, errors), (same, others) = go(first), go(second)
    assert (receipt, errors) == (same, others) == (agents.ledger.read_text(), "")


def test_a_worker_that_stalls_is_told(agents: Agents) -> None:
    """It stood still for longer than its term: another one has taken the claim, with the same key for the tool, and the
    first learns that its result is not recorded."""
    first = agents.working()
    first.send_signal(signal.SIGSTOP)
    receipt, errors = go(agents.start("pays"))
    assert (receipt, errors) == (agents.ledger.read_text(), "")
    first.send_signal(signal.SIGCONT)
    _, errors = go(first)
    assert "ClaimLost" in errors
    assert agents.ledger.read_text() == receipt * 2  # what only a tool that honours the key prevents


# -- in this process ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("term", [1, TERM_S, 60, 3600])
def test_every_wait_outlasts_its_term(term: float) -> None:
    """The claim of a caller that died ends while the next one waits, unless that one says otherwise."""
    assert Plan("k", lambda key: None, {"term": term}).wait_s > term  # type: ignore[arg-type,return-value]
    assert Plan("k", lambda key: None, {"term": term, "wait": 0}).wait_s == 0  # type: ignore[arg-type,return-value]


@pytest.fixture
def thread(real_daemon: Any, open_client: Callable[..., Any], name: str) -> Any:
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return open_client(real_daemon.target).thread(name)


def test_the_error_says_what_to_do(thread: Any, real_daemon: Daemon, name: str) -> None:
    """How long the claim lives, and the two ways not to meet the error again."""

    def pay() -> None:
        with real_daemon.client() as other, pytest.raises(EffectInProgress) as caught:
            other.thread(name).effects.run("pay", pay, wait=0)
        for said in ("unnamed-", "lives for", "wait=", "Client(holder="):
            assert said in str(caught.value)

    thread.effects.run("pay", pay)


def test_a_takeover_ends_the_claim_after_its_term(pair: Any, open_client: Callable[..., Any], name: str) -> None:
    """Renewals do not reach the new owner. Its caller is told UNCERTAIN, never NEW, and what it finds out stays."""
    first, asked = open_client(pair.first.target, retry_timeout=1).thread(name), []

    def pay() -> str:
        with pair.second.client() as other:
            return pay_after(other.thread(name))

    def pay_after(second: Any) -> str:
        second.archive.attach(take_over=True)
        with pytest.raises(EffectUncertain):
            second.effects.run("pay", lambda: asked.append("paid again"), term=1)
        found = second.effects.run("pay", lambda: asked.append("paid again"), check=lambda key: "found by hand", term=1)
        assert found == "found by hand"
        return "receipt"

    with suppress(StatewardError):  # or the replaced sidecar does not know it yet, and sets the result apart later
        first.effects.run("pay", pay, term=1)
    assert asked == []
    with pair.second.client() as other:
        assert other.thread(name).effects.run("pay", lambda: asked.append("paid again")) == "found by hand"


def test_a_claim_lives_while_it_is_archived(pair: Any, open_client: Callable[..., Any], name: str) -> None:
    """A slow bucket: its holder cannot renew the claim before the answer, and nobody else gets it meanwhile."""
    first = open_client(pair.first.target, call_timeout=5).thread(name)
    first.append("l", 1, durability="archived")
    paid: list[str] = []
    with pair.first.client() as client:
        working = threading.Thread(
            target=lambda: client.thread(name).effects.run("pay", lambda: paid.append("first"), term=1)
        )
        with pair.slow():
            working.start()
            while not list(first.effects.list()):
                time.sleep(0.01)
            time.sleep(2)  # twice the term of a claim that a real daemon keeps
            with pytest.raises(EffectInProgress):
                first.effects.run("pay", lambda: paid.append("second"), check=lambda key: NOT_HAPPENED, wait=0)
        working.join(60)
    assert paid == ["first"]
