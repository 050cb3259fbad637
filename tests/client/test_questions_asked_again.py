"""The danger: an agent that asks again uses a person's answer up, or nobody knows later what was asked and answered."""

from __future__ import annotations

from typing import Any

import pytest

from stateward import Client, Status, UnreadAnswer
from stateward.errors import VersionNotFound


@pytest.fixture
def server(real_daemon: Any) -> Any:
    """The real daemon only: the fake knows no signals."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


def test_a_state_says_what_it_waits_for(client: Any, name: str) -> None:
    """Status and question of the version, and none of them once the agent goes on."""
    thread = client.thread(name)
    state = thread.hydrate()
    assert (state.status, state.question, state.waiting) == (None, None, False)
    thread.ask(state, "Book it?", {"type": "boolean"}, asked_by="booker")
    for each in (state, thread.hydrate()):
        assert (each.status, each.waiting) == (Status.WAITING, True)
        assert (each.question.prompt, each.question.schema, each.question.asked_by) == (
            "Book it?", {"type": "boolean"}, "booker",
        )  # fmt: skip
    thread.save(state)
    assert (state.status, state.question, state.waiting) == (Status.RUNNING, None, False)


def test_the_open_question_asked_again_is_the_same(client: Any, name: str) -> None:
    """A restarted agent asks again, and an answer that came in between counts for the question."""
    thread = client.thread(name)
    wait_id = thread.ask(thread.hydrate(), "Book it?")
    state = client.thread(name).hydrate()
    thread.approve()
    assert client.thread(name).ask(state, "Book it?") == wait_id
    assert client.thread(name).hydrate().answer.approved


def test_another_question_is_another_one(client: Any, name: str) -> None:
    """Another text or another schema, and the same text again once the answer was read."""
    thread = client.thread(name)
    state = thread.hydrate()
    ids = [thread.ask(state, "Book it?"), thread.ask(state, "Book it?", {"type": "boolean"})]
    ids.append(thread.ask(state, "Sure?"))
    thread.answer("perhaps")
    state = thread.hydrate()
    assert state.answer.payload == "perhaps"
    ids.append(thread.ask(state, "Sure?"))
    assert len(set(ids)) == 4
    assert thread.hydrate().answer is None


@pytest.mark.parametrize("prompt", ["Book it?", "Sure?"])
def test_an_answer_that_nobody_read_is_not_used_up(client: Any, name: str, prompt: str) -> None:
    """Asking raises, saves nothing, and the answer is still there."""
    thread = client.thread(name)
    thread.ask(thread.hydrate(), "Book it?")
    thread.approve(sender="ana")
    state = client.thread(name).hydrate()
    with pytest.raises(UnreadAnswer, match="'ana'"):
        client.thread(name).ask(state, prompt)
    assert client.thread(name).hydrate().version == state.version
    assert state.answer.approved
    client.thread(name).ask(state, prompt)
    assert client.thread(name).hydrate().answer is None


def test_the_asker_is_the_holder(server: Any, name: str) -> None:
    """Unless the agent gives another name."""
    with Client(server.target, namespace=name, holder="booker-1") as client:
        thread = client.thread(name)
        thread.ask(thread.hydrate(), "Book it?")
        assert thread.hydrate().question.asked_by == "booker-1"


def test_who_answered_is_known_later(client: Any, name: str) -> None:
    """As long as the version that used the answer; other versions and missing ones say so."""
    thread = client.thread(name)
    thread.ask(thread.hydrate(), "Book it?")
    thread.answer("yes", sender="ana")
    thread.signals.send("hurry", sender="bob")
    state = thread.hydrate()
    assert state.answer.payload == "yes"
    used = thread.save(state)
    assert [each.name for each in thread.signals.list()] == ["hurry"]
    last = thread.save(thread.hydrate(), ack=thread.signals.list())
    versions = list(thread.checkpoints.list())
    assert [each.acknowledged_signals for each in versions] == [1, 1, 0]
    (answer,) = thread.signals.list(acknowledged_by=used)
    assert (answer.sender, answer.payload, answer.wait_id) == ("ana", "yes", versions[-1].wait_id)
    assert [each.name for each in thread.signals.list(acknowledged_by=last.version)] == ["hurry"]
    assert thread.signals.list(acknowledged_by=1) == []
    with pytest.raises(VersionNotFound):
        thread.signals.list(acknowledged_by=99)
