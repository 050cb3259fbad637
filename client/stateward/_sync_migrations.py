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

        Status, step, metrics and metadata stay, and so does the old version. Needs the handle's `migrations`, as
        hydrate does, which migrates in memory only. NoMigrationPath or MigrationFailed leave the thread as it was.
        """
        made: Checkpoint | None = self._run(_migrating.migrate_here(self._ref))
        return made
