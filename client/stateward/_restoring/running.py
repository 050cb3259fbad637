"""The restore itself: it goes through the phases, and can be killed anywhere.

A restore is a generator: it yields the chunks that it needs next, and gets their bytes in the same order. Its driver
reads them from the daemon. If the restore moves the head of a branch, too, it yields `HEAD` when that is to be done:
the journal is there then, so that a restore which is killed before or after it can be finished or taken back.

After a kill, `again` goes on to the end, or back to the start: it takes each path as it is, and refuses a path that is
neither as it was nor as it will be.
"""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from stateward._restoring import journal as journals
from stateward._restoring.journal import Journal, Planned
from stateward._restoring.ordering import order
from stateward._restoring.paths import WORK, shown
from stateward._restoring.planning import Change, facts
from stateward._restoring.root import Root, Seen
from stateward._restoring.stepping import PATHS_SHOWN_MAX, Done, Run, Wanted, refuse
from stateward._workspace.objects import DIRECTORY, SYMLINK, Entry
from stateward.errors import (
    DeadlineExceeded,
    Internal,
    RestoreBlocked,
    RestoreUnfinished,
    StatewardError,
    Unavailable,
    WorkspaceChanged,
)

Work = Generator[Wanted, Sequence[bytes], Done]
HEAD: Wanted = []
"""What a restore yields when its driver is to move the head."""
UNCERTAIN = (Unavailable, DeadlineExceeded, Internal)
"""After these errors, nobody knows whether the head was moved."""


def look(path: bytes, changes: Sequence[Change], modes: Mapping[bytes, int] | None = None) -> tuple[Planned, ...]:
    """Notes what is at each path now. Raises WorkspaceChanged unless that is what the plan saw, and RestoreBlocked if a
    directory cannot be written. Call it before the snapshot that is the undo: then any later change is noticed.

    `modes` are modes that files and directories had before they were deleted, which they get again.
    """
    root = Root(path, conflicts=[change.path for change in changes if change.is_conflict])
    try:
        return _look(root, changes, modes or {})
    finally:
        root.close()


def _look(root: Root, changes: Iterable[Change], modes: Mapping[bytes, int]) -> tuple[Planned, ...]:
    planned, changed, closed = list[Planned](), list[bytes](), set[bytes]()
    for change in changes:
        seen = root.see(change.path)
        if not _fits(seen, change.before):
            changed.append(change.path)
        mark, mode = _known(seen)
        planned.append(Planned(change, mark, modes.get(change.path) if seen is None else mode))
        closed.add(change.path.rpartition(b"/")[0])
        if change.before is not None and change.before.kind == DIRECTORY:
            closed.add(change.path)
    refuse(changed)
    if shut := [path for path in sorted(closed) if not root.can_write(path)]:
        names = ", ".join(map(shown, shut[:PATHS_SHOWN_MAX]))
        what = f"this user may not write into {names}; nothing was written"
        raise RestoreBlocked(what, metadata={"path": shown(shut[0])})
    return tuple(planned)


def restore(path: bytes, journal: Journal) -> Work:
    """Makes the changes of a journal, which is written first. Raises RestoreUnfinished if it stops in the middle."""
    root = Root(path, conflicts=_conflicts(journal))
    try:
        with journals.locked(root, new=True) as directory:
            try:
                _check_again(root, journal)
                journals.write(root, directory, journal)
            except BaseException:
                with suppress(OSError):
                    journals.remove(root, directory)
                raise
            try:
                yield from _head(root, journal)
            except RestoreUnfinished:
                raise
            except StatewardError:  # it was not moved, and nothing was written
                journals.remove(root, directory)
                raise
            run = Run(root, {each.change.path: each for each in journal.planned}, is_again=False)
            return (yield from _run(root, directory, run, [each.change for each in journal.planned], iter(())))
    finally:
        root.close()


def again(path: bytes, *, back: bool, keep_changed: bool = False) -> Work:
    """Goes on with a restore that was killed, to its end, or `back` to the start.

    Raises WorkspaceChanged, before anything is written, if a path is neither as it was nor as it will be; with
    `keep_changed` it stays as it is. Raises RestoreUnfinished with the reason if there is nothing to go on with.
    """
    root = Root(path)
    try:
        if not journals.is_there(root):
            raise journals.unfinished(root, "no restore was begun there that is not over")
        with journals.locked(root, new=False) as directory:
            journal = journals.read(directory)
            root.conflicts = frozenset(_conflicts(journal))
            run = Run(root, {each.change.path: each for each in journal.planned}, is_again=True)
            run.keep_changed = keep_changed
            run.check_all()
            if not back:
                yield from _head(root, journal)
            changes = [each.change.reversed() if back else each.change for each in journal.planned]
            return (yield from _run(root, directory, run, changes, _head(root, journal) if back else iter(())))
    finally:
        root.close()


def make_empty(path: bytes) -> None:
    """Makes a directory if it is missing. Raises RestoreBlocked if there is something in it."""
    with suppress(FileExistsError):
        Path(os.fsdecode(path)).mkdir()
    root = Root(path)
    try:
        with root.directory(b"") as directory:
            if found := [name for name in os.listdir(directory) if name != os.fsdecode(WORK)]:  # noqa: PTH208
                what = f"{shown(path)} is not empty: it has {found[0]!a}; nothing was written"
                raise RestoreBlocked(what, metadata={"path": shown(os.fsencode(found[0]))})
    finally:
        root.close()


def begun(path: bytes) -> dict[str, Any] | None:
    """Returns the facts of a restore of the directory that is not over; None = there is none."""
    root = Root(path)
    try:
        if not journals.is_there(root):
            return None
        with root.directory(WORK) as directory:
            return journals.read(directory).facts
    finally:
        root.close()


def require_none(path: bytes) -> None:
    """Raises RestoreUnfinished if a restore of the directory is not over."""
    root = Root(path)
    try:
        if journals.is_there(root):
            raise journals.unfinished(root, "a restore there was not finished: resume it, or take it back")
    finally:
        root.close()


def _head(root: Root, journal: Journal) -> Iterator[Wanted]:
    """Has the head moved, if the restore moves it."""
    if not journal.facts.get("previous_head"):
        return
    try:
        yield HEAD
    except UNCERTAIN as error:
        why = f"whether the head was moved is not known: resume the restore, or take it back ({error.message})"
        raise journals.unfinished(root, why) from error


def _run(root: Root, directory: int, run: Run, changes: Sequence[Change], last: Iterator[Wanted]) -> Work:
    phases = order(changes)
    try:
        for steps in (phases.adding, phases.deleting, phases.following):
            yield from run.phase(steps)
        yield from last
        journals.remove(root, directory)
    except (WorkspaceChanged, RestoreUnfinished):
        raise
    except (OSError, StatewardError) as error:
        why = f"{shown(run.at)}: {error}" if isinstance(error, OSError) else error.message
        raise journals.unfinished(root, f"the restore stopped, and can be resumed or taken back ({why})") from error
    return run.done


def _check_again(root: Root, journal: Journal) -> None:
    marks = [(each.change.path, each.mark, root.see(each.change.path)) for each in journal.planned]
    refuse([path for path, mark, seen in marks if (None if seen is None else seen.mark()) != mark])


def _conflicts(journal: Journal) -> list[bytes]:
    return [each.change.path for each in journal.planned if each.change.is_conflict]


def _known(seen: Seen | None) -> tuple[tuple[int, ...] | None, int | None]:
    return (None, None) if seen is None else (seen.mark(), seen.mode if seen.kind != SYMLINK else None)


def _fits(seen: Seen | None, entry: Entry | None) -> bool:
    if seen is None or entry is None:
        return seen is None and entry is None
    return seen.facts() == facts(entry)
