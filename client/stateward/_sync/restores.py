# Generated from stateward/_async/restores.py by client/generate.py. Do not edit.
"""The part of `thread.workspace` that goes back: plans, restores, and what versions have of files."""

from __future__ import annotations

from stateward._frames import ends_at_the_caller
from stateward._io.blocking.session import Session
from stateward._operations import restoring
from stateward._operations.restoring import Mode, Planned, Take
from stateward._operations.steps import ThreadRef
from stateward._sync.trees import Trees
from stateward.models import At
from stateward.restores import PathChange, Restored
from stateward.workspaces import GitHead


@ends_at_the_caller
class RestoreUndo:
    """A restore that was made, and the way back: `apply` brings the files, and the head if it was moved, back."""

    def __init__(self, plans: Restores, applied: restoring.Applied) -> None:
        self._plans = plans
        self._applied = applied

    def __repr__(self) -> str:
        return f"{type(self).__name__}(version={self.version}, {self.done})"

    @property
    def version(self) -> int:
        """The version that names the files which were there before, on the branch `workspace-undo`; 0 = files were not
        touched."""
        return self._applied.version

    @property
    def done(self) -> Restored:
        """What the restore did."""
        return restoring.public_done(self._applied.done)

    def apply(self) -> RestoreUndo:
        """Goes back. Files that were changed since stay in another undo, which is returned.

        Raises WorkspaceChanged as `plan.apply` does, and VersionMismatch if the head was moved by the restore and is
        another one now.
        """
        return self._plans._go_back(self._applied)


@ends_at_the_caller
class RestorePlan:
    """What a restore would change, and what it keeps. Nothing is written before `apply`."""

    def __init__(self, plans: Restores, planned: Planned) -> None:
        self._plans = plans
        self._planned = planned

    def __repr__(self) -> str:
        return f"{type(self).__name__}(version={self.version}, {len(self.changes):,} changes)"

    @property
    def version(self) -> int:
        """The version whose files are restored."""
        return self._planned.version

    @property
    def changes(self) -> tuple[PathChange, ...]:
        """What is made, replaced and deleted, in the order of the paths."""
        return tuple(map(restoring.public_change, self._planned.compared.changes))

    @property
    def ignored(self) -> tuple[bytes, ...]:
        """Kept: rules leave these paths out, or they could not be read. A directory stands for all below it."""
        return self._planned.compared.ignored

    @property
    def unheld(self) -> tuple[bytes, ...]:
        """Kept: no snapshot holds these files, because they changed while they were read."""
        return self._planned.compared.unheld

    @property
    def omitted(self) -> tuple[bytes, ...]:
        """Paths of the version that are not written: something that is kept is there, or they are a `.git`, which
        stands for all below it."""
        return self._planned.compared.omitted

    @property
    def blocked(self) -> tuple[bytes, ...]:
        """Directories that would have to give way to a file, and hold something that is kept. `apply` refuses then."""
        return self._planned.compared.blocked

    @property
    def git(self) -> GitHead | None:
        """Where git was when the files of the version were read; None = there was no repository, or nobody noted it."""
        return self._planned.git

    @property
    def git_now(self) -> GitHead | None:
        """Where git is now. A restore leaves it there."""
        return self._planned.git_now

    def apply(self, mode: Mode = "files") -> RestoreUndo:
        """Takes a snapshot of what is there, and then makes the changes, file by file.

        `mode` "both" also moves the head of the branch to the version, and "conversation" does only that. Every file
        is written under another name, brought to the disk, and renamed; deletions come last. Raises WorkspaceChanged
        if a file is not as the plan saw it, and RestoreBlocked, both before anything is written. If it is killed, or
        raises RestoreUnfinished, `workspace.resume` and `workspace.take_back` go on.
        """
        return self._plans._apply(self._planned, mode)


@ends_at_the_caller
class Restores(Trees):
    """What `thread.workspace` does besides snapshots."""

    def __init__(self, session: Session, ref: ThreadRef, root: bytes, take: Take) -> None:
        super().__init__(session, ref)
        self._root = root
        self._take = take

    def plan(self, version: At | None = None, *, branch: str | None = None, thread: str | None = None) -> RestorePlan:
        """Compares the files that are there with those of a version, and returns what a restore would change.

        `version` is a number, a Checkpoint, the name of a tag, or a CheckpointId; None = the head. `branch` and
        `thread` name another branch, and another thread of the namespace.
        """
        source = restoring.other(self._ref, branch, thread)
        planned = self._session.run(restoring.plan(self._ref, self._root, self._take, source, version))
        return RestorePlan(self, planned)

    def plan_undo(self) -> RestorePlan:
        """Compares the files that are there with those before the last restore of this directory, by whatever process.

        An undo is a restore, too, so the undo of an undo brings back what the first restore brought. Raises
        VersionNotFound if the thread knows of none, and RestoreUnfinished if the last one is not over.
        """
        planned = self._session.run(restoring.plan_undo(self._ref, self._root, self._take))
        return RestorePlan(self, planned)

    def resume(self, *, keep_changed: bool = False) -> Restored:
        """Finishes a restore that was killed, or that stopped.

        Raises WorkspaceChanged, before anything is written, if a file is neither as it was nor as it will be: somebody
        changed it since. With `keep_changed` such files stay as they are. Raises RestoreUnfinished if no restore of
        this thread was begun here.
        """
        done = self._session.run(restoring.go_on(self._ref, self._root, back=False, keep_changed=keep_changed))
        return restoring.public_done(done)

    def take_back(self, *, keep_changed: bool = False) -> Restored:
        """Brings all back to where it was before a restore that was killed, or that stopped. Raises as `resume`."""
        done = self._session.run(restoring.go_on(self._ref, self._root, back=True, keep_changed=keep_changed))
        return restoring.public_done(done)

    def _apply(self, planned: Planned, mode: Mode) -> RestoreUndo:
        return RestoreUndo(self, self._session.run(restoring.apply(self._ref, planned, self._take, mode)))

    def _go_back(self, applied: restoring.Applied) -> RestoreUndo:
        back = restoring.go_back(self._ref, self._root, self._take, applied)
        return RestoreUndo(self, self._session.run(back))
