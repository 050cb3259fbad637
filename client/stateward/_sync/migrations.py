"""`thread.migrate`: a thread brought to the schema of its migrations."""

from __future__ import annotations

from typing import Any

from stateward import _migrating
from stateward._operations import Operation, ThreadRef
from stateward.models import Checkpoint


class ThreadMigration:
    """The part of a thread's handle that migrates it."""

    _ref: ThreadRef

    def _run(self, operation: Operation[Any]) -> Any: ...

    def migrate(self) -> Checkpoint | None:
        """Saves the head as a new version of the current schema; None if it has that already.

        Status, step, metrics, metadata and labels stay, and so does the old version. The label
        "stateward/migrated-from" is added; on a head with 64 labels it takes the place of the last one in alphabetical
        order. "trimmed:…" is left out. Needs the handle's `migrations`, as hydrate does, which migrates in memory only.

        Where others save all the time it takes the thread's lease for a moment: what is only added waits for that.
        LeaseHeld where somebody else holds it. NoMigrationPath or MigrationFailed leave the thread as it was. It is a
        new version like any other: the TTL of a finished thread begins anew.
        """
        made: Checkpoint | None = self._run(_migrating.migrate_here(self._ref))
        return made
