"""Operations that bring states to another schema: one as it is read, a thread, and the threads of a namespace.

A version that does not say its schema has that of its parent, the daemon sees to it: an append made without migrations
changes no shape. And what is only added to a head must have its schema: an append that was prepared before somebody
migrated the thread is refused (SchemaMismatch), and prepared again.

A migration is saved on top of what it read, or made again. After a few lost races it takes the thread's lease.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from stateward import values
from stateward._operations.migration_lease import Patience, hold
from stateward._operations.reading import get_checkpoint, hydrate_stored
from stateward._operations.retry import race_backoff
from stateward._operations.saving import SaveOptions, save
from stateward._operations.steps import Call, Migrating, Operation, Pause, ThreadRef
from stateward._operations.windows import LABEL as TRIMMED
from stateward.errors import LeaseHeld, NotFound, SchemaMismatch, ThreadNotFound, VersionMismatch, VersionNotFound
from stateward.models import Checkpoint, Lease, Status
from stateward.signals import Question
from stateward.state import State
from stateward.v1 import checkpoint_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints

ATTEMPTS = 20
"""How often a thread is tried that others save to meanwhile."""
RACES_MAX = 3
"""How many of these races are lost before the thread's lease is taken, for which all others wait."""
LABEL = "stateward/migrated-from"
"""Label of a version that a migration made; its value is the schema before."""
LABELS_MAX = 64
"""So many a version may have."""


@dataclass(frozen=True)
class Migrated:
    """What became of the head of one branch."""

    found: int
    """The schema it had."""
    checkpoint: Checkpoint | None = None
    """The new version; None = it was current already, or this is a dry run."""


def bring_up(
    migrations: Migrating, ref: ThreadRef, state: State, read: Callable[[], Operation[State]]
) -> Operation[State]:
    """The state in the current schema. One that was read in part is read again as a whole, by `read`: a migration may
    need any of it."""
    if state.checkpoint is None:
        state.schema_version = migrations.current
        return state
    found = _schema_of(migrations, state.checkpoint)
    if found != migrations.current:
        migrations._require_path(ref.thread, state.version, found)
        if state.partial:
            state = yield from read()
            assert not state.partial
            return (yield from bring_up(migrations, ref, state, read))
        migrations._apply(ref.thread, state, found)
    state.schema_version = migrations.current
    return state


def prepare_append(migrations: Migrating, ref: ThreadRef) -> Operation[int]:
    """Migrates the head if it has to be, so that entries of the new shape never follow on a state of the old one."""
    with suppress(ThreadNotFound, VersionNotFound):  # there is none yet: the append makes it
        yield from migrate(migrations, ref)
    return migrations.current


def prepare_reading(migrations: Migrating, ref: ThreadRef, version: int | None) -> Operation[None]:
    """Sees to it that entries of a log, which are read without the rest of the state, are of the current schema: by
    migrating the head, as an append does. SchemaMismatch where another version is to be read (`version`, or the one
    that a branch begins from which is not there yet) and has another schema."""
    if version is None:
        try:
            yield from migrate(migrations, ref)
            return
        except NotFound:
            if ref.at is None:
                return  # there is nothing to be read
            version = ref.at
    checkpoint = yield from get_checkpoint(replace(ref, branch=""), version, None, None)
    found = _schema_of(migrations, checkpoint)
    if found != migrations.current:
        raise SchemaMismatch(
            f"thread {ref.thread!r} version {version} has schema {found}, and its entries are wanted in "
            f"{migrations.current}: a migration needs the whole state; hydrate that version, or read its entries as "
            "they are, with migrations=False",
            metadata={"thread": ref.thread, "schema": str(found), "asked": str(migrations.current)},
        )


def migrate_here(ref: ThreadRef) -> Operation[Checkpoint | None]:
    """`migrate` with the migrations of the handle."""
    if ref.migrations is None:
        raise ValueError("this handle has no migrations: client.thread(name, migrations=…)")
    return (yield from migrate(ref.migrations, ref)).checkpoint


def migrate(migrations: Migrating, ref: ThreadRef, *, dry_run: bool = False) -> Operation[Migrated]:
    """Saves a branch's head in the current schema, on top of what it was made from; again from the start when
    somebody saved in between, and under the thread's lease when that happened too often. Waits for another migration;
    LeaseHeld where anybody else holds the lease."""
    patience, races, backoff = Patience(), 0, race_backoff()
    while True:
        try:
            if races < RACES_MAX or ref.held.token or dry_run:
                return (yield from _migrate_once(migrations, ref, None, dry_run))
            return (yield from hold(ref, lambda lease: _migrate_once(migrations, ref, lease, dry_run)))
        except LeaseHeld as error:
            yield from patience.wait(error)
        except VersionMismatch:
            races += 1
            if races == ATTEMPTS:
                raise
            yield Pause(backoff.next_s() or 0)


def _migrate_once(migrations: Migrating, ref: ThreadRef, lease: Lease | None, dry_run: bool) -> Operation[Migrated]:
    """One attempt, under this lease if there is one. VersionMismatch where somebody saved in between."""
    head = yield from _read_head(ref)
    found = _schema_of(migrations, head)
    if found == migrations.current:
        return Migrated(found)
    migrations._require_path(ref.thread, head.version, found)
    # What is only tried may be outdated when it is done.
    state = yield from hydrate_stored(ref, head.version if dry_run else None)
    if state.digest != head.digest:
        raise VersionMismatch(f"thread {ref.thread!r} was saved by others at each attempt to migrate it")
    migrations._apply(ref.thread, state, found, must_fit=True)
    if dry_run:
        return Migrated(found)
    options = _options(head, found)
    if lease is not None:
        options["lease"] = lease
    return Migrated(found, (yield from save(ref, state, options)))


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
        "labels": _labels(head, found),
    }


def _labels(head: checkpoint_pb2.Checkpoint, found: int) -> dict[str, str]:
    """Those of the head, and what was migrated. Where the head is full, the last one in alphabetical order goes; and a
    version that trims nothing must not say that it did."""
    kept = sorted(name for name in head.labels if name != LABEL and not name.startswith(TRIMMED))
    return {**{name: head.labels[name] for name in kept[: LABELS_MAX - 1]}, LABEL: str(found)}


def _read_head(ref: ThreadRef) -> Operation[checkpoint_pb2.Checkpoint]:
    request = ref.on_branch(checkpoints.GetCheckpointRequest)
    response: checkpoints.GetCheckpointResponse = yield Call("GetCheckpoint", request)
    return response.checkpoint


def _schema_of(migrations: Migrating, checkpoint: Any) -> int:
    """The schema of a version: what it or one that it was made from said, else what `migrations` take for it."""
    return checkpoint.schema_version or migrations.unsaid
