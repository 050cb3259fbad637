"""Where the daemon's time goes, as spans of a trace, if traces are on. `tracing` makes the spans; other parts only ask.

The span that is under way belongs to the present task or thread. A part that continues the work on another thread takes
it along with ``carried``. While traces are off, ``tracer`` is None, and asking costs one look at it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import Any, ParamSpec, Protocol, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
# Names and numbers only: never values, and never names that users chose.
Facts = Mapping[str, str | int | float | bool]


class Tracer(Protocol):
    """Makes spans. Safe for several threads."""

    def begin_call(self, method: str, metadata: Sequence[tuple[str, str | bytes]]) -> Callable[[str], None]:
        """Begins the span of a call, under the caller's if its metadata name one. Returns what ends it with a code."""
        ...

    def span(self, name: str, facts: Facts, uid: str) -> AbstractContextManager[None]:
        """A span around a block. ``uid``: link it with the saves of this thread since its last such span."""
        ...

    def note_write(self, times: WriteTimes, uid: str) -> None:
        """Adds the spans of a write that is over, and remembers the call for the next ship of the thread."""
        ...

    def trace_id(self) -> str:
        """The id of the trace under way; empty if there is none."""
        ...


class WriteTimes:
    """When a write was queued, taken and committed, in nanoseconds since 1970. 0 = not yet."""

    __slots__ = ("committed_ns", "committing_ns", "parent", "queued_ns", "taken_ns", "writes")

    def __init__(self, queued_ns: int) -> None:
        self.parent = active.get()
        self.queued_ns = queued_ns
        self.taken_ns = self.committing_ns = self.committed_ns = 0
        self.writes = 0  # that shared the commit


tracer: Tracer | None = None
active: ContextVar[Any] = ContextVar("active", default=None)
# The request id of the present call, as its client gave it; empty = it has none.
call_id: ContextVar[str] = ContextVar("call_id", default="")
_NOTHING: AbstractContextManager[None] = nullcontext()


def span(name: str, uid: str = "", **facts: str | float | bool) -> AbstractContextManager[None]:
    """A span around a block; nothing if traces are off. See ``Tracer.span``."""
    return _NOTHING if tracer is None else tracer.span(name, facts, uid)


@contextmanager
def kept() -> Iterator[None]:
    """Whatever becomes the present span within a block, the one before is present again after it."""
    before = active.get()
    try:
        yield
    finally:
        active.set(before)


def carried(call: Callable[P, T]) -> Callable[P, T]:
    """Returns a function that continues the present span on another thread."""
    return call if tracer is None else partial(contextvars.copy_context().run, call)


def trace_id() -> str:
    """The id of the trace under way; empty if there is none."""
    return "" if tracer is None else tracer.trace_id()
