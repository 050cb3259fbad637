"""`thread.workspace`: the files that an agent works on."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

from stateward._async.restores import AsyncRestores
from stateward._frames import ends_at_the_caller
from stateward._io.aio.session import AsyncSession
from stateward._operations import restoring, snapshots
from stateward._operations.steps import ThreadRef
from stateward._workspace.root import find_root
from stateward.arguments import instance
from stateward.workspaces import Rules, Snapshot


@ends_at_the_caller
class AsyncWorkspace(AsyncRestores):
    """A directory whose files are saved with the versions of a thread, and come back from them."""

    def __init__(
        self, session: AsyncSession, ref: ThreadRef, root: str | os.PathLike[str], rules: Rules | None
    ) -> None:
        chosen = Rules() if rules is None else instance(rules, "rules", Rules, "Rules")
        found = find_root(root, session.settings.data_places(), force=chosen.force)
        source = snapshots.Source(found, chosen)
        super().__init__(session, ref, found, partial(restoring.take, ref, source))
        self._source = source

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.root!r}, thread={self._ref.thread!r})"

    @property
    def root(self) -> str:
        """The real path of the directory."""
        return os.fsdecode(self._source.root)

    async def snapshot(self, *, freeze: Callable[[], AbstractContextManager[Any]] | None = None) -> Snapshot:
        """Takes a snapshot of all files below the directory: `thread.save(state, workspace=snapshot)` keeps it.

        Reads only what changed since the last snapshot, and sends only what the thread does not have. The snapshot has
        names, contents, symlinks, the time of each file, and whether its owner may execute it. `left_out` says what it
        does not have.

        Nothing stops the agent meanwhile. A file that changes while it is read is read up to three times, and is then
        in `torn`. `freeze` returns a context manager that surrounds the reading: it may stop the agent's processes.

        Raises WorkspaceRefused if there is more than the rules allow, and RestoreUnfinished if a restore of the
        directory is not over.
        """
        return await self._session.run(snapshots.snapshot(self._ref, self._source, freeze))
