"""The danger: a wrong argument ends in an error that does not name it, or below the line that gave it."""

from __future__ import annotations

import inspect
import io
import operator
import re
import tarfile
import tempfile
import traceback
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from enum import IntEnum
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stateward
from stateward import (
    AsyncClient,
    Blob,
    Check,
    CheckpointId,
    Client,
    Delete,
    Effect,
    EffectState,
    Handoff,
    Migrations,
    Put,
    Question,
    Record,
    RecordedEffect,
    Retention,
    Rules,
    Signal,
    State,
    ThreadOptions,
    Window,
)  # fmt: skip
from stateward.errors import StatewardError
from stateward.v1.state_pb2 import Value

WRONG = (3.5, object())


def empty_tar() -> io.BytesIO:
    file = io.BytesIO()
    tarfile.open(fileobj=file, mode="w").close()
    file.seek(0)
    return file


GOOD: dict[str, Callable[[], Any]] = {
    "Effects.wrap.key": lambda: lambda: "x",
    "a": lambda: 0,
    "args": dict,
    "blob": lambda: bytes(32),
    "delta": lambda: 1,
    "edits": list,
    "effects": list,
    "file": empty_tar,
    "fn": lambda: lambda *_: None,
    "initial": lambda: 0,
    "keys": lambda: ["x"],
    "Thread.workspace.root": tempfile.mkdtemp,
    "reducer": lambda: lambda value, _entry: value,
    "saves": list,
    "source": lambda: b"x",
    "state": State,
    "value": lambda: 1,
    "version": lambda: 1,
    "what": lambda: 1,
    "writes": list,
}
"""What required arguments take; those of other names take a text."""
NEEDED: dict[str, tuple[str, Callable[[], Any], set[str]]] = {
    "Client.migrate": ("migrations", lambda: Migrations(current=1), set()),
    "Client.take_handoff": ("thread", lambda: "x", {"to"}),
    "Thread.before": ("state", State, set()),
    "Thread.update_options": ("agent", lambda: "x", set()),
    "Thread.prune": ("keep_latest_per_branch", lambda: 1, {"versions", "older_than"}),
}
"""An optional argument without which a call is wrong, unless one of the others is given."""
NOT_WALKED = {
    "Client.drain": ("real", "other tests share the daemon"),
    "Client.diagnose": ("real", "it takes seconds"),
    "Thread.increment": ("fake", "it adds no numbers"),
    "Autosave.lock": ("asyncio", "reading it starts a task, which needs a running loop"),
}
"""What is not called, on which server or client, and why."""


def log_state() -> State:
    state = State()
    state.logs["x"].append(1)
    return state


NOW = datetime(2026, 1, 1, tzinfo=UTC)
UNREADABLE = Value(media_type="application/json", data=b"{")
VALUES: dict[str, Callable[[], Any]] = {
    "Blob": lambda: Blob("text/plain", bytes(32), 3),
    "CheckpointId": lambda: CheckpointId("a"),
    "Check": lambda: Check("x", 0),
    "Delete": lambda: Delete("x"),
    "Effect": lambda: Effect("x", 1),
    "Handoff": lambda: Handoff("x", "x", "x", "", "", (), (), None, NOW),
    "Log": lambda: log_state().logs["x"],
    "Logs": lambda: log_state().logs,
    "Migrations": lambda: Migrations(current=2),
    "Put": lambda: Put("x", 1),
    "Question": lambda: Question("x", {"type": "boolean"}),
    "Record": lambda: Record("x", 1, NOW, NOW, 1, stored_value=UNREADABLE),
    "RecordedEffect": lambda: RecordedEffect(
        "x", "x", "", b"", EffectState.DONE, "", NOW, NOW, 1, "", 1, stored_value=UNREADABLE
    ),
    "Retention": lambda: Retention(keep_last=1),
    "Rules": Rules,
    "Signal": lambda: Signal("x", "x", "", "", NOW, 1, (), UNREADABLE),
    "Slots": lambda: State().slots,
    "State": State,
    "ThreadOptions": lambda: ThreadOptions(retention=Retention()),
    "Window": lambda: Window("x", keep_last=1),
}
"""One of each kind that checks what it is given, or that reads a value."""
HOLDERS = {
    "Branch", "Checkpoint", "DrainResult", "Event", "Happened", "HistoryEntry", "Json5", "Lease", "LogEntry", "MsgPack",
    "Number", "PathChange", "PathFacts", "PreparedSave", "RawValue", "RecordPrefix", "RecordsWritten", "Restored",
    "RiskyStep", "SaveOptions", "ServerInfo", "GitHead",
    "LeftOut", "SignalOptions", "Snapshot", "Stats", "Tag", "Text", "ThreadInfo", "Tree", "Wake", "WorkspaceUsage",
}  # fmt: skip
"""Kinds that keep what they are given as it is, and check it later if at all, or that the client makes."""
ITEMS: dict[str, Callable[[Any, Any], Any]] = {
    "x[wrong]": lambda each, wrong: each[wrong],
    "x[wrong] = 1": lambda each, wrong: operator.setitem(each, wrong, 1),
    "x['x'] = wrong": lambda each, wrong: operator.setitem(each, "x", wrong),
    "del x[wrong]": operator.delitem,
    "x[0] = wrong": lambda each, wrong: operator.setitem(each, 0, wrong),
    "x += wrong": operator.iadd,
    "x.wrong = wrong": lambda each, wrong: setattr(each, "wrong", wrong),
}
"""What Python calls by its syntax."""


def test_an_error_of_a_value_ends_at_the_caller() -> None:
    """Whatever is made, called, read or set with wrong arguments: no line of the library is left."""
    faults = []
    for name, make in VALUES.items():
        for label, call in calls_of(name, make).items():
            for wrong in (*WRONG, -1, "x", None):
                faults += fault_of(label, None, partial(call, wrong))
    assert not faults, "\n".join(faults)


def test_every_kind_of_value_is_walked() -> None:
    """What is public, and no error, enumeration or client, is in one of the tables."""
    found = [getattr(stateward, name) for name in stateward.__all__]
    classes = [each for each in found if inspect.isclass(each) and not issubclass(each, (Exception, IntEnum))]
    clients = ("stateward._sync", "stateward._async")
    values = {each.__name__ for each in classes if not each.__module__.startswith(clients)}
    assert values == (VALUES.keys() | HOLDERS) - {"Slots", "Logs"}


def calls_of(name: str, make: Callable[[], Any]) -> dict[str, Callable[[Any], Any]]:
    """Returns what can be done with a kind of value. Each takes what to give wrongly."""
    kind = type(make())
    calls: dict[str, Callable[[Any], Any]] = {
        f"{name}: {said}": (lambda wrong, do=do: do(make(), wrong)) for said, do in ITEMS.items()
    }
    for each in public(kind):
        if callable(member := getattr(kind, each)):
            calls |= with_each_wrong(f"{name}.{each}", member, lambda each=each: getattr(make(), each))
        else:
            calls[f"{name}.{each}"] = lambda _, each=each: getattr(make(), each)
    if name not in ("Log", "Logs", "Slots", "State"):  # the library makes them, or gives the arguments
        calls |= with_each_wrong(name, kind, lambda: kind)
    return calls


def public(kind: type) -> list[str]:
    return [name for name, each in inspect.getmembers(kind) if not name.startswith("_") and is_of_stateward(each)]


def is_of_stateward(member: Any) -> bool:
    function = getattr(member, "fget", None) or getattr(member, "func", None) or member
    return str(getattr(function, "__module__", "")).startswith("stateward") and not inspect.ismethod(function)


def with_each_wrong(label: str, function: Any, get: Callable[[], Any]) -> dict[str, Callable[[Any], Any]]:
    """Returns calls of a function, one for each argument, which take what to give as it."""
    parameters = inspect.signature(function).parameters
    required = [name for name, each in parameters.items() if name != "self" and each.default is each.empty]
    right = {name: (GOOD.get(name) or (lambda: "x"))() for name in required}

    def call(name: str, wrong: Any) -> Any:
        result = get()(**{**right, name: wrong})
        return result(wrong) if callable(result) else result

    return {f"{label}({name})": partial(call, name) for name in parameters if name != "self"}


def test_a_wrong_argument_is_named(client: Any, request: pytest.FixtureRequest) -> None:
    """Whatever method gets it: the error is one of Stateward's own or says the argument, and ends at the caller."""
    skipped = {name for name, (where, _) in NOT_WALKED.items() if where in request.node.name}
    make_thread(client)
    walk = Walk(client, skipped)
    walk.run()
    assert {"Client", "Thread", "Records", "ThreadLog", "Board", "Archive", "Writer", "Autosave"} <= walk.seen
    assert not walk.faults, "\n".join(walk.faults)


def test_a_wrong_option_of_a_client_is_named(tmp_path: Path) -> None:
    """Nothing is dialled or started."""
    faults = []
    for make, given in ((Client, {}), (AsyncClient, {}), (stateward.open, {"data_dir": tmp_path, "start": False})):
        for name in (each for each in arguments_of(make) if each != "start"):  # whatever is true starts a daemon
            for wrong in WRONG:
                faults += fault_of(f"{make.__name__}({name})", name, lambda m=make, a={**given, name: wrong}: m(**a))
    assert not faults, "\n".join(faults)
    assert not (tmp_path / "daemon.json").exists()


def make_thread(client: Any) -> None:
    state = client.thread("x").hydrate()
    state.logs["x"].append(1)
    client.thread("x").save(state)


class Walk:
    """Calls each public method of an object, and of what its methods return, with wrong arguments."""

    def __init__(self, client: Any, skipped: set[str]) -> None:
        self.faults: list[str] = []
        self.seen = {kind_of(client)}
        self._client, self._left = client, list[Any]()
        self._skipped = skipped

    def run(self) -> None:
        self._walk(self._client)
        while self._left:
            make_thread(self._client)  # an earlier walk deleted it
            each = self._left.pop()
            if hasattr(type(inner(each)), "__enter__") or hasattr(type(inner(each)), "__aenter__"):
                with suppress(StatewardError), each:  # the fake has no leases
                    self._walk(each)
            else:
                self._walk(each)

    def _walk(self, each: Any) -> None:
        for name, found in inspect.getmembers(type(inner(each))):
            label = f"{kind_of(each)}.{name}"
            if name.startswith("_") or label in self._skipped:
                continue
            if isinstance(found, property):
                self.faults += fault_of(label, None, lambda n=name: self._note(getattr(each, n)))
            elif callable(found):
                self._call(each, name, found)

    def _note(self, found: Any) -> bool:
        """Keeps what a method returned for the walk, if it is the first of its kind. Returns whether it is."""
        is_ours = type(inner(found)).__module__.startswith(("stateward._sync", "stateward._async"))
        is_new = is_ours and kind_of(found) not in self.seen
        if is_new:
            self.seen.add(kind_of(found))
            self._left.append(found)
        return is_new

    def _call(self, each: Any, name: str, function: Any) -> None:
        parameters = inspect.signature(function).parameters
        rest = next((n for n, p in parameters.items() if p.kind is p.VAR_POSITIONAL), None)
        names, label = arguments_of(function), f"{kind_of(each)}.{name}"
        empty = inspect.Parameter.empty
        required = [n for n in names if n == rest or (n in parameters and parameters[n].default is empty)]
        needed, value, others = NEEDED.get(label, ("", None, set()))
        calls = [(argument, wrong) for argument in names for wrong in WRONG]
        for argument, wrong in [("", None), *calls] if names else ():
            given = {n: (GOOD.get(f"{label}.{n}") or GOOD.get(n, lambda: "x"))() for n in required}
            if needed and argument not in others:
                given[needed] = value()
            if argument:
                given[argument] = wrong
            places = [given.pop(n) for n in required[: required.index(rest) + 1]] if rest else []
            call = partial(self._use, partial(getattr(each, name), *places, **given), not argument)
            self.faults += fault_of(f"{label}({argument})", argument, call)

    def _use(self, call: Callable[[], Any], is_right: bool) -> None:
        """Makes a call and uses its result: some read their arguments only then."""
        result = call()
        kind = type(inner(result))
        if is_right and self._note(result):
            return
        if inspect.isgenerator(inner(result)) or inspect.isasyncgen(inner(result)):
            next(iter(result), None)
        elif kind.__name__ == "Decorator":
            called = result(lambda: 1)()
            if inspect.iscoroutine(called):
                result._finish(called)
        elif kind.__name__.endswith(("BeforeStep", "Autosave", "HeldLease", "Writer")):
            with result:
                pass


def inner(found: Any) -> Any:
    """Returns what a `Blocking` of the tests drives."""
    return vars(found).get("_inner", found) if type(found).__name__ == "Blocking" else found


def kind_of(found: Any) -> str:
    return type(inner(found)).__name__.removeprefix("Async")


def arguments_of(function: Any) -> list[str]:
    """Returns the names of the arguments, and of those options that a TypedDict names."""
    names = []
    for name, parameter in inspect.signature(function).parameters.items():
        if name == "self":
            continue
        if parameter.kind is not parameter.VAR_KEYWORD:
            names.append(name)
        elif found := re.fullmatch(r"Unpack\[(\w+)\]", str(parameter.annotation)):
            names += inspect.unwrap(function).__globals__[found[1]].__annotations__
    return names


def fault_of(label: str, argument: str | None, call: Callable[[], Any]) -> list[str]:
    """Returns what is wrong with the error of a call, if anything. Without a wrong argument ("") there must be none but
    Stateward's own; a property (None) may raise others, too."""
    try:
        call()
    except Exception as error:  # noqa: BLE001  any of them is judged
        said = f"{label}: {type(error).__name__}: {error}"[:200]
        ours = library_frames(error)
        if ours:
            return [f"{said} [{ours}]"]
        if argument is None or isinstance(error, StatewardError):
            return []
        if not argument or not isinstance(error, (TypeError, ValueError)) or not is_named(argument, str(error)):
            return [said]
    return []


def library_frames(error: BaseException) -> str:
    ends = []
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if "/client/stateward/" not in frame.filename:
            break
        ends.append(f"{Path(frame.filename).name}:{frame.lineno} {frame.name}")
    return ", ".join(reversed(ends))


def is_named(argument: str, said: str) -> bool:
    """Whether an error says the argument's name, or what it is the name of. An error about a value names its place in
    the state, such as `slots.x`."""
    names = rf"\b{argument}\b|\b{argument.removesuffix('s')}\b"
    return bool(re.search(rf"(?i){names}|\bname of an? \w+ is a text|cannot be stored", said))
