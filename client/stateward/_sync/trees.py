# Generated from stateward/_async/trees.py by client/generate.py. Do not edit.
"""`thread.trees`: the files that versions of a thread name."""

from __future__ import annotations

import os
from typing import IO, Any, Literal

from stateward._frames import ends_at_the_caller
from stateward._io.blocking.session import Session
from stateward._operations import restoring, snapshots, tars, trees
from stateward._operations.steps import ThreadRef
from stateward.models import At, Tree, WorkspaceUsage
from stateward.restores import PathChange, PathFacts, Restored
from stateward.workspaces import Rules, Snapshot


@ends_at_the_caller
class Trees:
    """The trees of files that versions of a thread name. A version names one if its save did.

    Everywhere `version` is a number, a Checkpoint, the name of a tag, or a CheckpointId, which is looked up in this
    branch; None = the head. Paths begin at the root of the tree, and their names may be any bytes. Raises InvalidField
    if the version names no tree.
    """

    def __init__(self, session: Session, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r})"

    def list(
        self, version: At | None = None, path: str | bytes | os.PathLike[Any] = b"", depth: int = 0
    ) -> dict[bytes, PathFacts]:
        """Returns what a tree, or a directory of it, has: directories come before what is in them. `depth` is how many
        levels are listed; 0 = all."""
        listed = trees.list_tree(self._ref, version, path=trees.raw_path(path), depth=depth)
        return restoring.public_entries((self._session.run(listed)).entries)

    def read(self, path: str | bytes | os.PathLike[Any], version: At | None = None) -> bytes:
        """Returns the content of a file. Raises InvalidField if the version has no such file."""
        return self._session.run(trees.read_file(self._ref, trees.raw_path(path), version))

    def diff(self, base: At | None, target: At | None = None) -> tuple[PathChange, ...]:
        """Returns what differs between the files of two versions, in the order of the paths. `base` None = no files."""
        return restoring.public_changes(*(self._session.run(trees.differences(self._ref, base, target))))

    def fork_into(
        self, path: str | bytes | os.PathLike[Any], version: At | None = None, *, git: Literal["whole"] | None = None
    ) -> Restored:
        """Writes the files of a version into a directory, which is made if it is missing, and must be empty.

        Each file is brought to the disk. `.git`, and what is in it, is written only with `git="whole"`, and if the
        version has it: hooks and settings that are in it are those of whoever saved it. Raises RestoreBlocked if the
        directory has something in it, and RestoreUnfinished if the disk is full or the daemon goes away.
        """
        done = self._session.run(restoring.fork_into(self._ref, trees.raw_path(path), self._ref, version, git))
        return restoring.public_done(done)

    def export_tar(self, file: IO[bytes], version: At | None = None) -> Tree:
        """Writes the files of a version as a tar into an open file, in a stream. Modes are 0644, or 0755 of what may be
        executed; times are exact. Returns which tree it was."""
        return self._session.run(tars.export_tar(self._ref, file, version))

    def import_tar(self, file: IO[bytes], rules: Rules | None = None) -> Snapshot:
        """Reads a tar, also a compressed one, from an open file, in a stream, and sends only what the thread does not
        have: `thread.save(state, workspace=snapshot)` keeps it. Nothing is written to the disk.

        `rules` None = everything is taken that a tree can have. Devices and FIFOs are in `left_out`, hard links become
        files, and owners, times of directories and modes other than execution go. Raises WorkspaceRefused for a tar
        that is damaged or cut off, for absolute names and `..`, and for more than the rules allow.
        """
        return self._session.run(tars.import_tar(self._ref, file, rules))

    def usage(self) -> WorkspaceUsage:
        """Returns what the files of all versions take in the daemon. Raises ThreadNotFound."""
        return self._session.run(snapshots.usage(self._ref))
