"""`thread.branches` and `thread.tags`: the names of versions."""

from __future__ import annotations

import builtins

from stateward._frames import ends_at_the_caller
from stateward._io.aio.session import AsyncSession
from stateward._operations import threads
from stateward._operations.steps import ThreadRef
from stateward.models import At, Branch, Checkpoint, MovedHead, Tag


@ends_at_the_caller
class AsyncBranches:
    """The branches of a thread. `thread.branch(name)` is a handle on one of them, and its first save creates it."""

    def __init__(self, session: AsyncSession, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r})"

    async def list(self) -> builtins.list[Branch]:
        """Returns the branches with their heads; main is one of them. Raises ThreadNotFound if there is no thread."""
        return list((await self._session.run(threads.get_thread(self._ref))).branches)

    async def move(self, name: str, at: At, *, expected_version: Checkpoint | int | None = None) -> MovedHead:
        """Moves the head of a branch to another version of the branch, usually an earlier one.

        The next save is made from version `at`. The versions after it stay readable by number until they are pruned,
        and their numbers are never used again. `expected_version` is the version that must be the head now; without it
        the head is moved whatever it is. On main, status and question of the thread become those of this version.
        Signals that later versions acknowledged do not come back. Raises VersionMismatch, or InvalidField if it is on
        another branch.
        """
        return await self._session.run(threads.move_head(self._ref, name, at, expected_version))

    async def delete(self, name: str, *, expected_version: Checkpoint | int | None = None) -> int:
        """Deletes a branch other than main, and returns the version that was its head.

        Its versions stay readable by number until they are pruned. `expected_version` is the version that must be the
        branch's head now. Raises VersionMismatch, or VersionNotFound if there is no such branch.
        """
        return await self._session.run(threads.delete_branch(self._ref, name, expected_version))


@ends_at_the_caller
class AsyncTags:
    """The tags of a thread. A tag names one version of any branch, and keeps it from being pruned."""

    def __init__(self, session: AsyncSession, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r})"

    async def list(self) -> builtins.list[Tag]:
        """Returns the tags with their versions. Raises ThreadNotFound if there is no thread."""
        return list((await self._session.run(threads.get_thread(self._ref))).tags)

    async def set(self, name: str, at: At | None = None, *, expected: Checkpoint | int | None = None) -> Tag:
        """Creates a tag, or moves it, to version `at` (None = the head).

        `expected` is the version that the tag must name now; 0 = the tag must not exist.
        """
        return await self._session.run(threads.set_tag(self._ref, name, at, expected))

    async def delete(self, name: str, *, expected: Checkpoint | int | None = None) -> Tag:
        """Removes a tag and returns it. `expected` is the version that the tag must name now."""
        return await self._session.run(threads.delete_tag(self._ref, name, expected))
