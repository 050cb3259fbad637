"""The danger: the daemon is away when something ends, and what was meant then is forgotten once it is back."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.client.conftest import make_opener

from stateward import EffectState, RiskyStep, Window, errors
from stateward._operations import effects
from stateward._operations.effects import Claim, Plan
from stateward._operations.holder import Holder
from stateward._operations.steps import ThreadRef
from stateward._operations.tools import ToolCall
from stateward.testing import Daemon, missing_daemon, run_daemon


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    """One that may be killed; each test leaves it running."""
    if reason := missing_daemon():
        pytest.skip(reason)
    with run_daemon() as made:
        yield made


@pytest.fixture
def thread(daemon: Daemon, name: str, open_client: Any) -> Any:
    """Of a client that does not wait for the daemon."""
    client = open_client(daemon.target, retry_timeout=0, connect_timeout=10)
    client.thread(name).append("l", "the client has met the daemon")
    return client.thread(name)


@pytest.fixture
def blocking() -> Iterator[Any]:
    """Opens blocking clients."""
    yield from make_opener("blocking")


@contextmanager
def away(daemon: Daemon) -> Iterator[None]:
    daemon.kill()
    try:
        yield
    finally:
        daemon.start()


def back(daemon: Daemon, name: str, open_client: Any) -> Any:
    """The thread, in the hands of a client that finds the daemon again."""
    return open_client(daemon.target).thread(name)


def finish(thread: Any, result: Any) -> Any:
    """What a window of either client answers: windows know the client's own thread and not the one of the tests."""
    return thread._finish(result) if inspect.iscoroutine(result) else result


@contextmanager
def before(thread: Any, *what: Any, **how: Any) -> Iterator[RiskyStep]:
    """The block of either client."""
    with thread.before(*what, **how) as entered:
        yield entered if isinstance(entered, RiskyStep) else entered._inner._step


def test_a_trim_is_found_though_its_first_save_failed(daemon: Daemon, thread: Any, name: str, open_client: Any) -> None:
    """The save that succeeds is labelled, and what slid out is read back."""
    window, state = Window("m", keep_last=3), thread.hydrate()
    for number in range(4):
        state.logs["m"].append(number)
        finish(thread, thread.save(state, windows=[window]))
    state.logs["m"].append(4)
    with away(daemon), pytest.raises(errors.ServerUnavailable):
        finish(thread, thread.save(state, windows=[window]))
    thread = back(daemon, name, open_client)
    window = Window("m", keep_last=3)
    assert finish(thread, thread.save(state, windows=[window])).labels == {"trimmed:m": "1"}
    assert (finish(thread, thread.log("m").trimmed()), list(thread.hydrate().logs["m"])) == ([0, 1], [2, 3, 4])


def test_a_step_whose_end_was_not_recorded_can_be_checked(
    daemon: Daemon, thread: Any, name: str, open_client: Any
) -> None:
    """Nobody is at it any more: the next one in this process is not held off by its claim, and finds what it left."""
    refused, paid = thread.before("refused"), thread.before("paid")
    risky = [each.__enter__() for each in (refused, paid)]
    risky = [each if isinstance(each, RiskyStep) else each._inner._step for each in risky]
    with away(daemon):
        risky[0].nothing_happened = True
        refused.__exit__(OSError, OSError("refused"), None)
        risky[1].result = "receipt"
        with pytest.raises(errors.ServerUnavailable):
            paid.__exit__(None, None, None)
    thread = back(daemon, name, open_client)
    with before(thread, "refused") as again:
        assert not again.done
    with before(thread, "paid", check=lambda _key: "receipt") as found:
        assert (found.done, found.result) == (True, "receipt")


def test_a_claim_left_in_a_thread_that_was_deleted(daemon: Daemon, thread: Any, name: str, open_client: Any) -> None:
    """The thread is made again, and its claims may have the same tokens: another agent's claim is not given back."""
    left = thread.before("pay")
    risky = left.__enter__()
    risky = risky if isinstance(risky, RiskyStep) else risky._inner._step
    with away(daemon):
        risky.nothing_happened = True
        left.__exit__(OSError, OSError("refused"), None)
    thread = back(daemon, name, open_client)
    thread.delete()
    thread.append("l", "made again")
    with before(thread, "pay") as paying:
        assert paying._claim.token == risky._claim.token
        with pytest.raises(errors.EffectInProgress), before(thread, "pay", wait=0):
            pass
        paying.result = "receipt"
    with before(thread, "pay") as found:
        assert found.result == "receipt"


def test_a_claim_that_is_given_back_late(thread: Any) -> None:
    """An answer that comes late forgets its own claim, and not the one that another caller has left there since."""
    ref, plan = ThreadRef("n", "t", "main"), Plan("pay", lambda key: ToolCall(print), {})
    first, second = (Claim(ref, Holder.named(None).to_proto(), plan, effects.Daemon(thread.name)) for _ in range(2))
    late = first.give_back(EffectState.UNCERTAIN)
    next(late)
    second._leave_behind(EffectState.UNCERTAIN)
    with pytest.raises(StopIteration):
        late.send(None)
    assert effects._left.pop(second._place) == (second, EffectState.UNCERTAIN)


def test_a_failed_save_in_the_background_names_no_wrong_step(daemon: Daemon, name: str, blocking: Any) -> None:
    """What the timer could not save is saved at the next step, as that step, and only once."""
    client = blocking(daemon.target, retry_timeout=0)
    client.thread("met").append("l", 0)
    state = client.thread(name).hydrate()
    with client.thread(name).autosave(state, after_each_step=False) as auto:
        state.slots["n"] = 2
        auto.step(step=2)
        with away(daemon):
            auto._session.run(auto._cadence.in_background())
        assert isinstance(auto.error, errors.ServerUnavailable)
        state.slots["n"] = 3
        auto._session = back(daemon, name, blocking)._session
        assert auto.step(step=3).version == 1
        assert auto.error is None
    versions = back(daemon, name, blocking).checkpoints.list()
    assert [(each.version, each.step) for each in versions] == [(1, 3)]
