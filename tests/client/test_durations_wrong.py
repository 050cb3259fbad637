"""The danger: a length of time that means nothing, or not what was meant, reaches the daemon."""

import asyncio
import dataclasses
import inspect
import re
import sys
from datetime import timedelta

import pytest

import stateward
from stateward import Retention, State, ThreadOptions
from stateward._async.archive import AsyncArchive
from stateward._operations import threads
from stateward._operations.steps import ThreadRef
from stateward.durations import seconds
from stateward.errors import DeadlineExceeded, NotArchivedYet

OWNERS = (
    stateward.AsyncClient, stateward.AsyncThread, AsyncArchive, stateward.AsyncAutosave, stateward.AsyncBoard,
)  # fmt: skip
WRONG = (-1, float("nan"), float("inf"), 1e12, 10**400, timedelta(seconds=-1), True, "5", [5])
NEEDED = {"state": State(), "fn": lambda: 1, "args": {}, "what": 1, "take_handoff": {"thread": "t"}}
DECORATORS = {"effectful": {"key": lambda: "k"}, "memoized": {}}
NO_LENGTHS = {"data_percent", "metrics", "clock"}


def annotations_of(fn):
    """Each parameter of a function and what it is annotated with; the options of a TypedDict one by one."""
    for each in inspect.signature(fn).parameters.values():
        if each.kind is each.VAR_KEYWORD and each.annotation.startswith("Unpack["):
            options = getattr(sys.modules[fn.__module__], each.annotation[len("Unpack[") : -1])
            yield from ((name, str(kind)) for name, kind in options.__annotations__.items())
        elif each.name != "self":
            yield each.name, str(each.annotation)


def parameters():
    """All parameters of all public methods of both clients: owner, method, name, annotation."""
    for owner in OWNERS:
        for name, fn in vars(owner).items():
            if inspect.isfunction(fn) and (not name.startswith("_") or name == "__init__"):
                yield from ((owner, name, *each) for each in annotations_of(fn))


LENGTHS = [each[:3] for each in parameters() if re.search(r"\bDuration\b", each[3])]


def call(open_client, owner, method, name, length):
    """Calls a method of a client that no daemon answers, with what it needs and one length of time."""
    nobody = "/tmp/sw-nobody-here.sock"
    if method == "__init__":
        return open_client(nobody, **{name: length})
    client = open_client(nobody, connect_timeout=0, retry_timeout=0)
    made_of = {
        "AsyncClient": lambda: client,
        "AsyncThread": lambda: client.thread("t"),
        "AsyncArchive": lambda: client.archive,
        "AsyncAutosave": lambda: client.thread("t").autosave(State()),
        "AsyncBoard": lambda: client.board("t"),
    }
    found = getattr(made_of[owner.__name__](), method)
    if method in DECORATORS:
        made = found(**DECORATORS[method], **{name: length})(lambda: 1)()
        return asyncio.run(made) if inspect.iscoroutine(made) else made
    given = list(inspect.signature(getattr(owner, method)).parameters.values())[1:]
    needed = [
        each.name
        for each in given
        if each.default is each.empty and each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)
    ]
    arguments = {each: NEEDED.get(each, "x") for each in needed} | NEEDED.get(method, {})
    return found(**arguments, **{name: length})


@pytest.mark.parametrize(("owner", "method", "name"), LENGTHS, ids=lambda each: getattr(each, "__name__", each))
def test_refused_before_anything_is_sent(open_client, owner, method, name):
    """Every length of time is checked by the client, and the error names the argument."""
    for wrong in WRONG:
        with pytest.raises((ValueError, TypeError), match=rf"^{name} (is|takes) "):
            pytest.fail(f"{wrong!r} was taken: {call(open_client, owner, method, name, wrong)}")


@pytest.mark.parametrize("wrong", WRONG, ids=lambda each: repr(each)[:12])
@pytest.mark.parametrize(("kind", "name"), [(ThreadOptions, "ttl"), (Retention, "keep_for")])
def test_refused_in_options(kind, name, wrong):
    """So are the lengths of time that options keep."""
    with pytest.raises((ValueError, TypeError), match=rf"^{name} (is|takes) "):
        kind(**{name: wrong})


def test_one_type_and_no_units_in_names():
    """No public parameter takes bare seconds or only a timedelta, or says its unit in its name."""
    assert len(LENGTHS) > 20
    found = [each for each in parameters() if each[2] not in NO_LENGTHS]
    assert [each for each in found if re.search(r"\b(float|timedelta)\b", each[3]) or each[2].endswith("_s")] == []
    kinds = [
        kind for kind in (getattr(stateward, name) for name in stateward.__all__) if dataclasses.is_dataclass(kind)
    ]
    for kind in kinds:
        assert [each.name for each in dataclasses.fields(kind) if each.name.endswith("_s")] == []


def test_seconds_and_timedelta_are_equal():
    """A number is a number of seconds; what is kept is a timedelta."""
    assert seconds(timedelta(minutes=1.5), "x") == seconds(90, "x") == seconds(90.0, "x") == 90.0
    assert ThreadOptions(ttl=90) == ThreadOptions(ttl=timedelta(seconds=90))
    assert Retention(keep_for=0.5).keep_for == timedelta(milliseconds=500)
    given = [90, 90.0, timedelta(seconds=90)]
    calls = [next(threads.prune(ThreadRef("n", "t", "main"), None, each, None, True)) for each in given]
    assert calls[0].request == calls[1].request == calls[2].request
    assert calls[0].request.older_than.seconds == 90


def test_timeouts_are_timeouts():
    """Whoever gives a timeout may catch TimeoutError."""
    assert issubclass(NotArchivedYet, TimeoutError)
    assert issubclass(DeadlineExceeded, TimeoutError)
    late = NotArchivedYet("t", 7)
    assert str(late) == late.message
    assert (late.sequence, late.reason) == (7, "NOT_ARCHIVED_YET")
