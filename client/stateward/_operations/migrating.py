"""Operations that migrate states: a state as it is read, and the head of a branch.

The daemon gives a version that is saved without a schema the schema of its parent, so an append without migrations
changes no schema. The daemon refuses an append (SchemaMismatch) that was prepared before somebody migrated the thread;
the client prepares it again.

The client saves a migration on top of the version that it read, and starts again if the head moved. After a few lost
races it takes the thread's lease.
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
from stateward.attributes import read_attributes
from stateward.errors import (
    LeaseHeld,
    NotFound,
    SchemaMismatch,
    ThreadNotFound,
    UidMismatch,
    VersionMismatch,
    VersionNotFound,
)
from stateward.models import Checkpoint, Lease, Status
from stateward.signals import Question
from stateward.state import State
from stateward.v1 import checkpoint_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints

ATTEMPTS = 20
"""How often a migration is attempted while others save to the thread."""
RACES_MAX = 3
"""After so many lost races the migration takes the thread's lease, for which the others wait."""
LABEL = "stateward/migrated-from"
"""Label of a version that a migration saved; its value is the schema before."""
LABELS_MAX = 64
"""The most labels that a version may have."""


@dataclass(frozen=True)
class Migrated:
    """The result of migrating the head of one branch."""

    found: int
    """The schema it had."""
    checkpoint: Checkpoint | None = None
    """The new version; None = the schema was current already, or this is a dry run."""


def bring_up(
    migrations: Migrating, ref: ThreadRef, state: State, read: Callable[[], Operation[State]]
) -> Operation[State]:
    """Returns the state in the current schema. Reads a partial state again as a whole, with `read`, because a migration
    may need any part of it."""
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
    """Migrates the head if needed, so that entries of the new schema are never appended to a state of the old one.

    The append is still meant for the creation of the thread that the handle works on."""
    with suppress(ThreadNotFound, UidMismatch, VersionNotFound), ref.held.working_on_the_same():  # the append makes it
        yield from migrate(migrations, ref)
    return migrations.current


def prepare_reading(migrations: Migrating, ref: ThreadRef, version: int | None) -> Operation[None]:
    """Ensures that log entries, which are read without the rest of the state, have the current schema.

    Migrates the head, as an append does. Raises SchemaMismatch if another version is read, and that version has another
    schema: `version`, or the start of a branch that does not exist yet."""
    if version is None:
        try:
            yield from migrate(migrations, ref)
            return
        except (NotFound, UidMismatch):
            if ref.at is None:
                return  # there is nothing to read
            version = ref.at
    checkpoint = yield from get_checkpoint(replace(ref, branch=""), version)
    found = _schema_of(migrations, checkpoint)
    if found != migrations.current:
        raise SchemaMismatch(
            f"thread {ref.thread!r} version {version} has schema {found}, but its entries are wanted in "
            f"{migrations.current}: a migration needs the whole state, so hydrate that version, or read its entries "
            "unchanged with migrations=False",
            metadata={"thread": ref.thread, "schema": str(found), "asked": str(migrations.current)},
        )


def migrate_here(ref: ThreadRef) -> Operation[Checkpoint | None]:
    """Migrates the head with the migrations of the handle."""
    if ref.migrations is None:
        raise ValueError("this handle has no migrations; open it with client.thread(name, migrations=…)")
    return (yield from migrate(ref.migrations, ref)).checkpoint


def migrate(migrations: Migrating, ref: ThreadRef, *, dry_run: bool = False) -> Operation[Migrated]:
    """Saves a branch's head in the current schema. Starts again if somebody saves in between, and takes the thread's
    lease after RACES_MAX such races. Waits for other migrations; raises LeaseHeld if anybody else holds the lease."""
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
    """Makes one attempt, under the lease if one is given. Raises VersionMismatch if somebody saved in between."""
    request = ref.on_branch(checkpoints.GetCheckpointRequest)
    head: checkpoint_pb2.Checkpoint = (yield Call("GetCheckpoint", request)).checkpoint
    found = _schema_of(migrations, head)
    if found == migrations.current:
        return Migrated(found)
    migrations._require_path(ref.thread, head.version, found)
    # A dry run reads the version that it checked. It saves nothing, so the head may move on.
    state = yield from hydrate_stored(ref, head.version if dry_run else None)
    if state.digest != head.digest:
        raise VersionMismatch(f"thread {ref.thread!r}: others saved during each attempt to migrate it; try again later")
    migrations._apply(ref.thread, state, found, must_fit=True)
    if dry_run:
        return Migrated(found)
    options = _options(head, found)
    if lease is not None:
        options["lease"] = lease
    return Migrated(found, (yield from save(ref, state, options)))


def _options(head: checkpoint_pb2.Checkpoint, found: int) -> SaveOptions:
    """Returns what the new version keeps of its parent: status, step, question and all facts.

    If the parent has the maximum of labels, the last one in alphabetical order is dropped. The labels of trimmed logs
    are not kept, because the new version trims nothing.
    """
    kept = sorted(name for name in head.labels if name != LABEL and not name.startswith(TRIMMED))
    metadata = values.RawValue(head.metadata.media_type, head.metadata.data) if head.HasField("metadata") else None
    return {
        "status": Status(head.status),
        "status_detail": head.status_detail,
        "step": head.step if head.HasField("step") else None,
        "metrics": dict(head.metrics),
        "metadata": metadata,
        "wait_id": head.wait_id,
        "question": Question.from_proto(head.question) if head.HasField("question") else None,
        "attributes": read_attributes(head.attributes),
        "labels": {**{name: head.labels[name] for name in kept[: LABELS_MAX - 1]}, LABEL: str(found)},
    }


def _schema_of(migrations: Migrating, checkpoint: Any) -> int:
    """Returns the schema that the daemon stored or inherited for a version, else the `unsaid` one of `migrations`."""
    return checkpoint.schema_version or migrations.unsaid
