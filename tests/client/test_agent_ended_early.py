"""The danger: SIGTERM ends an agent, and what its steps had done by then is gone."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from typing import Any

import pytest
from tests import warm

from stateward import AsyncClient, Client, Status
from stateward.testing import Daemon

BLOCKING = """
import os, signal, sys, time
from stateward import Client
with Client(sys.argv[1]) as client:
    thread, how = client.thread(sys.argv[2]), sys.argv[3]
    state = thread.hydrate()
    if how == "handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    with thread.autosave(state, on_sigterm=True, after_each_step=False, labels={"run": "1"}) as auto:
        state.slots["large"] = "x" * 100_000
        for number in range(5):
            state.logs["l"].append(number)
            auto.step(step=number)
        if how == "wrong":
            state.slots["half"] = object()
        os.kill(os.getpid(), signal.SIGTERM)
        if how == "error":
            raise KeyError("in the next step, before it changed anything")
        if how == "wrong":
            auto.step(step=5)
"""
ASYNCIO = """
import asyncio, os, signal, sys
from stateward import AsyncClient
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        thread, how = client.thread(sys.argv[2]), sys.argv[3]
        state = await thread.hydrate()
        if how == "handler":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        options = {"on_sigterm": True, "after_each_step": False, "labels": {"run": "1"}}
        async with thread.autosave(state, **options) as auto:
            state.slots["large"] = "x" * 100_000
            for number in range(5):
                state.logs["l"].append(number)
                await auto.step(step=number)
            if how == "wrong":
                state.slots["half"] = object()
            os.kill(os.getpid(), signal.SIGTERM)
            if how == "error":
                raise KeyError("in the next step, before it changed anything")
            if how == "wrong":
                await auto.step(step=5)
asyncio.run(main())
"""
WAITING = """
import os, signal, sys, threading, time
from stateward import Client
with Client(sys.argv[1]) as client:
    thread, how = client.thread(sys.argv[2]), sys.argv[3]
    state = thread.hydrate()
    with thread.autosave(state, on_sigterm=True) as auto:
        with auto.changing():
            state.slots["n"] = 1
        auto.step(step=1)
        wait_id = thread.ask(state, "pay?")
        if how == "changed":
            with auto.changing():
                state.slots["note"] = "asked"
        if how != "end":
            threading.Timer(0.1, os.kill, (os.getpid(), signal.SIGTERM)).start()
            thread.wait_for_answer(wait_id, timeout=20)
"""
CANCELLED = """
import asyncio, os, signal, sys
from stateward import AsyncClient
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        thread, task = client.thread(sys.argv[2]), asyncio.current_task()
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        state = await thread.hydrate()
        async with thread.autosave(state, on_sigterm=True) as auto:
            state.slots["half"] = True
            os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(0.05)
            del state.slots["half"]
            state.slots["n"] = 2
            await auto.step(step=2)
            await asyncio.sleep(30)
try:
    asyncio.run(main())
except asyncio.CancelledError:
    sys.exit(7)
"""

OVERLAPPING = """
import asyncio, os, signal, sys
from stateward import AsyncClient
async def main():
    async with AsyncClient(sys.argv[1]) as client:
        first, second = client.thread(sys.argv[2] + "-first"), client.thread(sys.argv[2])
        if sys.argv[3] == "handler":
            signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
        one = await first.autosave(await first.hydrate(), on_sigterm=True).open()
        state = await second.hydrate()
        two = await second.autosave(state, on_sigterm=True, every=60).open()
        await one.close()
        state.slots["n"] = 1
        if sys.argv[3] == "closed":
            await two.close()
        os.kill(os.getpid(), signal.SIGTERM)
        await two.step()
        print("not reached")
asyncio.run(main())
"""


@pytest.fixture
def target(real_daemon: Daemon | str) -> str:
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon.target


def run(script: str, target: str, name: str, how: str = "") -> subprocess.CompletedProcess[str]:
    return warm.run([sys.executable, "-c", script, target, name, how], timeout=60)


@pytest.mark.parametrize("script", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
@pytest.mark.parametrize(("how", "code"), [("end", -signal.SIGTERM), ("error", 1), ("handler", 7)])
def test_the_last_step_is_saved_at_the_end_of_the_block(
    target: str, name: str, script: str, how: str, code: int
) -> None:
    """Steps that no save was due for are not lost, however the block ends; then the former handler gets the signal."""
    ended = run(script, target, name, how)
    assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
    with Client(target) as client:
        state, head = client.thread(name).hydrate(), client.thread(name).checkpoints.get()
    assert (head.version, head.step, head.status, head.labels) == (1, 4, Status.PAUSED, {"run": "1"})
    assert (list(state.logs["l"]), list(state.slots), len(state.slots["large"])) == ([*range(5)], ["large"], 100_000)


@pytest.mark.parametrize(("how", "versions"), [("unchanged", 2), ("changed", 3), ("end", 2)])
def test_an_open_question_stays_open(target: str, name: str, how: str, versions: int) -> None:
    """Ended by SIGTERM or at the end of its block, an agent that waits still waits: the answer finds its question."""
    ended = run(WAITING, target, name, how)
    assert (ended.returncode, ended.stdout) == (0 if how == "end" else -signal.SIGTERM, ""), ended.stderr
    with Client(target) as client:
        head = client.thread(name).checkpoints.get()
        assert (head.version, head.status, head.question and head.question.prompt) == (versions, Status.WAITING, "pay?")
        client.thread(name).approve()
        answered = client.thread(name).hydrate()
        with client.thread(name).autosave(answered) as auto:
            answered.slots["paid"] = True
            auto.step(step=2, ack=answered.signals)
        assert client.thread(name).checkpoints.get().status == Status.RUNNING


@pytest.mark.parametrize("script", [BLOCKING, ASYNCIO], ids=["blocking", "asyncio"])
def test_a_final_save_that_fails_says_so(target: str, name: str, script: str) -> None:
    """What went wrong stands on stderr, in one line; nothing half done is saved, and the process ends by the signal."""
    ended = run(script, target, name, "wrong")
    assert ended.returncode == -signal.SIGTERM
    assert ended.stderr.startswith("the final save after SIGTERM failed: TypeError: slots.half")
    assert ended.stderr.count("\n") == 1
    with Client(target) as client:
        assert client.thread(name).hydrate().version == 0


def test_what_sigterm_is_to_do_is_checked_at_once(target: str, name: str, open_client: Any) -> None:
    """A wrong status is an error where it is written, and not when the process ends."""
    thread = open_client(target).thread(name)
    state = thread.hydrate()
    with pytest.raises(ValueError, match="sigterm_status: 'puased' is none of"):
        thread.autosave(state, on_sigterm=True, sigterm_status="puased")


def test_a_loops_handler_waits_for_the_final_save(target: str, name: str) -> None:
    """What `add_signal_handler` was told to do is done once the step is saved, and not in the middle of it."""
    ended = run(CANCELLED, target, name)
    assert ended.returncode == 7, ended.stderr
    with Client(target) as client:
        state, head = client.thread(name).hydrate(), client.thread(name).checkpoints.get()
    assert (dict(state.slots), head.step, head.status) == ({"n": 2}, 2, Status.PAUSED)


async def test_a_loop_has_its_handler_back(target: str, name: str) -> None:
    """After the block SIGTERM does what it did before."""
    came, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGTERM, came.set)
    async with AsyncClient(target) as client:
        thread = client.thread(name)
        async with thread.autosave(await thread.hydrate(), on_sigterm=True):
            assert not loop.remove_signal_handler(signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.wait_for(came.wait(), 5)
    assert loop.remove_signal_handler(signal.SIGTERM)


class OtherLoop(asyncio.SelectorEventLoop):
    """Keeps its handlers to itself, as uvloop's does."""

    def add_signal_handler(self, sig: int, _callback: Any, *_args: Any) -> None:
        signal.signal(sig, self.handle)

    def handle(self, *_: Any) -> None:
        raise AssertionError("not called")


def test_a_handler_that_cannot_be_taken_over_is_refused(target: str, name: str) -> None:
    """It would run in the middle of a step: that is said at the beginning, and nothing is changed."""

    async def agent() -> None:
        loop = asyncio.get_running_loop()
        former = signal.getsignal(signal.SIGTERM)
        loop.add_signal_handler(signal.SIGTERM, print)
        try:
            async with AsyncClient(target) as client:
                thread = client.thread(name)
                with pytest.raises(RuntimeError, match="add_signal_handler"):
                    await thread.autosave(await thread.hydrate(), on_sigterm=True).open()
            assert signal.getsignal(signal.SIGTERM) == loop.handle
        finally:
            signal.signal(signal.SIGTERM, former)

    with asyncio.Runner(loop_factory=OtherLoop) as runner:
        runner.run(agent())


@pytest.mark.parametrize(("how", "code"), [("closed", -signal.SIGTERM), ("open", -signal.SIGTERM), ("handler", 7)])
def test_agents_of_one_process_that_end_in_another_order(target: str, name: str, how: str, code: int) -> None:
    """The agent that began first ends first, so its handler is the former handler of the other one: SIGTERM still saves
    and ends the process."""
    ended = run(OVERLAPPING, target, name, how)
    assert (ended.returncode, ended.stdout) == (code, ""), ended.stderr
    with Client(target) as client:
        assert client.thread(name).hydrate().slots["n"] == 1
