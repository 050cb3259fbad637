"""The steps of a restore, file by file.

A file is written under a temporary name in its directory, brought to the disk with others, and renamed. The phases of
`ordering` are on the disk one after the other.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field

from stateward._restoring.journal import Planned
from stateward._restoring.ordering import Action, Step
from stateward._restoring.paths import WORK, ancestors, shown
from stateward._restoring.planning import Change, same_content
from stateward._restoring.root import Root, Seen, finish
from stateward._workspace.objects import DIRECTORY, SYMLINK, Chunk, Entry, WrongObject, check_chunk
from stateward.errors import Corrupt, WorkspaceChanged

BATCH_BYTES = 8 << 20
BATCH_FILES = 128
BATCH_CHUNKS = 8192
SYNCS_AT_ONCE = 16
PATHS_SHOWN_MAX = 5

Wanted = Sequence[Chunk]
Fetching = Generator[Wanted, Sequence[bytes], None]


@dataclass(slots=True)
class Done:
    """What a restore did."""

    made: int = 0
    replaced: int = 0
    deleted: int = 0
    kept: list[bytes] = field(default_factory=list)
    """Paths that stay as they are, because somebody changed them in the meantime, or put something into them."""


def refuse(changed: Sequence[bytes], note: str = "nothing was written; plan again") -> None:
    """Raises WorkspaceChanged if there are such paths."""
    if changed:
        names = ", ".join(repr(shown(path)) for path in changed[:PATHS_SHOWN_MAX])
        more = f" and {len(changed) - PATHS_SHOWN_MAX:,} more" if len(changed) > PATHS_SHOWN_MAX else ""
        raise WorkspaceChanged(
            f"{names}{more} changed since the plan was made; {note}", metadata={"path": shown(changed[0])}
        )


class Run:
    """One pass over the steps."""

    def __init__(self, root: Root, planned: Mapping[bytes, Planned], *, is_again: bool) -> None:
        self.done = Done()
        self.at = b""
        """The path of the current step."""
        self.keep_changed = False
        self._root = root
        self._planned = planned
        self._is_again = is_again
        self._numbers = {path: number for number, path in enumerate(planned)}
        self._skipped = set[bytes]()
        self._touched = set[bytes]()

    def check_all(self) -> None:
        """Refuses or skips the paths that are neither as they were nor as they will be, and removes what a kill
        left."""
        for path in self._planned:
            with suppress(WorkspaceChanged):
                self._root.remove(self._temporary(path))
        changed = [path for path, each in self._planned.items() if not self._is_known(each)]
        if not self.keep_changed:
            refuse(changed, "nothing was written; move it away, or keep what changed")
        self._skipped.update(changed)
        self.done.kept += changed

    def _is_known(self, planned: Planned) -> bool:
        change = planned.change
        try:
            seen = self._root.see(change.path)
            if seen is None:
                return change.before is None or change.after is None or self._is_freed(change.path)
            if planned.mark is not None and seen.mark() == planned.mark:
                return True
            return any(self._root.is_entry(change.path, each) for each in (change.before, change.after))
        except WorkspaceChanged:
            return False

    def _is_freed(self, path: bytes) -> bool:
        """Whether nothing is at the path for a while, between two phases."""
        return path in self._root.conflicts or any(above in self._root.conflicts for above in ancestors(path))

    def phase(self, steps: Sequence[Step]) -> Fetching:
        """Carries out steps; afterwards they are on the disk."""
        batch, size_bytes = list[Change](), 0
        for step in steps:
            change = step.change
            self.at = change.path
            if change.path in self._skipped or any(above in self._skipped for above in ancestors(change.path)):
                continue
            if step.action is Action.PUT:
                batch.append(change)
                size_bytes += _goal(change).size_bytes
                if size_bytes >= BATCH_BYTES or len(batch) >= BATCH_FILES:
                    yield from self._put_all(batch)
                    batch, size_bytes = [], 0
            elif step.action is Action.MKDIR:
                self._make_directory(change)
            else:
                self._delete(change, is_directory=step.action is Action.RMDIR)
        yield from self._put_all(batch)
        self._root.sync(self._touched)
        self._touched.clear()

    def _make_directory(self, change: Change) -> None:
        seen = self._root.see(change.path)
        if seen is None:
            self._root.make_directory(change.path, self._mode(change))
            self._count(change)
        elif seen.kind != DIRECTORY:
            self._refuse(change.path)

    def _delete(self, change: Change, *, is_directory: bool) -> None:
        path, seen = change.path, self._root.see(change.path)
        if seen is None or (self._is_again and self._root.is_entry(path, change.after)):
            return
        if not self._is_as_before(change, seen):
            self._refuse(path)
        elif self._root.remove_directory(path) if is_directory else self._root.remove(path, seen.mark()):
            self._count(change)
        elif is_directory and change.after is None:
            self.done.kept.append(path)  # somebody put something into it
        else:
            self._refuse(path)

    def _put_all(self, batch: Sequence[Change]) -> Fetching:
        """Writes files under temporary names, brings all of them to the disk, and then puts them in their places."""
        ready = [(change, mark) for change in batch for mark in self._places(change)]
        files = list[tuple[Change, int]]()
        try:
            for change, _ in ready:
                if (file := self._begin(change)) is not None:
                    files.append((change, file))
            yield from self._fill([each for each in files if not self._is_local(each[0])])
            for change, file in files:
                self.at = change.path
                if self._is_local(change):
                    self._copy(change, file)
                finish(file, _goal(change), self._mode(change))
            _sync([file for _, file in files])
        finally:
            for _, file in files:
                os.close(file)
        for change, mark in ready:
            self.at = change.path
            if self._root.move(self._temporary(change.path), change.path, mark):
                self._count(change)
            else:
                self._root.remove(self._temporary(change.path))
                self._refuse(change.path)

    def _places(self, change: Change) -> Iterator[tuple[int, ...] | None]:
        """Yields the mark of what a file takes the place of, once; nothing if the file is there already, or must not
        be written."""
        path, seen = change.path, self._root.see(change.path)
        if self._is_again and self._root.is_entry(path, change.after):
            return
        if seen is None and (self._is_again or self._planned[path].mark is None or self._is_freed(path)):
            yield None
        elif seen is not None and seen.kind != DIRECTORY and self._is_as_before(change, seen):
            yield seen.mark()
        else:
            self._refuse(path)

    def _is_as_before(self, change: Change, seen: Seen) -> bool:
        if seen.mark() == self._planned[change.path].mark:
            return True
        return self._is_again and self._root.is_entry(change.path, change.before)

    def _begin(self, change: Change) -> int | None:
        """Makes the temporary file, and opens it; a symlink is whole at once."""
        goal, temporary = _goal(change), self._temporary(change.path)
        self.at = change.path
        self._root.remove(temporary)
        if goal.kind == SYMLINK:
            self._root.link(temporary, goal)
            return None
        return self._root.create(temporary, executable=goal.executable, private=self._mode(change) is not None)

    def _fill(self, files: Sequence[tuple[Change, int]]) -> Fetching:
        wanted = [(change, file, chunk) for change, file in files for chunk in _goal(change).chunks]
        at = 0
        while at < len(wanted):
            end, size_bytes = at, 0
            while end < min(len(wanted), at + BATCH_CHUNKS) and size_bytes < BATCH_BYTES:
                size_bytes += wanted[end][2].size_bytes
                end += 1
            found = yield [chunk for _, _, chunk in wanted[at:end]]
            for (change, file, chunk), data in zip(wanted[at:end], found, strict=True):
                self.at = change.path
                try:
                    check_chunk(data, chunk)
                except WrongObject as error:
                    raise Corrupt(f"a chunk of {shown(self.at)!r} {error}") from None
                _write(file, data)
            at = end

    def _copy(self, change: Change, file: int) -> None:
        """Writes the content that the file has already: only its mode or its time is another one."""
        for data in self._root.contents(change.path, _goal(change)):
            _write(file, data)

    def _is_local(self, change: Change) -> bool:
        before, after = change.before, change.after
        return before is not None and after is not None and before.kind == after.kind and same_content(before, after)

    def _mode(self, change: Change) -> int | None:
        """The mode of the file that was there before the restore; None = the system gives it one."""
        planned = self._planned[change.path]
        noted = planned.change.before or planned.change.after
        return planned.mode if noted is not None and noted.kind == _goal(change).kind else None

    def _temporary(self, path: bytes) -> bytes:
        above, slash, _ = path.rpartition(b"/")
        return above + slash + WORK + b"-%d" % self._numbers[path]

    def _count(self, change: Change) -> None:
        self._touched.add(change.path.rpartition(b"/")[0])
        if change.after is None:
            self.done.deleted += 1
        elif change.before is None:
            self.done.made += 1
        else:
            self.done.replaced += 1

    def _refuse(self, path: bytes) -> None:
        if not self.keep_changed:
            refuse([path], "the restore stopped there: take it back, or resume it")
        self._skipped.add(path)
        self.done.kept.append(path)


def _goal(change: Change) -> Entry:
    assert change.after is not None, "such a step has a goal"
    return change.after


def _sync(files: Sequence[int]) -> None:
    """Brings files to the disk, many at a time: the file system then writes its own journal once for several."""
    if len(files) < SYNCS_AT_ONCE:
        for file in files:
            os.fsync(file)
        return
    with ThreadPoolExecutor(SYNCS_AT_ONCE) as pool:
        for _ in pool.map(os.fsync, files):
            pass


def _write(file: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(file, view) :]
