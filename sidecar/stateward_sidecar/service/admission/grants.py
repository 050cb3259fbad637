"""Who may do what: principals, their grants, and what a request needs of them. No file, no clock, no call.

What a method needs is an option of the contract (proto/stateward/v1/access.proto). It is asked of the parsed request,
with the namespace that the verb will use, and before anything is looked up: a refusal tells nothing about what exists.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, MethodDescriptor
from google.protobuf.message import Message

from stateward.v1 import access_pb2
from stateward.v1.access_pb2 import VERB_ADMIN, VERB_ANY, VERB_DELETE, VERB_READ, VERB_SIGNAL, VERB_WRITE
from stateward_sidecar.errors import PermissionDenied
from stateward_sidecar.service.admission.limits import Allowance, PrincipalLimits, Taken
from stateward_sidecar.store.read.listing import ALL_THREADS
from stateward_sidecar.store.thread.usage import fits

DEFAULT_NAMESPACE = "default"
VERBS: dict[str, int] = {
    "read": VERB_READ, "write": VERB_WRITE, "signal": VERB_SIGNAL, "delete": VERB_DELETE, "admin": VERB_ADMIN,
}  # fmt: skip
_NAMES = {verb: name for name, verb in VERBS.items()}
PRINCIPAL = "${principal}"
"""Stands in a pattern for the name of the principal."""
_GRANT = re.compile(r"([a-z]+(?:,[a-z]+)*)\s+([^/\s]+)/(\S.*)")
NAMES_CHARS_MAX = 4096
"""The most characters of a namespace and a name together that are compared with a pattern."""
_BETWEEN = "\0"
"""Between namespace and thread: no name has it."""


class Grant(NamedTuple):
    """Verbs that are allowed for the threads whose namespace and name match two patterns, in which "*" is any text."""

    verbs: frozenset[int]
    namespace: str
    thread: str

    @property
    def is_for_all(self) -> bool:
        """Whether it is for every thread of every namespace."""
        return (self.namespace, self.thread) == ("*", "*")


def parse_grant(text: str, principal: str) -> Grant:
    """Returns a grant of the form "read,write default/booking-*". Raises ValueError, which says what is wrong."""
    found = _GRANT.fullmatch(text.strip())
    if found is None:
        raise ValueError(f'{text!r} is no grant; give verbs and a pattern: "read,write default/booking-*"')
    unknown = [verb for verb in found[1].split(",") if verb not in VERBS]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is no verb; give {', '.join(VERBS)}")
    verbs = frozenset(VERBS[verb] for verb in found[1].split(","))
    grant = Grant(verbs, *(part.replace(PRINCIPAL, principal) for part in found.groups()[1:]))
    if VERB_ADMIN in verbs and not grant.is_for_all:
        raise ValueError(f"{text!r}: admin is about the daemon as a whole; give it as admin */*")
    return grant


class Principal:
    """Somebody who may call."""

    def __init__(self, name: str, grants: Iterable[Grant]) -> None:
        self.name, self.grants = name, tuple(grants)
        self.limits = PrincipalLimits()
        self.allowance: Allowance | None = None
        """What its limits leave it; None = it has none."""
        self._everywhere = frozenset(verb for grant in self.grants if grant.is_for_all for verb in grant.verbs)
        self._patterns: dict[int, re.Pattern[str] | None] = {}  # made when they are needed: it takes a while

    def may(self, verb: int, namespace: str, thread: str) -> bool:
        """Whether a verb is allowed for a thread."""
        if verb in self._everywhere:
            return True
        if verb not in self._patterns:
            self._patterns[verb] = _pattern(self.grants, verb)
        pattern, name = self._patterns[verb], f"{namespace}{_BETWEEN}{thread}"
        # A longer name is none, and no reason to work.
        return pattern is not None and len(name) <= NAMES_CHARS_MAX and pattern.fullmatch(name) is not None

    def may_read_all(self, namespace: str) -> bool:
        """Whether one grant allows to read every thread of a namespace, also those that are not there yet."""
        return any(
            VERB_READ in grant.verbs and grant.thread == "*" and fits(grant.namespace, namespace)
            for grant in self.grants
        )

    def may_everywhere(self, verb: int) -> bool:
        """Whether a verb is allowed for every thread."""
        return verb in self._everywhere

    def may_throughout(self, verb: int, namespace: str) -> bool:
        """Whether one grant allows a verb for every thread of a namespace."""
        return verb in self._everywhere or any(
            verb in grant.verbs and grant.thread == "*" and re.fullmatch(any_text(grant.namespace), namespace)
            for grant in self.grants
        )


def _pattern(grants: Sequence[Grant], verb: int) -> re.Pattern[str] | None:
    alternatives = [
        f"{any_text(grant.namespace)}{_BETWEEN}{any_text(grant.thread)}" for grant in grants if verb in grant.verbs
    ]
    return re.compile("|".join(f"(?:{each})" for each in alternatives), re.DOTALL) if alternatives else None


def any_text(pattern: str) -> str:
    """Returns the regular expression of a pattern. A star takes as little as it can, and never more afterwards: so a
    match takes no longer than the name is."""
    first, *rest = map(re.escape, pattern.split("*"))
    middle = "".join(f"(?>[^{_BETWEEN}]*?{part})" for part in rest[:-1])
    return f"{first}{middle}[^{_BETWEEN}]*{rest[-1]}" if rest else first


ANYBODY = Principal("anybody", [Grant(frozenset(VERBS.values()), "*", "*")])
"""May do everything: whoever has a token of `--token-file`."""


class Need(NamedTuple):
    """One thing that a method needs of its caller."""

    verb: int
    thread: tuple[str, ...]
    """Where the request names the thread; empty = the daemon as a whole."""
    lists: bool
    """Whether an answer about all threads leaves out what the caller may not read."""
    when: str
    """The field of the request without which nothing is needed; empty = always."""

    def places(self, request: Message) -> Iterator[tuple[str, str]]:
        """Yields namespace and name of each thread that a request names, as its verb will use them."""
        return _places(request, self.thread, DEFAULT_NAMESPACE)


def _places(message: Any, path: Sequence[str], namespace: str) -> Iterator[tuple[str, str]]:
    fields = message.DESCRIPTOR.fields_by_name
    if "namespace" in fields:
        namespace = message.namespace or DEFAULT_NAMESPACE
    value = getattr(message, path[0])
    if len(path) == 1:
        yield namespace, value
    elif not isinstance(value, Message):  # many
        for each in value:
            yield from _places(each, path[1:], namespace)
    elif message.HasField(path[0]):
        yield from _places(value, path[1:], namespace)


def needs_of(method: MethodDescriptor) -> tuple[Need, ...]:
    """Returns what the contract says that a caller needs. Raises ValueError if it says nothing, or cannot be asked."""
    extension: Any = access_pb2.access  # it has many values, of which its stub knows nothing
    told: Any = method.GetOptions().Extensions[extension]
    found = tuple(
        Need(each.verb, tuple(filter(None, each.thread.split("."))), each.lists, each.when) for each in told
    )
    if not found:
        raise ValueError(f"{method.full_name} does not say what its callers need: option (access)")
    for need in found:
        _check_path(method, need.thread)
        _check_path(method, (need.when,) if need.when else ())
    return found


def _check_path(method: MethodDescriptor, path: Sequence[str]) -> None:
    message: Descriptor | None = method.input_type
    for name in path:
        if message is None or name not in message.fields_by_name:
            raise ValueError(f"{method.full_name}: {'.'.join(path)} is no field of {method.input_type.name}")
        message = message.fields_by_name[name].message_type


class Caller:
    """Who makes a call. The principal may change while a stream is open, when the file of principals does."""

    __slots__ = ("_asked", "_asked_everywhere", "changes", "ends_s", "place", "principal")

    def __init__(self, principal: Principal, changes: int = 0, ends_s: float = math.inf) -> None:
        """``changes``: how often the files had changed when the caller was looked for. ``ends_s``: the time at which
        its token ends."""
        self.principal, self.changes, self.ends_s = principal, changes, ends_s
        self.place: Taken | None = None
        """The place that its call has, if it may change."""
        self._asked: list[tuple[int, str, str]] = []
        self._asked_everywhere: list[int] = []

    def admit(self, needs: Iterable[Need], request: Message, *, is_kept: bool = False) -> None:
        """Raises PermissionDenied if the principal lacks what a request needs. ``is_kept``: the call is a stream, of
        which ``still_may`` will ask the same again."""
        for need in needs:
            if need.verb == VERB_ANY or (need.when and not getattr(request, need.when)):
                continue
            if not need.thread:
                if not need.lists:
                    self._ask_everywhere(need.verb)
                    if is_kept:
                        self._asked_everywhere.append(need.verb)
                continue
            for place in need.places(request):
                if place[1] == ALL_THREADS and need.lists:
                    continue
                self._ask(need.verb, *place)
                if is_kept:
                    self._asked.append((need.verb, *place))

    def still_may(self) -> bool:
        """Whether the principal, as it is now, has what the stream needed."""
        may, may_everywhere = self.principal.may, self.principal.may_everywhere
        return all(may(*asked) for asked in self._asked) and all(map(may_everywhere, self._asked_everywhere))

    def reading(self, namespace: str, *, is_stream: bool) -> Callable[[str], bool] | None:
        """Returns what says whether a thread may be read; None = every one, and that does not change."""
        if not is_stream and self.principal.may_throughout(VERB_READ, namespace):
            return None
        return partial(self._may_read, namespace)

    def _may_read(self, namespace: str, thread: str) -> bool:
        return self.principal.may(VERB_READ, namespace, thread)

    def _ask(self, verb: int, namespace: str, thread: str) -> None:
        if not self.principal.may(verb, namespace, thread):
            what = f"{self.principal.name} may not {_NAMES[verb]} {namespace}/{thread}"
            raise PermissionDenied(f"{what}: no grant allows it")

    def _ask_everywhere(self, verb: int) -> None:
        if not self.principal.may_everywhere(verb):
            raise PermissionDenied(f"{self.principal.name} may not {_NAMES[verb]} this daemon: no grant allows it")
