"""The danger: an answer that lands on another question than the person saw, has the wrong form, or wakes nobody."""

from __future__ import annotations

import http.server
import sys
import threading
from typing import Any

import pytest

from stateward import AnswerRefused, Client, Durability, Question, SchemaNotChecked, StaleAnswer, Status, ThreadOptions
from stateward._operations.signals import SignalReader
from stateward.errors import NoArchive, ThreadNotFound
from stateward.v1.signal_pb2 import Signal
from stateward.v1.signal_service_pb2 import ListSignalsResponse
from stateward.v1.thread_service_pb2 import JournalEvent, ListThreadsResponse, WatchResponse

SEAT = {"type": "object", "properties": {"seat": {"type": "string", "pattern": "^[0-9]+[A-F]$"}}, "required": ["seat"]}


@pytest.fixture
def server(real_daemon: Any) -> Any:
    """The real daemon only: the fake knows no signals."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return real_daemon


def asked(client: Any, name: str, prompt: str = "ok?", schema: Any = None, **options: Any) -> str:
    """Asks as an agent does that has read the answer to an earlier question."""
    thread = client.thread(name)
    state = thread.hydrate()
    assert state.answer is None or state.answer.wait_id
    wait_id: str = thread.ask(state, prompt, schema, **options)
    return wait_id


def later(server: Any, client: Any, say: Any) -> threading.Timer:
    """Somebody else says something when the wait has begun."""

    def run() -> None:
        with Client(server.target, namespace=client.namespace) as other:
            say(other)

    timer = threading.Timer(0.1, run)
    timer.start()
    return timer


def test_asked_answered_and_done(client: Any, name: str) -> None:
    """The agent ends after its question, finds the answer when it hydrates, and is done with it in the same save."""
    thread = client.thread(name)
    state = thread.hydrate()
    state.slots["offer"] = 1200
    wait_id = thread.ask(state, "Book it?", SEAT, reason="costs money", step=3)
    assert (state.checkpoint.status, state.checkpoint.wait_id, state.checkpoint.step) == (Status.WAITING, wait_id, 3)
    (info,) = client.waiting()
    assert (info.name, info.wait_id, info.status_detail) == (name, wait_id, "costs money")
    assert (info.question.prompt, info.question.schema) == ("Book it?", SEAT)
    assert thread.checkpoints.get().question == state.checkpoint.question == info.question
    assert thread.hydrate().answer is None
    sent = client.thread(name).answer({"seat": "12A"}, sender="ana")
    assert next(iter(client.waiting())).pending_signals == 1

    state = thread.hydrate()
    assert state.signals == (sent,)
    assert thread.signals.list() == [sent]
    assert (sent.payload, sent.sender, sent.wait_id, sent.name) == ({"seat": "12A"}, "ana", wait_id, "answer")
    assert state.answer == sent
    thread.save(state, ack=[sent])
    assert (state.signals, thread.signals.list(), list(client.waiting())) == ((), [], [])
    assert thread.info().question is None
    assert thread.hydrate(at=1).signals == ()


def test_the_page_of_an_old_question(client: Any, name: str) -> None:
    """Who answers by the wait id that a page showed never answers what was asked after it, nor a second time."""
    old = asked(client, name, "1,200?")
    new = asked(client, name, "1,500?")
    assert old != new
    with pytest.raises(StaleAnswer):
        client.thread(name).approve(wait_id=old)
    client.thread(name).reject("too dear", wait_id=new)
    with pytest.raises(StaleAnswer):
        client.thread(name).approve()
    thread = client.thread(name)
    (found,) = thread.signals.list()
    assert (found.name, found.payload, found.approved) == ("reject", "too dear", False)
    thread.save(thread.hydrate(), ack=[found.id])
    with pytest.raises(StaleAnswer, match="RUNNING"):
        client.thread(name).approve()


def test_a_retry_by_another_process_is_answered(client: Any, name: str) -> None:
    """With request id and wait id an answer can be sent again, also after the agent has used it."""
    wait_id = asked(client, name)
    sent = client.thread(name).approve(wait_id=wait_id, request_id="r")
    thread = client.thread(name)
    thread.save(thread.hydrate(), ack=[sent])
    assert client.thread(name).approve(wait_id=wait_id, request_id="r") == sent


def test_an_answer_of_the_wrong_form_is_not_sent(client: Any, name: str) -> None:
    """What the schema refuses stays here and says why; a question that wants data cannot be approved, only rejected."""
    asked(client, name, "Which seat?", SEAT)
    for wrong in ("12A", {"seat": "99Z"}, {}, None):
        with pytest.raises(AnswerRefused):
            client.thread(name).answer(wrong)
    with pytest.raises(AnswerRefused, match=r"\['seat'\]"):
        client.thread(name).answer({"seat": "99Z"})
    with pytest.raises(AnswerRefused, match="cannot be approved"):
        client.thread(name).approve()
    assert client.thread(name).signals.list() == []
    assert client.thread(name).reject().name == "reject"


def test_a_yes_or_no_can_be_said_in_two_ways(client: Any, name: str) -> None:
    """A question with a boolean schema takes an approval, and the answer True says the same."""
    asked(client, name, schema={"type": "boolean"})
    assert client.thread(name).approve("fine").approved
    asked(client, name, schema={"type": "boolean"})
    assert client.thread(name).answer(True).approved


def test_an_unchecked_answer_is_said(client: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without jsonschema, or with a schema that is none, the answer goes, and who sends it is told."""
    asked(client, name, schema=SEAT)
    with monkeypatch.context() as patched:
        patched.setitem(sys.modules, "jsonschema", None)
        with pytest.warns(SchemaNotChecked, match=r"install '\.\[schema\]'"):
            client.thread(name).answer("anything")
    wrong = Question("ok?", {"type": "no such type"})  # of a client in another language; `ask` refuses it
    client.thread(name).save(client.thread(name).hydrate(), status="waiting", wait_id="w", question=wrong)
    with pytest.warns(SchemaNotChecked, match="schema is wrong"):
        client.thread(name).answer("anything")


@pytest.mark.parametrize(
    "schema",
    ["boolean", 7, ["a"], {"type": "bool"}, {"type": ["string", 4]}, {"minLength": -1}, {"properties": {"a": 3}}],
)
def test_what_is_no_schema_is_refused_when_it_is_asked(client: Any, name: str, schema: Any) -> None:
    """The agent's program is wrong, and not the person who answers."""
    thread = client.thread(name)
    with pytest.raises(ValueError, match=r"^schema "):
        thread.ask(thread.hydrate(), "ok?", schema)
    assert thread.hydrate().version == 0


def test_the_form_of_a_schema_without_the_package(
    client: Any, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The outermost form is checked in any case."""
    monkeypatch.setitem(sys.modules, "jsonschema", None)
    thread = client.thread(name)
    for schema in ("boolean", {"type": "bool"}):
        with pytest.raises(ValueError, match=r"^schema "):
            thread.ask(thread.hydrate(), "ok?", schema)
    assert thread.ask(thread.hydrate(), "ok?", {"type": "boolean"})


def test_a_schema_makes_nobody_ask_elsewhere(client: Any, name: str) -> None:
    """An agent's schema may name another document: it is not fetched from where the answer is given."""
    asked_for: list[str] = []

    class Server(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked_for.append(self.path)
            self.send_error(404)

        def log_message(self, *_: Any) -> None:
            pass

    with http.server.HTTPServer(("127.0.0.1", 0), Server) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        asked(client, name, schema={"$ref": f"http://127.0.0.1:{server.server_port}/schema"})
        with pytest.warns(SchemaNotChecked, match="schema is wrong"):
            client.thread(name).answer(True)
        server.shutdown()
    assert asked_for == []
    asked(client, name, schema={"properties": {"form": {"$ref": "https://json-schema.org/draft/2020-12/schema"}}})
    with pytest.raises(AnswerRefused):
        client.thread(name).answer({"form": {"type": 7}})


def test_a_handoff_takes_no_answer(client: Any, name: str) -> None:
    """A thread that is handed to an agent asks nobody else; the refusal names that agent."""
    thread = client.thread(name)
    thread.append("l", 1)
    handoff = thread.hand_over("booker", "dates are fixed")
    for wait_id in (None, handoff.id):
        with pytest.raises(StaleAnswer, match="'booker'"):
            client.thread(name).approve(wait_id=wait_id)
    with pytest.raises(StaleAnswer, match="'booker'"):
        thread.wait_for_answer(timeout=20)
    assert thread.signals.list() == []


def test_an_agent_that_stays(server: Any, client: Any, name: str) -> None:
    """It gets the answer when it comes, or was there already; TimeoutError where none comes."""
    wait_id = asked(client, name)
    thread = client.thread(name)

    def answer(other):
        other.thread(name).signals.send("noise")
        other.thread(name).approve("yes")

    timer = later(server, client, answer)
    found = thread.wait_for_answer(timeout=20)
    timer.join()
    assert (found.wait_id, found.payload, found.approved) == (wait_id, "yes", True)
    assert thread.wait_for_answer(wait_id, timeout=20) == found
    asked(client, name)
    with pytest.raises(TimeoutError):
        thread.wait_for_answer(timeout=0.05, every=0.02)


def test_an_agent_does_not_wait_for_what_is_not_asked(server: Any, client: Any, name: str) -> None:
    """A question that is withdrawn while its answer is waited for ends the wait, as does the end of the thread."""
    with pytest.raises(ThreadNotFound):
        client.thread(name).wait_for_answer(timeout=20)
    wait_id = asked(client, name)
    timer = later(server, client, lambda other: asked(other, name, "another?"))
    with pytest.raises(StaleAnswer):
        client.thread(name).wait_for_answer(wait_id, timeout=20)
    timer.join()
    with pytest.raises(StaleAnswer):
        client.thread(name).wait_for_answer(wait_id, timeout=20)
    timer = later(server, client, lambda other: other.thread(name).delete())
    with pytest.raises(ThreadNotFound):
        client.thread(name).wait_for_answer(timeout=20)
    timer.join()


def test_who_waits_already_is_told_first(client: Any, name: str) -> None:
    """A watcher that comes late is told what waits, each thread once, then what comes; only of the labels it wants."""
    travel = ThreadOptions(labels={"team": "travel"})
    for number in range(3):
        asked(client, f"{name}-{number}", create=travel)
    asked(client, f"{name}-other")
    waited = [client.thread(f"{name}-0").signals.send("a"), client.thread(f"{name}-0").signals.send("b")]
    client.thread(f"{name}-other").signals.send("a")
    with client.watch_signals(labels={"team": "travel"}) as wakes:
        first = next(wakes)
        assert (first.thread, first.signals) == (f"{name}-0", tuple(waited))
        client.thread(f"{name}-other").signals.send("b")
        sent = client.thread(f"{name}-2").signals.send("c", payload={"n": 1})
        second = next(wakes)
        assert (second.thread, second.signals) == (f"{name}-2", (sent,))
        assert second.signals[0].payload == {"n": 1}
        again = client.thread(f"{name}-0").approve()
        assert next(wakes).signals == (again,)


def test_a_signal_between_watch_and_list_is_told_once() -> None:
    """What came after the watch began and before the list was made is in both, and is told once."""
    sent, new = (Signal(signal_id=each, name="n", sequence=at) for at, each in enumerate(("a", "b"), 1))
    reader = SignalReader("ns", None)
    steps = reader.waiting()
    assert next(steps).method == "ListThreads"
    assert steps.send(ListThreadsResponse(threads=[{"thread": "t", "pending_signals": 1}])).method == "ListSignals"
    with pytest.raises(StopIteration) as ended:
        steps.send(ListSignalsResponse(signals=[sent]))
    assert [each.id for wake in ended.value.value for each in wake.signals] == ["a"]
    told = reader.take(
        WatchResponse(events=[JournalEvent(thread="t", signal=sent), JournalEvent(thread="t", signal=new)], cursor="c")
    )
    assert [each.id for wake in told for each in wake.signals] == ["b"]


def test_a_writer_acknowledges_too(server: Any, name: str) -> None:
    """A save over a writer's stream is done with signals as any other one is."""
    with Client(server.target, namespace=name) as client:
        asked(client, name)
        client.thread(name).approve()
        thread = client.thread(name)
        state = thread.hydrate()
        with thread.writer() as writer:
            writer.save(state, ack=state.signals)
        assert (state.signals, thread.signals.list()) == ((), [])


def test_what_ask_says_itself(client: Any, name: str) -> None:
    """Ask refuses what would make its question unseen, before anything is written."""
    thread = client.thread(name)
    with pytest.raises(TypeError, match="status"):
        thread.ask(thread.hydrate(), "?", status="running")
    with pytest.raises(ValueError, match="branch"):
        thread.branch("side").ask(thread.hydrate(), "?")
    with pytest.raises(NoArchive):
        thread.ask(thread.hydrate(), "?", durability=Durability.ARCHIVED)
    with pytest.raises(ThreadNotFound):
        thread.info()
    assert thread.ask(thread.hydrate(), "?", wait_id="mine") == "mine"
