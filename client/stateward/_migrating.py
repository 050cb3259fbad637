"""Operations that bring states to another schema: one as it is read, a thread, and the threads of a namespace.

A version that does not say its schema has that of its parent: an append made without migrations changes no shape. So
the schema of a head is that of its nearest ancestor which says one.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from stateward import values
from stateward._operations import Call, Operation, Pause, ThreadRef
from stateward._reading import hydrate_stored, list_checkpoints
from stateward._saving import SaveOptions, save
from stateward.errors import ThreadNotFound, VersionMismatch, VersionNotFound
from stateward.models import Checkpoint, Status
from stateward.signals import Question
from stateward.state import State
from stateward.v1 import checkpoint_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints

if TYPE_CHECKING:
    from stateward.migrations import Migrations

ATTEMPTS = 20
"""How often a thread is tried that others save to meanwhile."""
PAGE_SIZE = 1000
LABEL = "stateward/migrated-from"
"""Label of a version that a migration made; its value is the schema before."""


@dataclass(frozen=True)
class Migrated:
    """What became of the head of one branch."""

    found: int
    """The schema it had."""
    checkpoint: Checkpoint | None = None
    """The new version; None = it was current already, or this is a dry run."""


def bring_up(
    migrations: Migrations, ref: ThreadRef, state: State, read: Callable[[], Operation[State]]
) -> Operation[State]:
    """The state in the current schema. One that was read in part is read again as a whole, by `read`: a migration may
    need any of it."""
    if state.checkpoint is None:
        state.schema_version = migrations.current
        return state
    found = yield from _find_schema(migrations, ref, _Link.of(state.checkpoint))
    if found != migrations.current:
        migrations._require_path(ref.thread, state.version, found)
        if state.partial:
            state = yield from read()
            assert not state.partial
            return (yield from bring_up(migrations, ref, state, read))
        migrations._apply(ref.thread, state, found)
    state.schema_version = migrations.current
    return state


def prepare_append(migrations: Migrations, ref: ThreadRef) -> Operation[int]:
    """Migrates the head if it has to be, so that entries of the new shape never follow on a state of the old one."""
    with suppress(ThreadNotFound, VersionNotFound):  # there is none yet: the append makes it
        yield from migrate(migrations, ref)
    return migrations.current


def migrate_here(ref: ThreadRef) -> Operation[Checkpoint | None]:
    """`migrate` with the migrations of the handle."""
    if ref.migrations is None:
        raise ValueError("this handle has no migrations: client.thread(name, migrations=…)")
    return (yield from migrate(ref.migrations, ref)).checkpoint


def migrate(migrations: Migrations, ref: ThreadRef, *, dry_run: bool = False) -> Operation[Migrated]:
    """Saves a branch's head in the current schema, on top of what it was made from; again from the start when
    somebody saved in between."""
    for attempt in range(1, ATTEMPTS + 1):
        head = yield from _read_head(ref)
        found = yield from _find_schema(migrations, ref, _Link.of(head))
        if found == migrations.current:
            return Migrated(found)
        migrations._require_path(ref.thread, head.version, found)
        state = yield from hydrate_stored(ref)
        if state.digest == head.digest:
            migrations._apply(ref.thread, state, found, must_fit=True)
            if dry_run:
                return Migrated(found)
            try:
                return Migrated(found, (yield from save(ref, state, _options(head, found))))
            except VersionMismatch:
                if attempt == ATTEMPTS:
                    raise
        yield Pause(random.uniform(0, min(0.01 * 2**attempt, 1.0)))  # noqa: S311  spreads, hides nothing
    raise VersionMismatch(f"thread {ref.thread!r} was saved by others at each of {ATTEMPTS} attempts to migrate it")


def _options(head: checkpoint_pb2.Checkpoint, found: int) -> SaveOptions:
    """What the new version keeps of the one it replaces: where the work stands, and what is said of it."""
    metadata = values.RawValue(head.metadata.media_type, head.metadata.data) if head.HasField("metadata") else None
    return {
        "status": Status(head.status),
        "status_detail": head.status_detail,
        "step": head.step if head.HasField("step") else None,
        "metrics": dict(head.metrics),
        "metadata": metadata,
        "wait_id": head.wait_id,
        "question": Question.from_proto(head.question) if head.HasField("question") else None,
        "labels": {LABEL: str(found)},
    }


def _read_head(ref: ThreadRef) -> Operation[checkpoint_pb2.Checkpoint]:
    request = checkpoints.GetCheckpointRequest(namespace=ref.namespace, thread=ref.thread, branch=ref.branch)
    response: checkpoints.GetCheckpointResponse = yield Call("GetCheckpoint", request)
    return response.checkpoint


@dataclass(frozen=True)
class _Link:
    """What finding a schema needs to know of a version."""

    version: int
    parent: int
    schema: int

    @classmethod
    def of(cls, checkpoint: Any) -> _Link:
        return cls(checkpoint.version, checkpoint.parent_version, checkpoint.schema_version)


def _find_schema(migrations: Migrations, ref: ThreadRef, link: _Link) -> Operation[int]:
    """The schema of a version: its own word, else that of its nearest ancestor with one, else what `migrations` take
    for it. Ancestors that were pruned say nothing."""
    if link.schema:
        return link.schema
    pages = _Ancestors(ref, link)
    while (page := pages.request()) is not None:
        schema = pages.look_at((yield Call("ListCheckpoints", page)))
        if schema:
            return schema
    return migrations.unsaid


class _Ancestors:
    """Walks from a version back along its parents, over pages of all versions, newest first."""

    def __init__(self, ref: ThreadRef, link: _Link) -> None:
        self._wanted = link.parent
        self._request = list_checkpoints(ref.namespace, ref.thread, before=link.version, page_size=PAGE_SIZE)
        self._more = link.parent > 0

    def request(self) -> checkpoints.ListCheckpointsRequest | None:
        """For the next page; None at the end."""
        return self._request if self._more else None

    def look_at(self, page: checkpoints.ListCheckpointsResponse) -> int:
        """The first schema that is said on this page; 0 = none."""
        self._request.page_token = page.next_page_token
        self._more = bool(page.next_page_token)
        for link in self._line(page):
            if link.schema:
                return link.schema
        return 0

    def _line(self, page: checkpoints.ListCheckpointsResponse) -> Iterator[_Link]:
        for link in map(_Link.of, page.checkpoints):
            if link.version < self._wanted:  # pruned: the line is broken
                self._more = False
                return
            if link.version == self._wanted:
                yield link
                self._wanted = link.parent
                if not link.parent:
                    self._more = False
                    return
