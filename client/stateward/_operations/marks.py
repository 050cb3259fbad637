"""A step that is marked as whole and not saved yet, kept so that it can be saved as it was, whatever has become of the
state since. That costs nothing more: to know later whether the state changed, its changes are encoded anyway.
"""

from __future__ import annotations

from collections.abc import Iterator

from stateward._operations import saving
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Operation, ThreadRef
from stateward._operations.timelimit import limited
from stateward._state.collected import Collected
from stateward._state.log import Log
from stateward.models import Checkpoint, Status
from stateward.state import State
from stateward.v1 import diff_pb2, state_pb2

# A grace time is over when a mark is saved: whoever ends the process does not wait much longer.
FINAL_SAVE_S = 5.0


class Mark:
    """What a step said, and the state as it left it."""

    def __init__(self, state: State, changes: bytes, options: SaveOptions) -> None:
        self.checkpoint = state.checkpoint
        """What the state goes on from; once that is another one, the step is part of it."""
        self.changes = changes
        self.options = options
        self._kept = _Kept(state, changes)

    def save(self, ref: ThreadRef, status: Status | str) -> Operation[Checkpoint]:
        """Saves it in the place of the state, which does not know of it: the last thing that is done with that."""
        # The diff stands for the whole state only as long as nobody else has saved.
        options: SaveOptions = {**self.options, "overwrite": False, "status": status}
        return (yield from limited(saving.save(ref, self._kept, options), lambda: FINAL_SAVE_S))


class _Kept(State):
    """A state that differs from its version by changes that were collected before."""

    def __init__(self, state: State, changes: bytes) -> None:
        super().__init__(checkpoint=state.checkpoint, partial=state.partial, origin=state.origin, pinned=state.pinned)
        self.schema_version = state.schema_version
        self._kept_changes = changes
        self._guesses = {log.name: log._stored_next for log in state.logs_without_numbers()}
        self._ends = [Log(name, first_index=end, numbered=False) for name, end in self._guesses.items()]

    def logs_without_numbers(self) -> list[Log]:
        return [end for end in self._ends if not end._numbered]

    def collect(self, diff: diff_pb2.Diff | None = None, blob_threshold: int = 0) -> Collected:
        collected = Collected(diff_pb2.Diff() if diff is None else diff, blob_threshold=blob_threshold)
        shifts = {end.name: end.next_index - self._guesses[end.name] for end in self._ends}
        for edit in diff_pb2.Diff.FromString(self._kept_changes).edits:
            for value in _values(edit):
                value.CopyFrom(collected.take(value))
            _shift(edit, shifts)
            collected.diff.edits.append(edit)
        return collected


def _values(edit: diff_pb2.Edit) -> Iterator[state_pb2.Value]:
    match edit.WhichOneof("edit"):
        case "set_slot":
            yield edit.set_slot.value
        case "replace_entry":
            yield edit.replace_entry.value
        case "append":
            yield from edit.append.entries


def _shift(edit: diff_pb2.Edit, shifts: dict[str, int]) -> None:
    match edit.WhichOneof("edit"):
        case "replace_entry":
            edit.replace_entry.index += shifts.get(edit.replace_entry.log, 0)
        case "trim_log":
            trim = edit.trim_log
            name = trim.WhichOneof("trim")
            setattr(trim, name, getattr(trim, name) + shifts.get(trim.log, 0))
