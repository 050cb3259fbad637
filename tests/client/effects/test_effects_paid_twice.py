"""The danger: a tool that acts is called twice, or its result is lost, because somebody died in between."""

import functools
import subprocess
import sys
import threading

import pytest
from tests.client.effects.bank import Bank, Killed, only

from stateward import (
    NOT_HAPPENED,
    ClaimLost,
    Effect,
    EffectFailed,
    EffectInProgress,
    EffectState,
    EffectUncertain,
    Happened,
    NotArchivedYet,
)
from stateward._io.blocking.tools import BlockingTools
from stateward._operations import effects
from stateward._operations import holder as holders
from stateward._operations.effects import Plan
from stateward._operations.steps import Call, Pause, ThreadRef, with_retries
from stateward._operations.tools import keyed
from stateward.effects import NotHappened
from stateward.errors import ServerUnavailable
from stateward.v1.effect_pb2 import EFFECT_STATE_IN_PROGRESS, EFFECT_STATE_NEW
from stateward.v1.effect_service_pb2 import BeginEffectResponse

# -- one agent ---------------------------------------------------------------------------------------------------------


def test_called_once(thread, bank):
    """The second call gets the recorded result, and the tool is not called."""
    assert thread.effects.run("pay", bank.pay, name="pay") == {"receipt": 1}
    assert thread.effects.run("pay", bank.pay) == {"receipt": 1}
    found = only(thread)
    assert (found.key, found.name, found.state, found.value) == ("pay", "pay", EffectState.DONE, {"receipt": 1})
    assert (found.holder, found.attempts, len(bank.keys)) == ("worker", 1, 1)
    assert found.begin_time <= found.end_time


def test_anchors_keep_keys_apart(thread, bank):
    """The same key under another anchor is another effect."""
    thread.effects.run("pay", bank.pay, anchor="a")
    thread.effects.run("pay", bank.pay, anchor="b")
    assert len(set(bank.keys)) == 2
    assert [each.anchor for each in thread.effects.list("a")] == ["a"]
    assert list(thread.effects.list("")) == []


def test_how_a_tool_gets_its_key(thread):
    """By name where it has such a parameter, else as its only required argument, else not at all."""
    given = [
        thread.effects.run("1", lambda *, idempotency_key: idempotency_key),
        thread.effects.run("2", lambda amount=5, idempotency_key=None: [amount, idempotency_key]),
        thread.effects.run("3", lambda word: word),
        thread.effects.run("4", lambda order=7: order),
        thread.effects.run("5", functools.partial(lambda order, word: [order, word], 8)),
    ]
    assert len(given[0]) == len(given[1][1]) == len(given[2]) == 32
    assert (given[1][0], given[3], given[4][0]) == (5, 7, 8)


@pytest.mark.parametrize("fn", [lambda a, b: None, lambda *, amount: None])
def test_tools_that_want_more(thread, fn):
    """A tool that needs more than the key is a mistake, found before anything is claimed."""
    with pytest.raises(TypeError, match="lambda"):
        thread.effects.run("pay", fn)
    with pytest.raises(TypeError, match="no option terms"):
        thread.effects.run("pay", lambda: None, terms=3)
    assert thread.effects.put([Effect("other", 1)]) == 1
    assert [each.key for each in thread.effects.list()] == ["other"]


def test_failed(thread, bank):
    """An error is raised on and recorded; the tool is called again only if that is said, and then as something new."""

    def fail(key):
        bank.pay(key)
        raise ValueError("no money")

    with pytest.raises(ValueError, match="no money"):
        thread.effects.run("pay", fail)
    with pytest.raises(EffectFailed, match="ValueError: no money") as caught:
        thread.effects.run("pay", bank.pay)
    assert (caught.value.key, caught.value.detail) == ("pay", "ValueError: no money")
    assert thread.effects.run("pay", bank.pay, retry_failed=True) == {"receipt": 2}
    assert bank.keys[0] != bank.keys[1]


def test_errors_of_any_text(thread):
    """What cannot be said in UTF-8, or is too long, does not keep an error from being recorded."""

    def fail():
        raise ValueError("\udcff" + "é" * 9000)

    with pytest.raises(ValueError, match="é"):
        thread.effects.run("pay", fail)
    assert only(thread).detail.startswith("ValueError: \\udcffé")


def test_a_tool_that_cannot_tell(thread, bank):
    """A time-out that the tool turns into EffectUncertain is not taken for a failure."""

    def time_out(key):
        bank.pay(key)
        raise EffectUncertain("no answer in time") from TimeoutError()

    with pytest.raises(EffectUncertain, match="no answer in time"):
        thread.effects.run("pay", time_out)
    assert only(thread).state is EffectState.UNCERTAIN
    assert thread.effects.run("pay", bank.pay, check=bank.find) == {"receipt": 1}
    assert len(bank.keys) == 1


def test_a_result_that_cannot_be_kept(thread, bank):
    """The tool was called all the same: that is not forgotten, and the result is in the error."""

    def pay(key):
        bank.pay(key)
        return {"receipt": object()}

    with pytest.raises(TypeError, match="receipt") as caught:
        thread.effects.run("pay", pay)
    assert "object object" in caught.value.__notes__[0]
    with pytest.raises(EffectUncertain):
        thread.effects.run("pay", bank.pay)
    assert len(bank.keys) == 1


# -- killed, and started again -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(("tool", "paid_before"), [(Bank.pay_and_die, 1), (Bank.die, 0)])
def test_killed_with_a_check(agent, bank, tool, paid_before):
    """The check says whether the tool did its work before the agent died: paid once, whichever it was."""
    with pytest.raises(Killed):
        agent().effects.run("pay", functools.partial(tool, bank))
    assert len(bank.keys) == paid_before
    thread = agent()
    assert thread.effects.run("pay", bank.pay, check=bank.find) == {"receipt": 1}
    assert thread.effects.run("pay", bank.pay) == {"receipt": 1}
    assert (len(bank.keys), only(thread).attempts) == (1, 2)


def test_killed_without_a_check(agent, bank):
    """Where nobody can know, the tool is never called again by itself; later somebody may find out."""
    with pytest.raises(Killed):
        agent().effects.run("pay", bank.pay_and_die)
    for _ in range(2):
        with pytest.raises(EffectUncertain, match="check=") as caught:
            agent().effects.run("pay", bank.pay)
    assert (caught.value.key, caught.value.idempotency_key) == ("pay", bank.keys[0])
    assert agent().effects.run("pay", bank.pay, check=lambda: "found by hand") == "found by hand"
    assert len(bank.keys) == 1


def test_killed_with_an_idempotent_tool(agent, bank):
    """A tool that honours the key is called again with the same one."""
    with pytest.raises(Killed):
        agent().effects.run("pay", bank.pay_and_die)
    assert agent().effects.run("pay", bank.pay, idempotent=True) == {"receipt": 2}
    assert bank.keys[0] == bank.keys[1]


def test_checks_that_do_not_know(agent, bank):
    """A check that fails, or returns nothing, leaves it open: neither paid again nor called done."""
    with pytest.raises(Killed):
        agent().effects.run("pay", bank.pay_and_die)
    thread = agent()
    with pytest.raises(EffectUncertain, match="NOT_HAPPENED says no"):
        thread.effects.run("pay", bank.pay, check=lambda key: None)
    with pytest.raises(ZeroDivisionError):
        thread.effects.run("pay", bank.pay, check=lambda key: 1 / 0)
    with pytest.raises(TypeError, match="check"):
        thread.effects.run("pay", bank.pay, check=lambda key, amount: 1)
    assert thread.effects.run("pay", bank.pay, check=lambda key: Happened(None)) is None
    assert (only(thread).state, len(bank.keys)) == (EffectState.DONE, 1)
    assert isinstance({} or NOT_HAPPENED, NotHappened)


def test_the_daemon_dies_too(agent, bank, real_daemon):
    """A tool that works while the daemon is killed and started: its result is recorded afterwards."""

    def pay(key):
        real_daemon.kill()
        real_daemon.start()
        return bank.pay(key)

    thread = agent()
    assert thread.effects.run("pay", pay) == {"receipt": 1}
    assert thread.effects.run("pay", bank.pay) == {"receipt": 1}


def test_claims_that_reach_the_archive_first(pair, open_client, name, bank):
    """With an archive, the tool is called only when another machine can know of the claim."""
    first, second = (open_client(each.target, call_timeout=5).thread(name) for each in (pair.first, pair.second))
    first.append("l", 1, durability="archived")
    with pair.slow(), pytest.raises(NotArchivedYet):
        first.effects.run("pay", bank.pay)
    assert bank.keys == []
    first.archive.wait(first.append("l", 2), timeout=30)
    assert first.effects.run("pay", bank.pay) == {"receipt": 1}
    first.archive.detach()
    assert second.effects.run("pay", bank.pay) == {"receipt": 1}


# -- two at a time -----------------------------------------------------------------------------------------------------


def hold(thread, bank, begun, end):
    """A tool that waits in the middle, called on a thread of its own."""

    def pay(key):
        begun.set()
        assert end.wait(30)
        return bank.pay(key)

    working = threading.Thread(target=lambda: thread.effects.run("pay", pay))
    working.start()
    assert begun.wait(30)
    return working


@pytest.mark.parametrize("holder", ["other", None, "worker"])
def test_somebody_is_at_it(agent, target, open_client, name, bank, real_daemon, holder):
    """Another agent, or another client of the same process under any name, waits for the result instead of paying."""
    agent()
    waiting = open_client(target, holder=holder).thread(name)
    begun, end = threading.Event(), threading.Event()
    with real_daemon.client(holder="worker") as client:
        working = hold(client.thread(name), bank, begun, end)
        with pytest.raises(EffectInProgress) as caught:
            waiting.effects.run("pay", bank.pay, wait=0)
        assert caught.value.holder == "worker"
        threading.Timer(0.1, end.set).start()
        assert waiting.effects.run("pay", bank.pay) == {"receipt": 1}
        working.join()
    assert len(bank.keys) == 1


def test_claims_that_are_lost(agent, bank, real_daemon, name, monkeypatch):
    """Who was overtaken while its tool worked learns it, with the result that is not recorded."""
    thread = agent()

    def pay(key):
        monkeypatch.setattr(holders, "_incarnation", "started again")
        with real_daemon.client(holder="worker") as client:
            assert client.thread(name).effects.run("pay", bank.pay, check=lambda key: "settled") == "settled"
        return bank.pay(key)

    with pytest.raises(ClaimLost) as caught:
        thread.effects.run("pay", pay)
    assert (caught.value.has_result, caught.value.result, caught.value.key) == (True, {"receipt": 1}, "pay")
    assert only(thread).value == "settled"


def test_claims_are_renewed(thread, bank, monkeypatch):
    """While a tool works longer than its term its claim does not run out."""
    renewals, renew = [], effects.Claim.renew

    def counted(claim):
        yield from renew(claim)
        renewals.append(claim.token)
        if len(renewals) == 2:
            enough.set()

    enough = threading.Event()
    monkeypatch.setattr(effects.Claim, "renew", counted)
    monkeypatch.setattr(effects, "RENEWALS_PER_TERM", 2000)
    assert thread.effects.run("pay", lambda key: enough.wait(20) and bank.pay(key)) == {"receipt": 1}
    assert renewals[0] == renewals[1] > 0


def test_forked_children_are_somebody_else():
    """A child has an incarnation of its own, and not the name of its parent: it would free what that one holds."""
    code = """if 1:
        import os
        from stateward._operations.holder import Identity
        before = Identity("worker")
        parent = before.holder
        assert Identity("worker").holder == parent and Identity().holder.incarnation == parent.incarnation
        child = os.fork()
        if child == 0:
            own, mine = Identity("worker").holder, before.holder
            ok = parent.name == own.name == "worker" and own.incarnation != parent.incarnation
            os._exit(not (ok and mine.name != "worker" and mine.incarnation == own.incarnation))
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0 and before.holder == parent
    """
    subprocess.run([sys.executable, "-c", code], check=True, env={"PYTHONPATH": ":".join(sys.path)})
    with pytest.raises(ValueError, match="256"):
        holders.Identity("é" * 129)


def test_a_lost_answer(bank):
    """A claim whose answer was lost is asked for again by the same id; asking who is at it takes a new one."""
    identity = holders.Identity().holder.to_proto()
    tools = BlockingTools(lambda operation: None)
    plan = Plan("k", keyed(bank.pay, "fn"), {})
    claimed = effects.effect(ThreadRef("n", "t", "main"), identity, plan, tools, effects.Daemon())
    steps = with_retries(claimed, lambda: 60.0)
    first = next(steps).request.options.request_id
    assert isinstance(steps.throw(ServerUnavailable("away")), Pause)
    assert steps.send(None).request.options.request_id == first
    assert isinstance(steps.send(BeginEffectResponse(state=EFFECT_STATE_IN_PROGRESS)), Pause)
    again = steps.send(None)
    assert again.request.options.request_id != first
    complete = steps.send(BeginEffectResponse(state=EFFECT_STATE_NEW, claim_token=7, idempotency_key="word"))
    assert isinstance(complete, Call)
    assert (complete.request.claim_token, bank.keys) == (7, ["word"])


# -- effects go --------------------------------------------------------------------------------------------------------


def test_deleted_effects_are_called_again(thread, bank):
    """`delete_effects` answers how many there were; who calls the tool then pays again, and a stale holder is told."""
    thread.effects.put(
        [Effect("a", 1, anchor="c1"), Effect("b", 2, anchor="c1", keep_when_pruned=True), Effect("a", 3)]
    )
    assert [each.keep_when_pruned for each in thread.effects.list("c1")] == [False, True]
    assert thread.effects.delete("c1", ["a", "none"]) == 1
    assert thread.effects.delete("c1", []) == 0
    assert thread.effects.delete("c1") == 1
    assert thread.effects.delete("c1") == 0
    assert only(thread).value == 3
    with pytest.raises(TypeError, match="a list of keys"):
        thread.effects.delete("c1", "a")
    assert thread.effects.run("pay", bank.pay, anchor="c2") == {"receipt": 1}
    thread.effects.delete("c2")
    assert thread.effects.run("pay", bank.pay, anchor="c2") == {"receipt": 2}
    assert len(set(bank.keys)) == 2
