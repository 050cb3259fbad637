"""The operation that saves edits given by the caller, instead of the changes of a state."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from hashlib import sha256

from stateward._operations.merging import require_kept
from stateward._operations.reading import hydrate_stored
from stateward._operations.saving import (
    SaveOptions,
    bare_request,
    begin_merge,
    merge,
    note_lost_objects,
    read_checkpoint,
    require_durable,
    store_values,
)
from stateward._operations.steps import Call, Operation, ThreadRef
from stateward.arguments import instance, several
from stateward.changes import Change, edit_to_proto
from stateward.errors import EditConflict, InvalidField
from stateward.models import Checkpoint
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import diff_pb2, state_pb2


@dataclass(frozen=True)
class PreparedEdits:
    """Edits that `apply_all` saves together with others. The fields are the arguments of `apply`."""

    ref: ThreadRef
    changes: Sequence[Change]
    parent: Checkpoint | int | None
    options: SaveOptions


def apply(
    ref: ThreadRef, changes: Iterable[Change], parent: Checkpoint | int | None, options: SaveOptions
) -> Operation[Checkpoint]:
    """Saves one version: the edits applied to `parent`; None = to the branch's head, whatever it is."""
    request, places = yield from _request(ref, changes, parent, options)
    try:
        return (yield from merge(ref, request))
    except EditConflict as error:
        if error.edit is not None:
            error.metadata["edit"] = str(places[error.edit])
        raise
    except InvalidField as error:
        note_lost_objects(error, [options])
        raise


def apply_all(prepared: Sequence[PreparedEdits]) -> Operation[list[Checkpoint]]:
    """Saves one version from edits in each of several threads: on this disk all of them, or none."""
    requests = list[checkpoints.SaveRequest]()
    for each in prepared:
        request, _ = yield from _request(each.ref, each.changes, each.parent, each.options)
        requests.append(request)
    try:
        if len(requests) == 1:
            return [(yield from merge(prepared[0].ref, requests[0]))]
        answer: checkpoints.BatchSaveResponse = yield Call("BatchSave", checkpoints.BatchSaveRequest(saves=requests))
    except InvalidField as error:
        note_lost_objects(error, [each.options for each in prepared])
        raise
    made = list(map(read_checkpoint, requests, answer.saves))
    require_durable(requests, made)
    return made


def _request(
    ref: ThreadRef, changes: Iterable[Change], parent: Checkpoint | int | None, options: SaveOptions
) -> Operation[tuple[checkpoints.SaveRequest, list[int]]]:
    """Returns the request for such a version, and the places that its edits had among `changes`."""
    edits = several(changes, "edits", "Changes")
    given = [edit_to_proto(change, f"edits[{index}]") for index, change in enumerate(edits)]
    for index, edit in enumerate(given):
        require_kept(ref, _slot_of(edit), f"edits[{index}].slot: ")
    # `diff` returns an append without entries for a log that was stored empty. The daemon refuses it.
    places = [index for index, edit in enumerate(given) if not edit.HasField("append") or edit.append.entries]
    edits = [given[index] for index in places]
    if parent is None:
        request = yield from begin_merge("apply without parent", ref, options)
    elif options.get("overwrite"):
        raise TypeError("apply has no option overwrite")
    else:
        instance(parent, "parent", (Checkpoint, int), "a Checkpoint or a whole number")
        request = bare_request(ref, options)
        version, digest = parent if isinstance(parent, int) else parent.version, b""
        if isinstance(parent, Checkpoint):
            digest, request.options.expected_uid = parent.digest, parent.uid or request.options.expected_uid
        elif version:  # 0 continues nothing
            request.options.expected_uid = request.options.expected_uid or ref.held.read_uid
        if ref.at is not None and version == ref.at:  # the first version of a branch
            request.options.expected_version, request.parent.version = 0, version
            request.parent.digest = digest or ref.at_digest
        else:
            request.options.expected_version, request.options.expected_digest = version, digest
        yield from _complete_splices(ref, edits, parent)
    stored = [value for edit in edits for value in _values_of(edit)]
    # A parent is of a thread that is there already.
    may_make = not (request.options.expected_version or request.parent.version)
    values = yield from store_values(ref, stored, options, request.options.expected_uid, may_make=may_make)
    for value, taken in zip(stored, values, strict=True):
        if value is not taken:
            value.CopyFrom(taken)
    request.diff.SetInParent()  # a version may change nothing
    request.diff.edits.extend(edits)
    return request, places


def _slot_of(edit: diff_pb2.Edit) -> str:
    return str(getattr(getattr(edit, edit.WhichOneof("edit") or ""), "slot", ""))


def _values_of(edit: diff_pb2.Edit) -> list[state_pb2.Value]:
    match edit.WhichOneof("edit"):
        case "set_slot":
            return [edit.set_slot.value]
        case "replace_entry":
            return [edit.replace_entry.value]
        case _:
            return list(edit.append.entries)


def _complete_splices(ref: ThreadRef, edits: list[diff_pb2.Edit], version: Checkpoint | int) -> Operation[None]:
    """Adds the SHA-256 of the base to splices that lack it, as those of `diff` do: the daemon requires it."""
    bare = {
        edit.splice_slot.slot for edit in edits if edit.HasField("splice_slot") and not edit.splice_slot.base_sha256
    }
    if not bare:
        return
    with ref.held.working_on_the_same():
        state = yield from hydrate_stored(ref, version, slots=bare)
    data = {slot: state.slots.raw(slot).data for slot in bare if slot in state.slots}
    for edit in edits:
        if edit.HasField("set_slot"):
            data[edit.set_slot.slot] = edit.set_slot.value.data
        elif edit.HasField("splice_slot") and edit.splice_slot.slot in data:
            spliced = edit.splice_slot
            before = data[spliced.slot]
            spliced.base_sha256 = spliced.base_sha256 or sha256(before).digest()
            for splice in reversed(spliced.splices):
                before = before[: splice.offset] + splice.insert + before[splice.offset + splice.delete :]
            data[spliced.slot] = before
