"""The order of a restore: first all that adds, then what deletes, then what needs a place that a deletion made free."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum

from stateward._restoring.paths import ancestors, in_order
from stateward._restoring.planning import Change
from stateward._workspace.objects import DIRECTORY


class Action(Enum):
    """What one step does."""

    MKDIR = "make a directory"
    PUT = "write a file or a symlink, in place of one that is there"
    REMOVE = "delete a file or a symlink"
    RMDIR = "delete an empty directory"


@dataclass(frozen=True, slots=True)
class Step:
    """One step at a path."""

    action: Action
    change: Change


@dataclass(frozen=True, slots=True)
class Phases:
    """All steps. Each phase is on the disk before the next one begins."""

    adding: tuple[Step, ...]
    deleting: tuple[Step, ...]
    """Directories come last, the deepest first."""
    following: tuple[Step, ...]
    """A directory that takes the place of a file, and what is in it; a file that takes the place of a directory."""


def order(changes: Iterable[Change]) -> Phases:
    """Returns the steps of these changes."""
    ordered = sorted(changes, key=lambda change: in_order(change.path))
    conflicts = {change.path for change in ordered if change.is_conflict}
    adding, removing, emptied, following = list[Step](), list[Step](), list[Step](), list[Step]()
    for change in ordered:
        is_late = change.path in conflicts or any(above in conflicts for above in ancestors(change.path))
        if change.before is not None and (change.after is None or change.path in conflicts):
            if change.before.kind == DIRECTORY:
                emptied.append(Step(Action.RMDIR, change))
            else:
                removing.append(Step(Action.REMOVE, change))
        if change.after is not None:
            action = Action.MKDIR if change.after.kind == DIRECTORY else Action.PUT
            (following if is_late else adding).append(Step(action, change))
    return Phases(tuple(adding), (*removing, *reversed(emptied)), tuple(following))
