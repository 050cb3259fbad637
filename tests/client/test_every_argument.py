"""The danger: a wrong argument ends in an error that does not name it, or below the line that gave it."""

from __future__ import annotations

import inspect
import re
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import stateward
from stateward import AsyncClient, Client, Migrations, State
from stateward.errors import StatewardError

WRONG = (3.5, object())
GOOD: dict[str, Callable[[], Any]] = {
    "Thread.effectful.key": lambda: lambda: "x",
    "a": lambda: 0,
    "args": dict,
    "blob": lambda: bytes(32),
    "delta": lambda: 1,
    "edits": list,
    "effects": list,
    "fn": lambda: lambda *_: None,
    "initial": lambda: 0,
    "keys": lambda: ["x"],
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
    """Returns what a `Driven` of the tests drives."""
    return vars(found).get("_inner", found) if type(found).__name__ == "Driven" else found


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
