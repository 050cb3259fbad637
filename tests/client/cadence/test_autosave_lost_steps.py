"""The danger: an agent is ended and its last steps were never saved, or were saved half done."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests import warm

from stateward import NOT_HAPPENED, Client, RiskyStep, Window, errors
from stateward.models import Status


class Clock:
    """Seconds that pass when told to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


def test_each_step_is_saved_once(thread: Any) -> None:
    """A step that changed nothing makes no version, and the end of the block makes one only for what is left."""
    state = thread.hydrate()
    with thread.autosave(state, labels={"run": "7"}) as auto:
        state.slots["n"] = 1
        assert auto.step(step=1).version == 1
        assert auto.step(step=1) is None
        assert auto.step(step=2).version == 2
        state.slots["n"] = 2
    assert [(each.version, each.step) for each in thread.checkpoints.list()] == [(3, 2), (2, 2), (1, 1)]
    assert thread.hydrate().slots["n"] == 2
    assert thread.checkpoints.get().labels == {"run": "7"}


def test_steps_are_saved_by_the_clock(thread: Any) -> None:
    """Without a save after each step, the first one after `every` saves them all."""
    clock, state = Clock(), thread.hydrate()
    with thread.autosave(state, every=60, after_each_step=False, clock=clock) as auto:
        for number in range(3):
            state.logs["l"].append(number)
            assert auto.step(step=number) is None
        clock.now = 61
        state.logs["l"].append(3)
        assert auto.step(step=3).version == 1
        state.logs["l"].append(4)
        assert auto.step(step=4) is None
    assert thread.checkpoints.get().step == 4
    assert thread.hydrate().logs["l"] == [0, 1, 2, 3, 4]


def test_an_exception_saves_whole_steps_only(thread: Any) -> None:
    """What the last step left whole is saved; what was half done since then is not, nor anything mixed with it."""
    state = thread.hydrate()
    with pytest.raises(KeyError), thread.autosave(state, every=60, after_each_step=False) as auto:  # noqa: PT012  how the block ends is what is tested
        state.slots["n"] = 1
        auto.step(step=1)
        raise KeyError("in the next step, before it changed anything")
    assert thread.hydrate().slots["n"] == 1
    state = thread.hydrate()
    with pytest.raises(KeyError), thread.autosave(state) as auto:  # noqa: PT012  how the block ends is what is tested
        state.slots["n"] = 2
        auto.step(step=2)
        state.slots["n"] = "half"
        raise KeyError("in the middle of a change")
    assert thread.hydrate().slots["n"] == 2
    assert thread.checkpoints.get().version == 2


def test_a_mismatch_is_raised_and_never_tried_again(thread: Any) -> None:
    """Somebody else saved: the step says so, and so does each later one; nothing of theirs is overwritten."""
    state = thread.hydrate()
    with pytest.raises(errors.VersionMismatch), thread.autosave(state) as auto:  # noqa: PT012  how the block ends is what is tested
        state.slots["n"] = 1
        auto.step()
        thread.append("l", "theirs")
        state.slots["n"] = 2
        auto.step()
    assert thread.checkpoints.get().version == 2
    assert thread.hydrate().slots["n"] == 1


def until_saved(auto: Any, version: int) -> None:
    """Waits for the timer."""
    ended = threading.Event()
    for _ in range(1000):
        if auto.error is not None or (auto.checkpoint is not None and auto.checkpoint.version >= version):
            return
        ended.wait(0.005)
    raise AssertionError(f"no version {version}: {auto.checkpoint}")


def test_the_timer_saves_between_changes(blocking: Any) -> None:
    """Under `changing` it saves by itself, and what was read before its save can still be edited in place."""
    state = blocking.hydrate()
    with blocking.autosave(state, every=0.02, after_each_step=False) as auto:
        with auto.changing():
            state.slots["plan"] = {"done": 0}
            state.logs["l"].append({"text": "a"})
        until_saved(auto, 1)
        with auto.changing():
            plan, entry = state.slots["plan"], state.logs["l"][0]
            plan["done"] = 1
        until_saved(auto, 2)
        with auto.changing():
            plan["done"], entry["text"] = 2, "b"
        until_saved(auto, 3)
    after = blocking.hydrate()
    assert (after.slots["plan"], after.logs["l"][0]) == ({"done": 2}, {"text": "b"})


def test_no_half_change_is_saved_by_the_timer(blocking: Any) -> None:
    """Two slots that always change together are never apart in any version, however often the timer comes."""
    state = blocking.hydrate()
    with blocking.autosave(state, every=0.001, after_each_step=False) as auto:
        for number in range(30_000):  # on a busy machine the timer comes seldom
            with auto.changing():
                state.slots["a"] = number
                threading.Event().wait(0.0005)
                state.slots["b"] = number
            if number >= 100 and state.version > 12:
                break
    versions = [blocking.hydrate(each.version) for each in blocking.checkpoints.list()]
    assert len(versions) > 10
    assert {each.slots["a"] - each.slots["b"] for each in versions} == {0}
    assert versions[0].slots["a"] == number


def test_the_timer_keeps_its_error_for_the_next_step(blocking: Any) -> None:
    """A VersionMismatch in the background ends its tries, and is what the agent's next step raises."""
    state = blocking.hydrate()
    auto = blocking.autosave(state, every=0.01, after_each_step=False).open()
    with auto.changing():
        state.slots["n"] = 1
    until_saved(auto, 1)
    with auto.changing():
        blocking.append("l", "theirs")
        state.slots["n"] = 2
    until_saved(auto, 99)
    assert next(auto._cadence.in_background(), "no call") == "no call"
    with pytest.raises(errors.VersionMismatch):
        auto.step()
    with pytest.raises(errors.VersionMismatch):
        auto.close()
    assert blocking.checkpoints.get().version == 2


async def test_an_asyncio_timer_saves_between_changes(target: str, name: str) -> None:
    """As the blocking one: under `changing` a task saves, and a half change is never saved."""
    from stateward import AsyncClient

    async with AsyncClient(target) as client:
        thread = client.thread(name)
        state = await thread.hydrate()
        async with thread.autosave(state, every=0.005, after_each_step=False) as auto:
            for number in range(40):
                async with auto.changing():
                    state.slots["a"] = number
                    await asyncio.sleep(0.002)
                    state.slots["b"] = number
                await asyncio.sleep(0)
        versions = [await thread.hydrate(each.version) async for each in thread.checkpoints.list()]
    assert len(versions) > 5
    assert {each.slots["a"] - each.slots["b"] for each in versions} == {0}
    assert versions[0].slots["a"] == 39


AGENT = """
import os, signal, sys
from stateward import Client
with Client(sys.argv[1]) as client:
    thread = client.thread(sys.argv[2])
    state = thread.hydrate()
    how = sys.argv[3]
    if how == "handler":
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(7))
    with thread.autosave(state, on_sigterm=True, every=60) as auto:
        state.slots["n"] = 1
        auto.step(step=1)
        if how == "guarded":
            with auto.changing():
                state.slots["n"] = 2
        else:
            state.slots["half"] = True
        os.kill(os.getpid(), signal.SIGTERM)
        if how == "twice":
            os.kill(os.getpid(), signal.SIGTERM)
        if how == "guarded":
            for line in sys.stdin: pass
        del state.slots["half"]
        state.slots["n"] = 2
        auto.step(step=2)
        print("not reached")
"""


@pytest.mark.parametrize(
    ("how", "code", "n", "status"),
    [
        ("default", -signal.SIGTERM, 2, Status.PAUSED),
        ("handler", 7, 2, Status.PAUSED),
        ("guarded", -signal.SIGTERM, 2, Status.PAUSED),
        ("twice", -signal.SIGTERM, 1, Status.RUNNING),
    ],
)
def test_sigterm_saves_when_the_state_is_whole(
    target: str, name: str, how: str, code: int, n: int, status: Status
) -> None:
    """At the end of the step, or between two changes; the process ends as it would have, at a second signal at once,
    and a half change is never saved."""
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    process = warm.start([sys.executable, "-c", textwrap.dedent(AGENT), target, name, how], **pipes)
    try:
        process.wait(20)
        assert process.returncode == code, process.stderr.read()
        assert process.stdout.read() == ""
    finally:
        process.kill()
        for stream in (process.stdin, process.stdout, process.stderr):
            stream.close()
        process.wait()
    with Client(target) as client:
        state = client.thread(name).hydrate()
        assert (dict(state.slots), client.thread(name).checkpoints.get().status) == ({"n": n}, status)


def test_the_former_handler_is_back_after_the_block(blocking: Any) -> None:
    """Also where no signal came; and it works in the main thread only."""
    former = signal.getsignal(signal.SIGTERM)
    with blocking.autosave(blocking.hydrate(), on_sigterm=True):
        assert signal.getsignal(signal.SIGTERM) != former
    assert signal.getsignal(signal.SIGTERM) == former
    failures: list[BaseException] = []

    def elsewhere() -> None:
        try:
            blocking.autosave(blocking.hydrate(), on_sigterm=True).open()
        except ValueError as error:
            failures.append(error)

    worker = threading.Thread(target=elsewhere)
    worker.start()
    worker.join()
    assert len(failures) == 1


async def test_the_former_handler_is_back_after_an_interrupted_end(target: str, name: str) -> None:
    """A task that is cancelled while the end of its block waits for the timer leaves no handler behind."""
    from stateward import AsyncClient

    former = signal.getsignal(signal.SIGTERM)
    async with AsyncClient(target) as client:
        thread = client.thread(name)
        state = await thread.hydrate()
        auto = await thread.autosave(state, on_sigterm=True, every=60).open()
        async with auto.changing():  # starts the timer, which cannot end as long as the state changes
            auto._cadence._tried_at = -1e9
            auto._wake.set()
            closing = asyncio.create_task(auto.close())
            await asyncio.sleep(0.05)
            closing.cancel()
            with pytest.raises(asyncio.CancelledError):
                await closing
    assert signal.getsignal(signal.SIGTERM) == former


# -- risky steps -----------------------------------------------------------------------------------------------------


@contextmanager
def before(thread: Any, *what: Any, **how: Any) -> Iterator[RiskyStep]:
    """The block of either client."""
    with thread.before(*what, **how) as entered:
        yield entered if isinstance(entered, RiskyStep) else entered._inner._step


def test_a_risky_step_is_made_once(thread: Any) -> None:
    """The state is saved under the step's name before it; who comes again finds the result."""
    state = thread.hydrate()
    state.slots["cart"] = ["book"]
    with before(thread, "charge card", state, step=3) as risky:
        assert (risky.done, bool(risky.idempotency_key)) == (False, True)
        assert thread.hydrate().slots["cart"] == ["book"]
        risky.result = {"receipt": 7}
    assert (thread.checkpoints.get().labels, thread.checkpoints.get().step) == ({"before": "charge card"}, 3)
    with before(thread, "charge card") as again:
        assert (again.done, again.result) == (True, {"receipt": 7})


def test_a_step_that_failed_is_uncertain(thread: Any, another: Any) -> None:
    """The next one is stopped, unless a check finds out or the step said that it did nothing."""
    thread.append("l", "made")
    with pytest.raises(OSError, match="cut"), before(thread, "pay") as first:
        raise OSError("cut off")
    with pytest.raises(errors.EffectUncertain), before(thread, "pay"):
        raise AssertionError("not entered")
    with before(thread, "pay", check=lambda key: "paid" if key == first.idempotency_key else None) as found:
        assert (found.done, found.result) == (True, "paid")
    with pytest.raises(OSError, match="refused"), before(thread, "mail") as risky:  # noqa: PT012  how the block ends is what is tested
        risky.nothing_happened = True
        raise OSError("refused")
    with before(thread, "mail") as second:
        assert not second.done
        with pytest.raises(errors.EffectInProgress), before(another, "mail", wait=0):
            raise AssertionError("not entered")
    with pytest.raises(OSError, match="again"), before(thread, "call"):
        raise OSError("again")
    with before(thread, "call", check=lambda key: NOT_HAPPENED) as third:
        assert not third.done


def test_a_result_that_cannot_be_stored_leaves_the_step_uncertain(thread: Any) -> None:
    """It was made: the next one is not told that somebody is at it, and a check finds out. A check's result too."""
    thread.append("l", "made")
    with pytest.raises(TypeError, match="pay"), before(thread, "pay") as risky:
        risky.result = object()
    with pytest.raises(TypeError, match="pay"), before(thread, "pay", check=lambda _key: object()):
        raise AssertionError("not entered")
    with pytest.raises(errors.EffectUncertain), before(thread, "pay"):
        raise AssertionError("not entered")
    with before(thread, "pay", check=lambda _key: "paid") as found:
        assert (found.done, found.result) == (True, "paid")


def test_a_risky_step_is_saved_as_autosave_saves(thread: Any) -> None:
    """With the step and the metrics that were said last, with its options and its windows; and what it says more is for
    that version alone."""
    state = thread.hydrate()
    options = {"labels": {"run": "7"}, "windows": [Window("m", keep_last=2)]}
    with thread.autosave(state, **options) as auto:
        state.logs["m"].extend([1, 2, 3])
        auto.step(step=5, metrics={"cost_usd": 1.0})
        with before(auto, "charge card", labels={"amount": "10"}) as risky:
            risky.result = 1
        head = thread.checkpoints.get()
        labels = {"run": "7", "amount": "10", "before": "charge card", "trimmed:m": "1"}
        assert (head.version, head.step, head.metrics, head.labels) == (2, 5, {"cost_usd": 1.0}, labels)
        assert thread.hydrate().logs["m"] == [2, 3]
        assert auto.checkpoint.version == 2
        assert auto.step(step=5) is None
        with before(auto, "mail", step=6) as risky:
            risky.result = 1
    assert (thread.checkpoints.get().version, thread.checkpoints.get().step) == (3, 6)
