"""`thread.checkpoints`: the versions of a thread, without their states or with them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from functools import partial
from typing import Unpack

from stateward._frames import ends_at_the_caller
from stateward._io.aio.session import AsyncSession
from stateward._operations import proving, reading, unfolding
from stateward._operations.reading import CheckpointFilters
from stateward._operations.steps import ThreadRef, projection
from stateward.models import At, Checkpoint, Proof
from stateward.state import State


@ends_at_the_caller
class AsyncCheckpoints:
    """The versions of a thread. `thread.hydrate(at)` reads the state of one, and `thread.history()` a line of them."""

    def __init__(self, session: AsyncSession, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r})"

    async def get(self, at: At | None = None) -> Checkpoint:
        """Returns a version without its state: the head of the branch, or another one, as in `hydrate`."""
        return await self._session.run(reading.get_checkpoint(self._ref, at))

    async def prove(self, since: Checkpoint | tuple[int, bytes] | None = None) -> Proof:
        """Returns the digests of all journal entries behind a version, or of all entries.

        The daemon computes each digest again from what it has stored, and this client compares that each entry
        continues the one before it. So whoever kept a version with its digest, as a Checkpoint or as (number, digest),
        knows that nothing before it was changed, and that nothing behind it begins anew. Raises VersionMismatch if the
        version has another digest, VersionNotFound if there is no such version, and Corrupt if the entries do not
        continue each other.
        """
        return await self._session.run(proving.prove(self._ref, since))

    def list(
        self, *, branch: str = "", before: At | None = None, **filters: Unpack[CheckpointFilters]
    ) -> AsyncIterator[Checkpoint]:
        """Lists versions of the thread, newest first, page by page.

        Lists all branches unless `branch` names one, and only versions below `before` if it is given.
        """
        request = reading.list_checkpoints(
            self._ref.namespace, self._ref.thread, branch=branch, before=before, **filters
        )
        return self._session.read_list(reading.read_checkpoints, request)

    def states(
        self,
        *,
        branch: str = "",
        before: At | None = None,
        slots: Iterable[str] | None = None,
        logs: Mapping[str, int | None] | Iterable[str] | None = None,
        effects: bool = False,
        **filters: Unpack[CheckpointFilters],
    ) -> AsyncIterator[State]:
        """Lists versions as `list` does, each with its state: what `hydrate` of each version returns.

        The daemon sends a page of states in one call, and of each state only what differs from the one before, so this
        takes far fewer calls and bytes than a `hydrate` for each. `slots`, `logs` and `effects` are those of `hydrate`.
        """
        request = reading.list_checkpoints(
            self._ref.namespace,
            self._ref.thread,
            branch=branch,
            before=before,
            projection=projection(slots, logs),
            include_states=True,
            include_effects=effects,
            **filters,
        )
        return self._session.read_list(partial(unfolding.read_states, self._ref), request)
