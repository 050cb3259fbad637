"""The danger: somebody reads a timeline later, and it does not say what was asked, answered and done."""

from __future__ import annotations

import json

import pytest

from stateward.cli.show.output import clean

ASKED = "Book Ibis\x1b[2J for 120?"

@pytest.fixture
def story(client):
    """Asked, answered by Ana, done: a thread with labels, a tag, a tool call that ended and one that did not."""
    thread = client.thread("trip")
    state = thread.hydrate()
    state.slots["hotel"] = "Ibis"
    thread.save(state, labels={"phase": "search"})
    thread.ask(state, ASKED, {"type": "boolean"}, reason="costs money", asked_by="booker")
    thread.approve("fine", sender="ana")
    state = thread.hydrate()
    assert state.answer.approved
    assert thread.effects.run("book", lambda: "B-77", name="booking") == "B-77"
    thread.save(state, status="completed")
    thread.tags.set("booked", at=3)
    return thread


QUESTION = f'"{clean(ASKED)}" by booker'


def test_a_version_that_asks(stateward, client, story):
    """Prompt, form of the answer, who asks since when; then who answered."""
    shown = stateward("show", "trip", "--at", "2").out
    for said in ("asks", "Ibis", "answer form", '"boolean"', "asked by", "booker", "since", "wait id"):
        assert said in shown
    assert "\x1b" not in shown
    client.thread("open").ask(client.thread("open").hydrate(), "Sure?")
    client.thread("open").reject("too dear", sender="bob")
    client.thread("open").signals.send("hurry", 7, sender="cy")
    shown = stateward("show", "open").out
    assert "reject by bob: too dear" in shown.replace('"', "")
    assert "hurry by cy: 7" in shown


def test_a_version_that_used_an_answer(stateward, story):
    """Which signals it used, its tags, its labels, and tool calls without an end."""
    shown = stateward("show", "trip", "--at", "3").out
    assert "signals that this version used" in shown
    assert "approve by ana" in shown
    assert "booked" in shown
    assert "phase=search" in stateward("show", "trip", "--at", "1").out


def test_a_walk_tells_all(stateward, story):
    """`replay` has a line for each; a step that only asks does not say that nothing differs."""
    told = stateward("replay", "trip").out
    for said in (
        f"asked     {QUESTION}", "answered  approve by ana", "effect    book (booking)  done",
        "status    running → waiting", "status    waiting → completed", "labels    phase=search", "tags      booked",
    ):  # fmt: skip
        assert said in told
    assert "no difference" not in told
    assert "state" in told.splitlines()
    assert "state" not in stateward("replay", "trip", "--diff-only").out.splitlines()


def test_a_walk_for_scripts(stateward, story):
    """--json has the same facts."""
    steps = [json.loads(line)["happened"] for line in stateward("replay", "trip", "--json").out.splitlines()]
    assert [[each["what"] for each in step] for step in steps] == [
        ["labels"], ["status", "asked"], ["effect", "answered", "status", "tags"],
    ]  # fmt: skip
    (_, asked), (effect, answered, *_) = steps[1:]
    assert (asked["prompt"], asked["answer_schema"]) == (ASKED, {"type": "boolean"})
    assert (effect["key"], effect["state"]) == ("book", "done")
    assert (answered["sender"], answered["payload"], answered["wait_id"]) == ("ana", "fine", asked["wait_id"])


def test_a_list_tells_it_too(stateward, client, story):
    """`history` has columns for questions, answers and tool calls, and none of them where there is nothing."""
    told = stateward("history", "trip").out
    for said in (QUESTION, "approve by ana", "book (booking)  done", "ASKS", "ANSWERED", "EFFECTS"):
        assert said in told
    client.thread("plain").append("l", 1)
    assert "ASKS" not in stateward("history", "plain").out


def test_a_part_of_a_walk_tells_its_own(stateward, client, story):
    """What came before the first step that is shown is not told with it, also where a branch begins."""
    lines = stateward("replay", "trip", "--from", "2", "--json").out.splitlines()
    told = [json.loads(line)["happened"] for line in lines]
    assert [[each["what"] for each in step] for step in told] == [
        ["status", "asked"], ["effect", "answered", "status", "tags"],
    ]  # fmt: skip
    client.thread("trip").branch("retry", at=3).save(client.thread("trip").hydrate(3))
    (version,) = stateward("history", "trip", "--branch", "retry", "--json").json
    assert "effect" not in [each["what"] for each in version["happened"]]
    assert version["happened"] == [{"what": "status", "from": "completed", "to": "running"}]


def test_an_answer_that_no_save_has_used_yet(stateward, client):
    """Both commands tell it at their end, until a save has used it."""
    thread = client.thread("t")
    thread.ask(thread.hydrate(), "Book it?")
    for command in ("replay", "history"):
        assert "not used yet" not in stateward(command, "t").out
    thread.approve(sender="root")
    thread.signals.send("hurry", sender="boss")
    for command in ("replay", "history"):
        told = stateward(command, "t").out
        assert "answered  approve by root (not used yet)" in told
        assert "signal    hurry by boss (not used yet)" in told
    state = thread.hydrate()
    thread.save(state, ack=state.signals)
    for command in ("replay", "history"):
        assert "not used yet" not in stateward(command, "t").out
    assert "not used yet" not in stateward("replay", "t", "--to", "1").out


def test_effects_in_the_order_of_their_beginnings(stateward, client):
    """Not in that of their keys."""
    for key in ("zeta", "alpha", "mid"):
        client.thread("t").effects.run(key, lambda: 1)
    assert [each["key"] for each in stateward("effects", "t", "--json").json] == ["zeta", "alpha", "mid"]


def test_what_came_since_the_newest_version_is_told_to_scripts(stateward, story):
    """As to people: a tool call that ended after the last save, and a signal that nobody has used."""
    story.effects.run("pay", lambda: "paid", name="payment")
    story.signals.send("hurry", 7, sender="cy")
    newest, *older = stateward("history", "trip", "--json").json
    assert [(each["what"], each.get("key")) for each in newest["later"]] == [("effect", "pay"), ("signal", None)]
    assert all(each["later"] == [] for each in older)
