"""Operations that bring the files of a directory to those of a tree, and back."""

from __future__ import annotations

import os
from collections.abc import Callable, Container, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from stateward._operations import reading, saving, snapshots, threads, trees
from stateward._operations.steps import Call, Operation, ThreadRef, Work, thread_error
from stateward._restoring import running
from stateward._restoring.journal import Journal
from stateward._restoring.journal import Planned as Noted
from stateward._restoring.paths import Listing, ancestors, in_order, shown
from stateward._restoring.planning import Change, Comparison, are_equal, compare
from stateward._restoring.stepping import PATHS_SHOWN_MAX, Done, refuse
from stateward._workspace.git import attributes_of, head_of
from stateward._workspace.objects import DIRECTORY, FILE, SYMLINK, Entry
from stateward.arguments import text
from stateward.errors import RestoreBlocked, RestoreUnfinished, StatewardError, VersionMismatch, VersionNotFound
from stateward.models import At
from stateward.restores import Kind, PathChange, PathFacts, Restored
from stateward.v1 import workspace_pb2
from stateward.workspaces import GitHead

UNDO_BRANCH = "workspace-undo"
"""The branch whose versions name the files that were there before each restore."""
ROOT = "workspace-root"
"""The attribute of such a version that says in which directory the files were."""
Mode = Literal["files", "conversation", "both"]
MODES = ("files", "conversation", "both")


@dataclass(frozen=True)
class Taken:
    """A snapshot of the files that are there now. The thread has all of its objects."""

    tree: workspace_pb2.TreeRef
    ignored: tuple[bytes, ...]
    """Paths that the rules leave out, and what could not be read; a directory stands for all below it."""
    torn: tuple[bytes, ...]
    """Files that changed while they were read: no snapshot holds them for sure."""
    git: GitHead | None = None
    """Where git is."""


Take = Callable[[Container[bytes]], Operation[Taken]]
"""Takes a snapshot. The files with these paths are read even if they look unchanged."""


@dataclass(frozen=True)
class Planned:
    """A restore that was planned."""

    path: bytes
    """The directory."""
    tree: workspace_pb2.TreeRef
    """The files that were there."""
    compared: Comparison
    source: ThreadRef
    """Whose version it is."""
    version: int
    modes: Mapping[bytes, int]
    """Modes of files and directories that are made, as they were before a restore deleted them."""
    git: GitHead | None = None
    """Where git was when the version was saved."""
    git_now: GitHead | None = None


@dataclass(frozen=True)
class Applied:
    """A restore that was made."""

    done: Done
    version: int
    """The version of UNDO_BRANCH that names the files which were there before."""
    modes: Mapping[bytes, int]
    previous_head: int
    """The version that was the head of the branch before; 0 = the head was not moved."""
    target: int = 0
    """The version that is the head since; 0 = it was not moved."""


def take(ref: ThreadRef, source: snapshots.Source, doubted: Container[bytes]) -> Operation[Taken]:
    """Takes a snapshot, all of whose objects the thread then has. Reads the files in `doubted` even if they look
    unchanged."""
    made = yield from snapshots.snapshot(ref, source, None, doubted)
    yield from snapshots.send(ref, source, made.objects)
    tree = workspace_pb2.TreeRef(digest=made.tree.digest, files=made.tree.files, size_bytes=made.tree.size_bytes)
    return Taken(tree, tuple(each.path.rstrip(b"/") for each in made.left_out), made.torn, made.git)


def plan(
    ref: ThreadRef, path: bytes, take: Take, source: ThreadRef, at: At | None, modes: Mapping[bytes, int] | None = None
) -> Operation[Planned]:
    """Compares the files that are there with those of a version, of this or of another thread. Writes nothing there."""
    taken = yield from take(())
    if (source.namespace, source.thread) == (ref.namespace, ref.thread):
        wanted = yield from trees.list_tree(source, at, depth=1)
        before, after = yield from trees.differences(
            source, base_tree=taken.tree.digest, target_tree=wanted.tree.digest
        )
    else:
        wanted = yield from trees.list_tree(source, at)
        before, after = (yield from trees.list_tree(ref, tree=taken.tree.digest)).entries, wanted.entries
    compared = compare(before, after, taken.ignored, taken.torn)
    saved = yield from reading.get_checkpoint(source, wanted.version)
    git = head_of(saved.attributes)
    return Planned(path, taken.tree, compared, source, wanted.version, modes or {}, git, taken.git)


def apply(ref: ThreadRef, planned: Planned, take: Take, mode: Mode) -> Operation[Applied]:
    """Makes the changes of a plan, after a snapshot of what is there, which a version of UNDO_BRANCH names."""
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r:.100}; it must be one of {', '.join(MODES)}")
    if mode != "files" and (planned.source.thread, planned.source.branch) != (ref.thread, ref.branch):
        raise ValueError(f"mode {mode!r} moves the head of a branch, so the version must be one of this branch")
    if mode == "conversation":
        moved = yield from threads.move_head(ref, ref.branch, planned.version, None)
        return Applied(Done(), 0, {}, moved.previous_version, moved.version)
    if blocked := planned.compared.blocked:
        names = ", ".join(map(shown, blocked[:PATHS_SHOWN_MAX]))
        what = f"{names} must give way to a file, and holds something that a restore keeps; nothing was written"
        raise RestoreBlocked(what, metadata={"path": shown(blocked[0])})
    changes = planned.compared.changes
    noted: Sequence[Noted] = yield Work(partial(running.look, planned.path, changes, planned.modes))
    version = yield from _keep_undo(ref, planned, take)
    facts: dict[str, Any] = {
        "namespace": ref.namespace, "thread": ref.thread, "branch": ref.branch, "undo_version": version,
        "source": planned.source.thread, "version": planned.version, "previous_head": 0,
    }  # fmt: skip
    if mode == "both":
        facts["previous_head"] = (yield from reading.get_checkpoint(ref, None)).version
    work = running.restore(planned.path, Journal(facts, tuple(noted)))
    done = yield from _drive(work, planned.source, partial(_move, ref, facts))
    modes = {each.change.path: each.mode for each in noted if each.mode is not None and each.mark is not None}
    head = facts["previous_head"]
    return Applied(done, version, modes, head, planned.version if head else 0)


def go_on(ref: ThreadRef, path: bytes, *, back: bool, keep_changed: bool) -> Operation[Done]:
    """Goes on with a restore that was killed, to its end, or `back` to the start."""
    facts: dict[str, Any] | None = yield Work(partial(running.begun, path))
    if facts is None:
        what = f"{shown(path)}: no restore was begun there that is not over"
        raise RestoreUnfinished(what, metadata={"root": shown(path)})
    if (facts.get("namespace"), facts.get("thread")) != (ref.namespace, ref.thread):
        what = f"{shown(path)}: the restore that was begun there is one of thread {facts.get('thread')!r}"
        raise RestoreUnfinished(what, metadata={"root": shown(path)})
    source = ref if back else replace(ref, thread=str(facts["source"]))
    errors = list[StatewardError]()
    move = partial(_move_back, ref, facts, errors) if back else partial(_move_again, ref, facts)
    done = yield from _drive(running.again(path, back=back, keep_changed=keep_changed), source, move)
    if errors:
        raise errors[0]
    return done


def _move(ref: ThreadRef, facts: Mapping[str, Any]) -> Operation[None]:
    yield from threads.move_head(ref, facts["branch"], int(facts["version"]), int(facts["previous_head"]))


def _move_again(ref: ThreadRef, facts: Mapping[str, Any]) -> Operation[None]:
    """Moves the head unless it was moved before: then it is another one."""
    with suppress(VersionMismatch):
        yield from _move(ref, facts)


def _move_back(ref: ThreadRef, facts: Mapping[str, Any], errors: list[StatewardError]) -> Operation[None]:
    """Moves the head back if it was moved. An error that a repetition would meet, too, is noted: such as that somebody
    has saved since. The files are back, and the restore is over."""
    previous = int(facts["previous_head"])
    try:
        yield from threads.move_head(ref, facts["branch"], previous, int(facts["version"]))
    except StatewardError as error:
        if isinstance(error, running.UNCERTAIN):
            raise
        if not isinstance(error, VersionMismatch) or error.current_version != previous:
            errors.append(error)


def fork_into(
    ref: ThreadRef, path: bytes, source: ThreadRef, at: At | None, git: Literal["whole"] | None = None
) -> Operation[Done]:
    """Writes the files of a version into an empty directory; those of `.git` only if `git` says so."""
    if git not in (None, "whole"):
        raise ValueError(f'git is {git!r:.100}; it must be "whole", or None')
    wanted = yield from trees.list_tree(source, at)
    changes = compare({}, wanted.entries, has_git=git == "whole").changes
    path = yield Work(partial(os.path.realpath, path))
    facts: dict[str, Any] = {
        "namespace": ref.namespace, "thread": ref.thread, "branch": ref.branch, "undo_version": 0,
        "source": source.thread, "version": wanted.version, "previous_head": 0, "has_git": git == "whole",
    }  # fmt: skip
    noted = yield Work(partial(_look_at_nothing, path, changes))
    return (yield from _drive(running.restore(path, Journal(facts, noted)), source))


def _look_at_nothing(path: bytes, changes: Sequence[Change]) -> tuple[Noted, ...]:
    running.make_empty(path)
    return running.look(path, changes)


def _keep_undo(ref: ThreadRef, planned: Planned, take: Take) -> Operation[int]:
    """Takes the snapshot of now. Raises WorkspaceChanged if what the plan changes is not what it saw. Returns the
    version that names it.

    All that the plan changes is read: a file that is written through a mapping may look unchanged until the system
    brings it to the disk.
    """
    taken = yield from take({change.path for change in planned.compared.changes if change.before is not None})
    if taken.tree.digest != planned.tree.digest:
        before, after = yield from trees.differences(
            ref, base_tree=planned.tree.digest, target_tree=taken.tree.digest
        )
        touched = {change.path for change in planned.compared.changes}
        changed = (before.keys() | after.keys()) & touched
        refuse(sorted((each for each in changed if not are_equal(before.get(each), after.get(each))), key=in_order))
    kept = {*taken.ignored, *taken.torn} - {*planned.compared.ignored, *planned.compared.unheld}
    refuse([each.path for each in planned.compared.changes if kept and not kept.isdisjoint(_way(each.path))])
    there = replace(ref, branch=UNDO_BRANCH, at=None, at_digest=b"")
    request = saving.bare_request(there, {"attributes": {**attributes_of(taken.git), ROOT: shown(planned.path)}})
    request.options.expected_uid = request.options.expected_uid or ref.held.read_uid
    request.workspace.CopyFrom(taken.tree)
    request.diff.SetInParent()
    return int((yield Call("Save", request)).version)


def _way(path: bytes) -> list[bytes]:
    return [path, *ancestors(path)]


def _drive(work: running.Work, source: ThreadRef, move: Callable[[], Operation[None]] | None = None) -> Operation[Done]:
    """Carries out a restore, with the chunks of a thread. `move` moves the head, if the restore does so."""
    try:
        step: Callable[[], Any] = partial(next, work)
        while True:
            wanted = yield Work(partial(_advance, step))
            if isinstance(wanted, Done):
                return wanted
            try:
                if wanted is running.HEAD and move is not None:
                    yield from move()
                    step = partial(next, work)
                else:
                    step = partial(work.send, (yield from trees.fetch(source, wanted)))
            except StatewardError as error:
                step = partial(work.throw, error)
    finally:
        with suppress(ValueError):  # it runs on another thread, and its waiter was cancelled
            work.close()


def _advance(step: Callable[[], Any]) -> Any:
    try:
        return step()
    except StopIteration as stop:  # must not leave a thread as an exception
        return stop.value


def go_back(ref: ThreadRef, path: bytes, take: Take, applied: Applied) -> Operation[Applied]:
    """Brings back what was there before a restore: the files, and the head if it was moved."""
    again = Applied(Done(), 0, {}, 0)
    if applied.version:
        source = other(ref, UNDO_BRANCH, None)
        planned = yield from plan(ref, path, take, source, applied.version, applied.modes)
        again = yield from apply(ref, planned, take, "files")
    if applied.previous_head:
        moved = yield from threads.move_head(ref, ref.branch, applied.previous_head, applied.target or None)
        again = replace(again, previous_head=moved.previous_version, target=moved.version)
    return again


def plan_undo(ref: ThreadRef, path: bytes, take: Take) -> Operation[Planned]:
    """Compares the files that are there with those before the last restore of the directory."""
    request = reading.list_checkpoints(ref.namespace, ref.thread, branch=UNDO_BRANCH)
    while True:
        for each in (yield from reading.read_checkpoints(request)):
            if each.attributes.get(ROOT) == shown(path):
                return (yield from plan(ref, path, take, other(ref, UNDO_BRANCH, None), each.version))
        if not request.page_token:
            what = f"thread {ref.thread!r} knows no restore of {shown(path)} that could be undone"
            raise thread_error(VersionNotFound, ref.thread, what)


def other(ref: ThreadRef, branch: str | None, thread: str | None) -> ThreadRef:
    """Returns the reference to another branch, or to another thread. It holds none of the leases of the handle."""
    if thread is None or thread == ref.thread:
        return ref if branch is None else replace(ref, branch=text(branch, "branch"), at=None, at_digest=b"")
    return ThreadRef(ref.namespace, text(thread, "thread"), text(branch or "main", "branch"))


_KINDS: Mapping[int, Kind] = {FILE: "file", DIRECTORY: "directory", SYMLINK: "symlink"}


def public_change(change: Change) -> PathChange:
    """Returns a change as callers see it."""
    return PathChange(change.path, _facts(change.before), _facts(change.after))


def public_entries(entries: Listing) -> dict[bytes, PathFacts]:
    """Returns a listing as callers see it."""
    return {path: _known(entry) for path, entry in entries.items()}


def public_changes(before: Listing, after: Listing) -> tuple[PathChange, ...]:
    """Returns the differences of two listings as callers see them."""
    paths = sorted({*before, *after}, key=in_order)
    return tuple(PathChange(path, _facts(before.get(path)), _facts(after.get(path))) for path in paths)


def public_done(done: Done) -> Restored:
    """Returns what a restore did as callers see it."""
    return Restored(done.made, done.replaced, done.deleted, tuple(done.kept))


def _facts(entry: Entry | None) -> PathFacts | None:
    return None if entry is None else _known(entry)


def _known(entry: Entry) -> PathFacts:
    size_bytes = entry.size_bytes if entry.kind == FILE else 0
    return PathFacts(_KINDS[entry.kind], size_bytes, entry.executable, entry.mtime_ns, entry.target)
