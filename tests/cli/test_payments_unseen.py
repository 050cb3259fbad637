"""The danger: a payment that may have happened, and an operator who cannot see that."""

import pytest

from stateward import Effect, EffectUncertain


def time_out():
    raise EffectUncertain("no answer in time")


def test_what_tools_did(stateward, client):
    """The list has results, failures and what is open, in a table and as JSON."""
    thread = client.thread("t")
    assert stateward("effects", "t").code == 1
    thread.effects.run("pay", lambda: {"receipt": 7}, name="bank")
    thread.effects.put([Effect("hit", b"\xff", "cache/search", "search")])
    with pytest.raises(EffectUncertain):
        thread.effects.run("refund", time_out)
    with pytest.raises(ZeroDivisionError):
        thread.effects.run("ship", lambda: 1 / 0)
    answer = stateward("effects", "t")
    assert answer.code == 0
    lines = {line.split()[0]: line for line in answer.out.splitlines() if "cache" not in line}
    assert "done" in lines["pay"]
    assert '"receipt": 7' in lines["pay"] or '"receipt":7' in lines["pay"]
    assert "uncertain" in lines["refund"]
    assert "ZeroDivisionError: division by zero" in lines["ship"]
    assert "cache/search" in answer.out
    found = {each["key"]: each for each in stateward("effects", "t", "--json").json}
    assert {key: each["state"] for key, each in found.items()} == {
        "pay": "done", "hit": "done", "refund": "uncertain", "ship": "failed",
    }  # fmt: skip
    assert (found["pay"]["value"], found["pay"]["attempts"], found["ship"]["value"]) == ({"receipt": 7}, 1, None)


def test_only_some(stateward, client):
    """By anchor, by name, and only what has not ended."""
    thread = client.thread("t")
    thread.effects.put([Effect("a", 1, "x", "one"), Effect("b", 2, "y", "two")])
    with pytest.raises(EffectUncertain):
        thread.effects.run("refund", time_out)
    for option, keys in {("--anchor", "x"): ["a"], ("--name", "two"): ["b"], ("--open",): ["refund"]}.items():
        assert [each["key"] for each in stateward("effects", "t", *option, "--json").json] == keys
