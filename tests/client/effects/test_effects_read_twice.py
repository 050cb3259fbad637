"""The danger: a tool that only reads is called again for the same arguments, or its old result is given for ever."""

import asyncio
import functools
import threading
from datetime import timedelta

import pytest
from tests.client.conftest import Blocking
from tests.client.effects.bank import Killed, only

from stateward import (
    ClaimLost,
    Effect,
)
from stateward.errors import InvalidField

# -- reads -------------------------------------------------------------------------------------------------------------


def test_reads_are_kept(thread):
    """The same arguments in any order are read once; others, and other tools, by themselves."""
    calls = []

    def search(city, stars=0):
        calls.append(city)
        return [city, stars]

    assert thread.effects.cached("search", {"city": "Paris", "stars": 4}, search) == ["Paris", 4]
    assert thread.effects.cached("search", {"stars": 4, "city": "Paris"}, search) == ["Paris", 4]
    assert thread.effects.cached("search", ["Rome", 1], search) == ["Rome", 1]
    assert thread.effects.cached("search", "Oslo", search) == ["Oslo", 0]
    assert thread.effects.cached("other", "Oslo", lambda: "not called with it") == "not called with it"
    assert calls == ["Paris", "Rome", "Oslo"]
    assert {each.name for each in thread.effects.list("cache/search")} == {"search"}
    with pytest.raises(TypeError, match="arguments of search"):
        thread.effects.cached("search", {"city": object()}, search)
    assert thread.effects.cached("str", 3, str) == "3"  # nothing is known of what it takes
    assert thread.effects.run("str", str) == ""


@pytest.mark.parametrize(
    ("call", "match"),
    [
        (lambda thread: thread.effects.run(5, str), "key takes a text, not 5"),
        (lambda thread: thread.effects.run("pay", 5), "fn takes a function, not 5"),
        (lambda thread: thread.effects.run("pay", str, check=5), "check takes a function, not 5"),
        (lambda thread: thread.effects.cached("read", 1, 5), "fn takes a function, not 5"),
        (
            lambda thread: thread.effects.cached("read", 1, str, max_age="1h"),
            "max_age takes a timedelta or seconds, not '1h'",
        ),
    ],
)
def test_arguments_of_a_wrong_kind(thread, call, match):
    """They are named before anything is claimed."""
    with pytest.raises(TypeError, match=match):
        call(thread)
    thread.effects.put([Effect("other", 1)])
    assert only(thread).key == "other"


def test_reads_grow_old(thread):
    """A result that is older than wanted is read anew."""
    numbers = iter(range(10))
    reads = [
        thread.effects.cached("clock", None, lambda: next(numbers), max_age=age)
        for age in (60, timedelta(hours=1), 0, None)
    ]
    assert reads == [0, 0, 1, 1]


def test_reads_that_fail(thread):
    """An error is raised and not kept, and neither is what cannot be stored."""
    with pytest.raises(ZeroDivisionError):
        thread.effects.cached("read", 1, lambda: 1 / 0)
    with pytest.raises(TypeError):
        thread.effects.cached("read", 1, object)
    assert thread.effects.cached("read", 1, lambda: "fine") == "fine"


def test_reads_of_the_dead(agent):
    """A read that nobody saw end is simply made again."""

    def die():
        raise Killed

    with pytest.raises(Killed):
        agent().effects.cached("read", 1, die)
    assert agent().effects.cached("read", 1, lambda: "fine") == "fine"


def test_reads_at_the_same_time(thread, real_daemon, name):
    """Who comes second waits for the first, but not for ever."""
    begun, end = threading.Event(), threading.Event()

    def slow():
        begun.set()
        return end.wait(30) and "first"

    with real_daemon.client() as client:
        found = []
        working = threading.Thread(target=lambda: found.append(client.thread(name).effects.cached("read", 1, slow)))
        working.start()
        assert begun.wait(30)
        assert thread.effects.cached("read", 1, lambda: "second", wait=0.05) == "second"
        threading.Timer(0.05, end.set).start()
        assert thread.effects.cached("read", 1, lambda: "third") == "first"
        working.join()
    assert found == ["first"]


# -- decorators --------------------------------------------------------------------------------------------------------


def finished(thread, made):
    """What a decorated function gave: its result, or one to be awaited."""
    if isinstance(thread, Blocking):
        return thread._runner.run(made)
    return asyncio.run(made) if asyncio.iscoroutine(made) else made


def plain(fn):
    return fn


def as_coroutine(fn):
    @functools.wraps(fn)
    async def later(*args, **kwargs):
        await asyncio.sleep(0)
        return fn(*args, **kwargs)

    return later


@pytest.mark.parametrize("kind", [plain, as_coroutine])
def test_decorators(thread, bank, kind):
    """A decorated function, plain or not, is called once for each key, or for the same arguments."""
    read = []

    @thread.effects.wrap(lambda order, amount=0: f"pay:{order}")
    @kind
    def pay(order, amount=0, idempotency_key=None):
        return {"amount": amount, **bank.pay(idempotency_key)}

    @thread.effects.memoized(max_age=3600)
    @kind
    def look(city, stars=1):
        read.append(city)
        return f"{city} {stars}"

    assert [finished(thread, pay(7, amount)) for amount in (1, 2)] == [{"amount": 1, "receipt": 1}] * 2
    assert [finished(thread, made) for made in (look("Rome"), look(city="Rome", stars=1))] == ["Rome 1"] * 2
    assert (len(bank.keys[0]), len(bank.keys), read) == (32, 1, ["Rome"])
    assert {each.name for each in thread.effects.list()} == {"pay", "look"}
    assert pay.__name__ == "pay"


def test_coroutine_functions(thread, open_client):
    """AsyncClient awaits them; a blocking client says that it cannot, and nothing has happened."""

    async def pay(key):
        return await asyncio.sleep(0, key)

    if isinstance(thread, Blocking):
        assert len(thread.effects.run("pay", pay)) == 32
        assert len(thread.effects.run("again", lambda key: asyncio.sleep(0, key))) == 32
        return
    with pytest.raises(TypeError, match="AsyncClient"):
        thread.effects.run("pay", pay)
    assert thread.effects.run("pay", lambda: "after all") == "after all"


# -- without claims ----------------------------------------------------------------------------------------------------


def test_recorded_without_a_claim(thread):
    """Results that are put, or ride on a save, come back in their order; the first stays unless it is replaced."""
    put = [Effect(str(number), {"n": number}, "c1", "channel", bytes([9 - number])) for number in range(3)]
    assert thread.effects.put(put) == 3
    assert thread.effects.put([put[0], Effect("new", 1, "c1")]) == 1
    assert [each.key for each in thread.effects.list("c1", names=["channel"])] == ["2", "1", "0"]
    state = thread.hydrate()
    state.slots["goal"] = "x"
    thread.save(state, effects=[Effect("0", "kept?", "c1"), Effect("1", "replaced", "c1", replace=True)])
    assert {each.key: each.value for each in thread.effects.list("c1")} == {
        "0": {"n": 0}, "1": "replaced", "2": {"n": 2}, "new": 1,
    }  # fmt: skip
    assert [each.value for each in thread.effects.list("c1", key="1", values=False)] == [None]
    with pytest.raises(InvalidField):
        thread.effects.put([])
    with pytest.raises(TypeError, match="names"):
        thread.effects.list("c1", names="channel")


def test_effects_of_a_refused_save(thread):
    """A save that is refused records nothing."""
    stale = thread.hydrate()
    thread.append("l", 1)
    with pytest.raises(Exception, match="saved in between"):
        thread.save(stale, effects=[Effect("e", 1)])
    assert list(thread.effects.list()) == []


def test_what_is_being_worked_on_is_not_put(agent):
    """A result cannot be put where somebody is at it."""

    def die():
        raise Killed

    thread = agent()
    with pytest.raises(Killed):
        thread.effects.run("pay", die)
    with pytest.raises(ClaimLost) as caught:
        thread.effects.put([Effect("pay", 1)])
    assert not caught.value.has_result
