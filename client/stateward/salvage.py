"""Lists of what a thread has: one damaged version, record or effect does not hide the others, and is named.

found = list_effects(thread)
print(found.items, found.damaged)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Generic, TypeVar

if TYPE_CHECKING:
    from stateward import Checkpoint, Records, Thread
    from stateward._operations.steps import Operation
    from stateward.effects import RecordedEffect
    from stateward.records import Record, RecordPrefix
    from stateward.v1.thread_pb2 import UnreadablePart

T = TypeVar("T")
PAGE_MAX = 1000


@dataclass
class Found(Generic[T]):
    """The elements that can be read, and what is known of the others."""

    thread: str
    items: list[T] = field(default_factory=list)
    damaged: list[str] = field(default_factory=list)
    """A message for each."""


def list_versions(thread: Thread, branch: str, most: int | None) -> Found[Checkpoint]:
    """Returns versions, newest first. `branch` "" = of all branches; `most` None = all."""
    from stateward._operations.reading import list_checkpoints  # noqa: PLC0415  the client is loaded at first use
    from stateward.models import Checkpoint  # noqa: PLC0415

    size = PAGE_MAX if most is None else min(most, PAGE_MAX)
    request = list_checkpoints(
        thread._ref.namespace, thread.name, branch=branch, page_size=size, skip_unreadable=True
    )
    return _read(thread, "ListCheckpoints", request, lambda page: map(Checkpoint.from_proto, page.checkpoints), most)


def list_effects(
    thread: Thread, anchor: str | None = None, *, names: Sequence[str] = (), values: bool = True
) -> Found[RecordedEffect]:
    """Returns effects in the order of their sort keys; `anchor` None = those of all anchors."""
    from stateward._operations import effects  # noqa: PLC0415  the client is loaded at first use
    from stateward.effects import RecordedEffect  # noqa: PLC0415

    request = effects.list_effects(thread._ref, anchor, names, "", values)
    request.skip_unreadable = True
    return _read(thread, "ListEffects", request, lambda page: map(RecordedEffect.from_proto, page.effects))


def list_records(records: Records, prefix: str, *, newest_first: bool, most: int) -> Found[Record]:
    """Returns records by key."""
    from stateward._operations import records as operations  # noqa: PLC0415  the client is loaded at first use
    from stateward.records import Record  # noqa: PLC0415

    request = operations.list_records(
        records._ref, prefix, None, newest_first, 0, min(most, PAGE_MAX), refresh=False, with_values=True
    )
    request.skip_unreadable = True
    return _read(records, "ListRecords", request, lambda page: map(Record.from_proto, page.records), most)


def list_prefixes(records: Records, delimiter: str, prefix: str) -> Found[RecordPrefix]:
    """Returns the prefixes of keys, with the number of records in each."""
    from stateward._operations import records as operations  # noqa: PLC0415  the client is loaded at first use
    from stateward.records import RecordPrefix  # noqa: PLC0415

    request = operations.list_prefixes(records._ref, delimiter, prefix, 0)
    request.skip_unreadable = True
    return _read(records, "ListRecordPrefixes", request, lambda page: map(RecordPrefix.from_proto, page.prefixes))


def _read(
    of: Thread | Records, method: str, request: Any, items_of: Callable[[Any], Any], most: int | None = None
) -> Found[Any]:
    """Reads a list to its end, or until it has `most` elements."""
    found, is_first = Found[Any](of.name), True
    while is_first or (request.page_token and (most is None or len(found.items) < most)):
        page = of._session.run(_call(method, request))
        found.items += items_of(page)
        # Every page names those whose damage hides their keys.
        found.damaged += [_describe(each) for each in page.unreadable_parts if is_first or _is_named(each)]
        request.page_token, is_first = page.next_page_token, False
    if most is not None:
        del found.items[most:]
    return found


def _call(method: str, request: Any) -> Operation[Any]:
    from stateward._operations.steps import Call  # noqa: PLC0415  the client is loaded at first use

    return (yield Call(method, request))


def _is_named(part: UnreadablePart) -> bool:
    return bool(part.version or part.key or part.anchor)


def _describe(part: UnreadablePart) -> str:
    if part.version:
        return f"version {part.version}: {part.message}"
    if not _is_named(part):
        return part.message
    return f"{part.key!r}" + (f" of anchor {part.anchor!r}" if part.anchor else "") + f": {part.message}"
