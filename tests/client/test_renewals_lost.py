"""The danger: a claim, a lease or a lock runs out while its holder lives, and somebody else does the same work."""

import asyncio
import functools
import threading
import time

import pytest
from tests.client.conftest import Blocking
from tests.daemon.process import eventually

from stateward import NOT_HAPPENED, ClaimLost, LeaseHeld, NotArchivedYet
from stateward._operations import effects, leases
from stateward._operations.effects import Claim
from stateward._operations.steps import Pause
from stateward.errors import NotOwner, ServerUnavailable


@pytest.fixture
def target(real_daemon):
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon.target


@pytest.fixture
def thread(target, open_client, name):
    return open_client(target, holder="worker").thread(name)


@pytest.fixture
def other(real_daemon, target, name):
    """The same thread, for another agent."""
    with real_daemon.client(holder="other") as client:
        yield client.thread(name)


# -- before a tool is called -------------------------------------------------------------------------------------------


def test_paused_before_the_tool(thread, other, monkeypatch):
    """Who slept past its term with the claim in its hands learns that it was taken before it pays, not after."""
    paid = []

    def pause(claim, begun):
        yield from ()
        monkeypatch.setattr(effects, "await_archived", awaited)
        time.sleep(1.05)
        assert other.effects.run("pay", lambda: paid.append("other"), check=lambda key: NOT_HAPPENED) is None

    awaited = effects.await_archived
    monkeypatch.setattr(effects, "await_archived", pause)
    with pytest.raises(ClaimLost) as caught:
        thread.effects.run("pay", lambda: paid.append("worker"), check=lambda key: NOT_HAPPENED, term=1)
    assert (paid, caught.value.has_result) == (["other"], False)


def test_asleep_before_the_tool(thread, monkeypatch):
    """A machine that slept with the claim in its hands asks whether it still lives, although no process time passed."""
    happened, renew, clock = [], Claim.renew, time.clock_gettime

    def sleep(claim, begun):
        yield from ()
        monkeypatch.setattr(time, "clock_gettime", lambda which: clock(which) + 3600)

    def renewed(claim):
        happened.append("renewed")
        yield from renew(claim)

    monkeypatch.setattr(effects, "await_archived", sleep)
    monkeypatch.setattr(Claim, "renew", renewed)
    thread.effects.run("pay", lambda: happened.append("paid"))
    assert happened[:2] == ["renewed", "paid"]


def test_a_daemon_that_is_away_before_the_tool(thread, monkeypatch):
    """Where the claim cannot be renewed the tool is not called, and the next one begins afresh."""

    def fail(claim):
        yield from ()
        raise ServerUnavailable("away")

    renew = Claim.renew
    monkeypatch.setattr(effects, "FRESH_SHARE", 0)
    monkeypatch.setattr(Claim, "renew", fail)
    with pytest.raises(ServerUnavailable):
        thread.effects.run("pay", lambda: "paid")
    monkeypatch.setattr(Claim, "renew", renew)
    assert thread.effects.run("pay", lambda: "paid", wait=0) == "paid"


# -- while it works ----------------------------------------------------------------------------------------------------


def renewals(monkeypatch, *errors):
    """Renews 2,000 times a term; the first times fail like this. Gives when it worked after that, and all tries."""
    tried, enough, renew, failing = [], threading.Event(), Claim.renew, iter(errors)

    def counted(claim):
        tried.append(claim.token)
        for error in failing:
            raise error
        yield from renew(claim)
        enough.set()

    monkeypatch.setattr(Claim, "renew", counted)
    monkeypatch.setattr(effects, "RENEWALS_PER_TERM", 2000)
    return enough, tried


def stays(count):
    """Whether it is the same for twenty renewals."""
    before = count()
    time.sleep(0.3)
    return count() == before


def test_renewed_after_a_renewal_that_failed(thread, monkeypatch):
    """A daemon that was away for a moment does not end renewing; the tool's claim outlives it."""
    enough, _ = renewals(monkeypatch, ServerUnavailable("away"), NotArchivedYet("t", 1))
    assert thread.effects.run("pay", lambda: enough.wait(60)) is True


@pytest.mark.parametrize("has_check", [False, True])
def test_a_block_is_renewed(thread, monkeypatch, has_check):
    """A step of `before` keeps its claim as long as its block runs, and while its check asks."""
    if has_check:
        with pytest.raises(OSError, match="cut"), thread.before("pay"):
            raise OSError("cut off")
    enough, tried = renewals(monkeypatch, ServerUnavailable("away"))

    def wait(_key=""):
        waited = getattr(thread, "_runner", None)
        if waited is None:
            assert enough.wait(60)
        else:
            waited.run(asyncio.to_thread(enough.wait, 60))
        return NOT_HAPPENED

    async def check(_key):
        await asyncio.to_thread(enough.wait, 60)
        return NOT_HAPPENED

    is_async = isinstance(thread, Blocking)
    with thread.before("pay", check=(check if is_async else wait) if has_check else None):
        wait()
    assert enough.is_set()
    assert len(set(tried)) == 1


def test_a_lost_claim_is_not_renewed(thread, monkeypatch):
    """Once it is somebody else's there is nothing to renew."""
    _, tried = renewals(monkeypatch, ClaimLost("lost"))

    def work():
        eventually(lambda: tried)
        time.sleep(0.2)

    thread.effects.run("pay", work)
    assert len(tried) == 1


def test_a_cancelled_function_keeps_its_claim(thread, other, monkeypatch):
    """A plain function goes on when the task that awaits it is cancelled: nobody calls it meanwhile."""
    if not isinstance(thread, Blocking):
        pytest.skip("only a task can be cancelled")
    begun, end, calls = threading.Event(), threading.Event(), []
    renewed, tried = renewals(monkeypatch)

    def pay():
        calls.append("worker")
        begun.set()
        assert end.wait(60)

    async def cancel():
        task = asyncio.create_task(thread._inner.effects.run("pay", pay))
        await asyncio.to_thread(begun.wait, 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        renewed.clear()
        assert await asyncio.to_thread(renewed.wait, 60)
        end.set()
        await asyncio.to_thread(eventually, lambda: stays(lambda: len(tried)))

    thread._runner.run(cancel())
    assert calls == ["worker"]


def test_cancelled_before_its_turn(thread, monkeypatch):
    """A function that waits for a free thread when its task is cancelled is not called, and its claim not renewed."""
    if not isinstance(thread, Blocking):
        pytest.skip("only a task can be cancelled")
    full, calls = threading.Event(), []
    _, tried = renewals(monkeypatch)

    async def cancel():
        waiting = [asyncio.ensure_future(asyncio.to_thread(full.wait, 60)) for _ in range(40)]
        await asyncio.sleep(0.05)
        task = asyncio.create_task(thread._inner.effects.run("pay", lambda: calls.append(1)))
        for _ in range(6000):
            await asyncio.sleep(0.01)
            if tried:
                break
        assert tried
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        full.set()
        await asyncio.gather(*waiting)
        count = len(tried)
        await asyncio.sleep(0.2)
        assert len(tried) <= count + 1

    thread._runner.run(cancel())
    assert calls == []


def test_tools_that_stop_an_iteration(thread):
    """A tool that lets a StopIteration out has failed, and nobody waits for ever."""
    with pytest.raises(RuntimeError, match="the tool raised StopIteration"):
        thread.effects.run("pay", functools.partial(next, iter(())))
    assert [each.detail for each in thread.effects.list()] == ["RuntimeError: the tool raised StopIteration"]


def idle(thread, seconds):
    """Does nothing, with the event loop at work."""
    if isinstance(thread, Blocking):
        thread._runner.run(asyncio.sleep(seconds))
    else:
        time.sleep(seconds)


# -- leases ------------------------------------------------------------------------------------------------------------


def test_a_lease_that_is_entered_again(thread, other, monkeypatch):
    """The second time it is renewed like the first."""
    renew, renewed = leases.renew, []

    def counted(ref, token, *more):
        answer = yield from renew(ref, token, *more)
        renewed.append(token)
        return answer

    monkeypatch.setattr(leases, "RENEWAL_SHARE", 0.001)
    monkeypatch.setattr(leases, "renew", counted)
    lease = thread.lease(term=30)
    with lease:
        first = lease.token
    with lease:
        for _ in range(6000):
            idle(thread, 0.01)
            if renewed.count(lease.token) > 3:
                break
        assert renewed.count(lease.token) > 3
        assert lease.token > first
        with pytest.raises(LeaseHeld), other.lease():
            pass


def test_a_renewal_that_ends_after_its_lease(thread, other, monkeypatch):
    """A renewal that was under way when the lease was given back says nothing about the lease as it was taken again."""
    renew, begun, answered = leases.renew, threading.Event(), threading.Event()

    def slow(ref, token, uid, deadline_s=None):
        if begun.is_set():
            return (yield from renew(ref, token, uid, deadline_s))
        begun.set()
        while len(tokens) < 2:
            yield Pause(0.01)
        try:
            return (yield from renew(ref, tokens[0], uid, deadline_s))
        finally:
            answered.set()

    def until_set(event):
        for _ in range(6000):
            if event.is_set():
                break
            idle(thread, 0.01)
        assert event.is_set()

    monkeypatch.setattr(leases, "RENEWAL_SHARE", 0.002)
    monkeypatch.setattr(leases, "renew", slow)
    lease, tokens = thread.lease(term=30), []
    with lease:
        tokens.append(lease.token)
        until_set(begun)
    with lease:
        tokens.append(lease.token)
        until_set(answered)
        idle(thread, 0.1)
        assert lease.lost is None
        assert lease.check().token == tokens[1] > tokens[0]
    with other.lease():
        pass


# -- on two machines ---------------------------------------------------------------------------------------------------


@pytest.fixture
def machines(pair, open_client, name):
    """Clients on the two machines, in the namespace of the test."""
    return [open_client(each.target, namespace=name) for each in (pair.first, pair.second)]


@pytest.mark.parametrize("kind", ["lock", "lease", "writer"])
def test_waited_for_on_another_machine(machines, pair, name, kind):
    """Who waits gets it when the other machine gives the thread up, and who does not wait is told where it is."""
    first, second = machines
    lock_name, thread_name = f"{name}-{kind}", f"locks/{name}-{kind}"

    def hold(client, **options):
        if kind == "lock":
            return client.lock(lock_name, **options)
        return getattr(client.thread(thread_name), kind)(**options)

    with hold(first) as held:
        token = held.token
    with pytest.raises(NotOwner), hold(second):
        pass
    with pytest.raises(NotOwner), hold(second, wait=0.05):
        pass

    def give_up():
        with pair.first.client(namespace=name) as client:
            client.thread(thread_name).archive.detach()

    giving = threading.Timer(0.2, give_up)
    giving.start()
    with hold(second, wait=60) as held:
        assert held.token > token
    giving.join()
