"""The danger: an argument of the wrong kind ends in an error of the message library, which does not name it."""

from __future__ import annotations

import copy
import importlib
import pickle
import traceback
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

import stateward
from stateward import Check, Delete, Put, State, Window
from stateward.errors import InvalidField, VersionNotFound

HUGE, SURROGATE = 1 << 70, "\ud800"
CASES: list[tuple[Callable[[Any], Any], type[Exception], str]] = [
    (lambda r: r.put("k", 1, expected=HUGE), ValueError, "expected is 1180591620717411303424"),
    (lambda r: r.put("k", 1, expected=-1), ValueError, "expected"),
    (lambda r: r.put("k", 1, expected="1"), TypeError, "expected"),
    (lambda r: r.put("k", 1, expected=True), TypeError, "expected"),
    (lambda r: r.put(5, 1), TypeError, "key"),
    (lambda r: r.put(b"k", 1), TypeError, "key"),
    (lambda r: r.put(SURROGATE, 1), ValueError, "key"),
    (lambda r: r.put("k", 1, attributes={SURROGATE: 1}), ValueError, "key of an attribute"),
    (lambda r: r.put("k", 1, attributes={"a": SURROGATE}), ValueError, "attribute 'a'"),
    (lambda r: r.write("abc"), TypeError, "writes"),
    (lambda r: r.write(Put("a", 1)), TypeError, "writes"),
    (lambda r: r.write([object()]), TypeError, "Put, a Delete or a Check"),
    (lambda r: r.write([Check("a", HUGE)]), ValueError, "expected"),
    (lambda r: r.write([Check("a", None)]), TypeError, "expected"),
    (lambda r: r.write([Delete(5)]), TypeError, "key"),
    (lambda r: r.delete("a", expected=HUGE), ValueError, "expected"),
    (lambda r: r.get(5), TypeError, "key"),
    (lambda r: r.get(SURROGATE), ValueError, "key"),
    (lambda r: r.get_many(["a", 1]), TypeError, "key"),
    (lambda r: r.get_many(b"abc"), TypeError, "keys"),
    (lambda r: list(r.list(5)), TypeError, "prefix"),
    (lambda r: list(r.list(SURROGATE)), ValueError, "prefix"),
    (lambda r: list(r.list(skip=HUGE)), ValueError, "skip"),
    (lambda r: list(r.list(skip=1.5)), TypeError, "skip"),
    (lambda r: list(r.list(page_size=HUGE)), ValueError, "page_size"),
    (lambda r: list(r.list(where=5)), TypeError, "where"),
    (lambda r: list(r.list(where="abc")), TypeError, "where"),
    (lambda r: list(r.list(where=[("a", [], 1)])), ValueError, "operator"),
    (lambda r: list(r.prefixes(5)), TypeError, "delimiter"),
    (lambda r: list(r.prefixes(prefix=5)), TypeError, "prefix"),
    (lambda r: list(r.prefixes(max_depth=HUGE)), ValueError, "max_depth"),
    (lambda r: r.delete_prefix(5), TypeError, "prefix"),
]


def test_every_argument_of_records_is_named(client: Any) -> None:
    """Nothing is sent."""
    records = client.records("scope")
    for call, kind, name in CASES:
        with pytest.raises(kind, match=name):
            call(records)
    for scope, kind in ((5, TypeError), (SURROGATE, ValueError)):
        with pytest.raises(kind, match="scope"):
            client.records(scope)


def saved(**options: Any) -> Callable[[Any], Any]:
    return lambda client: client.thread("t").save(State(), **options)


def with_slot(name: Any) -> State:
    state = State()
    state.slots[name] = 2
    return state


OF_THREADS: list[tuple[Callable[[Any], Any], str]] = [
    (lambda client: client.thread(42), "the name of a thread is a text, not 42"),
    (lambda client: client.thread(None), "the name of a thread is a text"),
    (lambda client: client.thread(b"t"), "the name of a thread is a text"),
    (lambda client: client.thread("t", branch=1), "the name of a branch is a text"),
    (lambda client: client.thread("t").branch(1), "the name of a branch is a text"),
    (lambda client: client.thread("t").log(4), "the name of a log is a text"),
    (lambda client: client.thread("t").append(4, 1), "the name of a log is a text, not 4"),
    (lambda client: client.thread("t").save(with_slot(1)), "the name of a slot is a text, not 1"),
    (lambda _client: State().logs[1], "the name of a log is a text, not 1"),
    (lambda client: client.lock(4), "the name of a lock is a text"),
    (saved(labels={"a": 1}), r"labels takes a dict of texts, not \{'a': 1\}"),
    (saved(labels=["a"]), "labels takes a dict of texts"),
    (saved(metrics={"a": "x"}), "metrics takes a dict of texts to numbers"),
    (saved(step="three"), "step takes a whole number, not 'three'"),
    (saved(step=1.5), "step takes a whole number"),
    (saved(status_detail=3), "status_detail takes a text"),
    (saved(schema_version="x"), "schema_version takes a whole number"),
    (saved(checkpoint_id=4), "checkpoint_id takes a text"),
    (saved(request_id=4), "request_id takes a text"),
    (saved(ack="abc"), "ack takes a list"),
    (saved(create=4), "create takes ThreadOptions"),
    (saved(lease=4), "lease takes a lease"),
    (saved(guard=4), "guard takes a lease or lock"),
    (saved(windows=[4]), "windows takes a list of Windows"),
    (lambda client: client.thread("t").update({"a": 1}), "fn takes a function"),
    (lambda client: client.thread("t").finish(4), "finish takes the State"),
    (lambda client: client.save_all([4]), "save_all takes what thread.prepare returned"),
    (lambda client: client.thread("t").hydrate(at=b"x"), "at takes a version, a Checkpoint, the name of a tag"),
    (lambda client: client.thread("t").hydrate(slots=[1]), "slots takes a list of texts"),
    (lambda client: client.thread("t").hydrate(logs={"a": "x"}), "logs takes a number of entries"),
    (lambda client: list(client.thread("t").checkpoints.list(page_size="x")), "page_size takes a whole number"),
    (lambda client: client.thread("t").fork(4), "new_thread takes a text"),
    (lambda client: client.thread("t").ask(State(), 4), "prompt takes a text"),
    (lambda client: client.thread("t").signals.send(4), "name takes a text"),
    (lambda client: client.thread("t").hand_over(4, "s"), "to is a text"),
    (lambda client: client.thread("t").hand_over("a", 4), "summary is a text"),
    (lambda client: client.thread("t").branch("b", at="x"), "at is a whole number"),
    (lambda client: client.thread("t", migrations=4), "migrations takes Migrations, not 4"),
    (lambda client: client.handoffs(4), "to is a text"),
    (lambda client: client.take_handoff(to=4), "to is a text"),
]


@pytest.mark.parametrize(("call", "said"), OF_THREADS, ids=[said for _, said in OF_THREADS])
def test_every_argument_of_threads_is_named(client: Any, call: Callable[[Any], Any], said: str) -> None:
    """The error says what the argument takes; nothing is sent."""
    with pytest.raises(TypeError, match=said):
        call(client)


def test_a_version_that_cannot_be(client: Any) -> None:
    """The error names the argument, and not the message that it went into."""
    client.thread("versions").save(State())
    with pytest.raises((InvalidField, VersionNotFound)) as caught:
        client.thread("versions").hydrate(at=-1)
    if isinstance(caught.value, InvalidField):  # the fake knows no such version either
        assert str(caught.value).startswith("at: -1 is not a version")
        assert caught.value.field == "at"


def test_a_lease_that_is_not_taken(client: Any) -> None:
    """It has no token, and guards no save."""
    lock = client.lock("l")
    for call in (lambda: lock.token, lambda: client.thread("t").append("lines", 1, guard=lock)):
        with pytest.raises(RuntimeError, match="use it with `with`"):
            call()


def test_what_is_assigned_beside_the_slots() -> None:
    """It would not be saved, so it is refused; a text is one entry of a log, and not one for each character."""
    state = State()
    with pytest.raises(AttributeError, match=r'state.slots\["goal"\]'):
        state.goal = "x"  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r'state.slots\["goal"\]'):
        state.slots.goal = "x"  # type: ignore[attr-defined]
    for text in ("abc", b"abc", bytearray(b"abc")):
        for add in (partial(state.logs.__setitem__, "m"), state.logs["m"].extend, state.logs["m"].__iadd__):
            with pytest.raises(TypeError, match="a log takes a list of entries"):
                add(text)
    assert list(state.logs["m"]) == []
    state.schema_version, state.signals = 3, ()
    assert copy.deepcopy(state).schema_version == 3


class Odd:
    """A value whose own method fails."""

    def model_dump(self, mode: str) -> Any:
        del mode
        raise ValueError("odd")


def with_value(value: Any) -> State:
    state = State()
    state.slots["a"] = value
    return state


@pytest.mark.parametrize(
    ("call", "kind"),
    [
        (saved(stp=1), TypeError),
        (saved(step="three"), TypeError),
        (lambda client: client.thread("t").save(with_value(object())), TypeError),
        (lambda client: client.thread("t").update(5), TypeError),
        (lambda client: client.thread("t").append("l"), ValueError),
    ],
)
def test_frames_of_the_library_are_cut_off(client: Any, call: Callable[[Any], Any], kind: type[Exception]) -> None:
    """The traceback ends at the caller's line, as that of Stateward's own errors does."""
    with pytest.raises(kind) as caught:
        call(client)
    assert caught.value.__cause__ is None
    frames = traceback.extract_tb(caught.value.__traceback__)
    assert not [each for each in frames if "/client/stateward/" in each.filename]


def test_frames_of_the_callers_own_code_stay(client: Any) -> None:
    """An error in a function of the caller shows its line, and so does one in a method of a value."""

    def change(_state: State) -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine") as caught:
        client.thread("t").update(change)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == "change"
    with pytest.raises(ValueError, match="odd") as caught:
        client.thread("t").save(with_value(Odd()))
    assert "model_dump" in [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]


def test_a_fault_of_the_library_keeps_its_frames(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """They say where to look. An operation that failed is a fault, although it has the type of a wrong argument."""
    for broken, kind in ((lambda: {}["x"], KeyError), (5, TypeError)):
        monkeypatch.setattr("stateward._operations.saving.new_request_id", broken)
        with pytest.raises(kind) as caught:
            client.thread("t").save(State())
        names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
        assert {"save", "bare_request"} <= set(names)
        assert not {"called", "awaited"} & set(names)  # those of the decorator


def test_a_fault_in_the_use_of_a_state_keeps_its_frames(client: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library that reads a slot or an entry which is not there is itself at fault: its line is the last."""
    source = "def broken(): return State().slots['none']\ndef wrong(): return State().logs['m'][0]"
    names: dict[str, Any] = {"__name__": "stateward._operations.saving", "State": State}
    exec(compile(source, "saving", "exec"), names)
    for name, kind in (("broken", KeyError), ("wrong", IndexError)):
        monkeypatch.setattr("stateward._operations.saving.new_request_id", names[name])
        with pytest.raises(kind) as caught:
            client.thread("t").save(State())
        assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == name


def test_a_missing_slot_in_a_function_of_the_caller(client: Any) -> None:
    """The last line is that of the function, whoever called it."""

    def change(state: State) -> None:
        state.slots["none"] += 1

    def count(_entry: Any) -> int:
        raise ValueError("mine")

    with pytest.raises(KeyError) as caught:
        client.thread("t").update(change)
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-1] == "change"
    with pytest.raises(ValueError, match="mine") as counted:
        Window("m", keep_tokens=1, tokens=count).excess([1])
    assert [frame.name for frame in traceback.extract_tb(counted.value.__traceback__)][-1] == "count"


def test_what_a_log_takes() -> None:
    """Positions and entries of a wrong kind are named."""
    log = State().logs["m"]
    log.extend([1, 2, 3])
    assert (log[True], log[-1], log[0:5:2], log[::-1]) == (2, 3, [1, 3], [3, 2, 1])
    calls: list[tuple[Callable[[], Any], str]] = [
        (lambda: log[1.5], r"a position in logs\.m is a whole number, not 1\.5"),  # type: ignore[call-overload]
        (lambda: log.at("x"), "index takes a whole number, not 'x'"),  # type: ignore[arg-type]
        (lambda: log.trim(keep_last="x"), "keep_last takes a whole number"),  # type: ignore[arg-type]
        (lambda: log.trim(before_index=1.5), "before_index takes a whole number"),  # type: ignore[arg-type]
        (lambda: log.extend(5), "a log takes a list of entries, not 5"),  # type: ignore[arg-type]
        (lambda: Window("m", keep_last="x"), "keep_last takes a whole number"),  # type: ignore[arg-type]
        (lambda: Window("m", keep_last=1).excess(5), "entries takes a log or a list"),  # type: ignore[arg-type]
    ]
    for call, said in calls:
        with pytest.raises(TypeError, match=said):
            call()
    with pytest.raises(IndexError, match="3 entries, no position -4"):
        log[-4]
    assert list(log) == [1, 2, 3]


def test_what_a_traceback_calls_a_missing_slot() -> None:
    """A name that a program can import."""
    with pytest.raises(KeyError) as caught:
        State().slots["none"]
    kind = type(caught.value)
    assert kind is getattr(importlib.import_module(kind.__module__), kind.__name__)
    assert "._" not in kind.__module__
    assert "there are no slots" in str(pickle.loads(pickle.dumps(caught.value)))


def test_open_names_what_was_called(monkeypatch: pytest.MonkeyPatch) -> None:
    """An option that is misspelt, the variable that is wrong, and asyncio's function without asyncio."""
    with pytest.raises(TypeError, match=r"open\(\) has no option 'datadir'; did you mean data_dir\?"):
        stateward.open(datadir="x")  # type: ignore[call-arg]
    opening = stateward.open_async("unix:///none")
    with pytest.raises(TypeError, match="async with"), opening:  # type: ignore[attr-defined, unused-ignore]
        pass
    with pytest.raises(AttributeError, match="await"):
        opening.thread("t")  # type: ignore[attr-defined]
    monkeypatch.setenv("STATEWARD_TARGET", "foo")
    for call in (stateward.open, stateward.Client):
        with pytest.raises(ValueError, match="STATEWARD_TARGET: foo"):
            call()
