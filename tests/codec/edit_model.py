"""Edits on dicts and lists, as the words of diff.proto say, and edits to try."""

from __future__ import annotations

from dataclasses import dataclass, field
from hashlib import sha256

from hypothesis import strategies as st
from tests.codec.test_state import names, slot_values, values

from stateward.v1.diff_pb2 import (
    AddNumber,
    Append,
    DeleteLog,
    DeleteSlot,
    Diff,
    Edit,
    ReplaceEntry,
    SetSlot,
    Splice,
    SpliceSlot,
    TrimLog,
)
from stateward.v1.state_pb2 import Value
from stateward_sidecar.codec.edits import (
    apply_edits,
)
from stateward_sidecar.codec.entries import Entries
from stateward_sidecar.codec.state import EMPTY, LogState, StateTree
from stateward_sidecar.codec.varints import unframe

numbers = st.integers(0, 12)


SLOT_EDITS = ("set_slot", "delete_slot", "splice_slot", "add_number")


def hash_of(value: Value | None) -> bytes:
    """What a SetSlot must expect of a slot, by the words of diff.proto."""
    if value is None:
        return b""
    return sha256(str(value.number).encode() if value.HasField("number") else value.data).digest()


class Conflict(Exception):
    """The model refuses an edit."""


@dataclass
class ModelLog:
    """A log, its entries under their indexes."""

    first: int
    entries: list[Value]
    rewritten: int = 0

    @classmethod
    def of(cls, log: LogState) -> ModelLog:
        return cls(log.first_index, [Value.FromString(unframe(item)) for item in log.entries], log.rewritten_version)

    @property
    def next(self) -> int:
        return self.first + len(self.entries)


@dataclass
class Model:
    """What a state is, without any care for speed."""

    slots: dict[str, Value] = field(default_factory=dict)
    logs: dict[str, ModelLog] = field(default_factory=dict)
    retired: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, tree: StateTree) -> Model:
        return cls(
            {name: Value.FromString(value) for name, value in tree.slots.items()},
            {name: ModelLog.of(log) for name, log in tree.logs.items()},
            dict(tree.retired),
        )

    def apply(self, edit: Edit, version: int) -> None:
        """Applies one edit by the words of diff.proto, or raises Conflict."""
        kind = edit.WhichOneof("edit")
        body = getattr(edit, kind)
        held = self.slots if kind in SLOT_EDITS else self.logs
        name = body.slot if kind in SLOT_EDITS else body.log
        if name not in held and kind not in {"set_slot", "append", "add_number"}:
            raise Conflict
        getattr(self, f"_{kind}")(name, body, version)

    def _set_slot(self, name: str, edit: SetSlot, version: int) -> None:
        if edit.HasField("expected_sha256") and edit.expected_sha256 != hash_of(self.slots.get(name)):
            raise Conflict
        self.slots[name] = edit.value

    def _add_number(self, name: str, edit: AddNumber, version: int) -> None:
        value = self.slots.get(name, Value(number=0))
        if not value.HasField("number") or not -(1 << 63) <= value.number + edit.delta < 1 << 63:
            raise Conflict
        self.slots[name] = Value(number=value.number + edit.delta)

    def _delete_slot(self, name: str, edit: DeleteSlot, version: int) -> None:
        del self.slots[name]

    def _splice_slot(self, name: str, edit: SpliceSlot, version: int) -> None:
        old = data = self.slots[name].data
        if self.slots[name].HasField("number"):
            raise Conflict
        if edit.base_sha256 and edit.base_sha256 != sha256(data).digest():
            raise Conflict
        for splice in reversed(edit.splices):
            if splice.offset + splice.delete > len(old):
                raise Conflict
            data = data[: splice.offset] + splice.insert + data[splice.offset + splice.delete :]
        self.slots[name] = Value(media_type=self.slots[name].media_type, data=data)

    def _append(self, name: str, edit: Append, version: int) -> None:
        new = ModelLog(self.retired[name], [], version) if name in self.retired else ModelLog(0, [])
        log = self.logs.get(name, new)
        if edit.HasField("at_index") and edit.at_index != log.next:
            raise Conflict
        self.retired.pop(name, None)
        self.logs[name] = log
        log.entries += edit.entries

    def _replace_entry(self, name: str, edit: ReplaceEntry, version: int) -> None:
        log = self.logs[name]
        if edit.index not in range(log.first, log.next):
            raise Conflict
        log.entries[edit.index - log.first] = edit.value
        log.rewritten = version

    def _trim_log(self, name: str, edit: TrimLog, version: int) -> None:
        log = self.logs[name]
        if max(edit.before_index, edit.from_index) > log.next:
            raise Conflict
        kept = list(range(log.first, log.next))
        if edit.HasField("from_index"):
            kept = [index for index in kept if index < edit.from_index]
            first = log.first
        else:
            start = edit.before_index if edit.HasField("before_index") else log.next - edit.keep_last
            kept = [index for index in kept if index >= start]
            first = log.next - len(kept)
        if len(kept) < len(log.entries):
            log.rewritten = version
        log.first, log.entries = first, [log.entries[index - log.first] for index in kept]

    def _delete_log(self, name: str, edit: DeleteLog, version: int) -> None:
        self.retired[name] = self.logs.pop(name).next


def to_tree(model: Model) -> StateTree:
    """The tree of a model."""
    return StateTree.of(
        {name: value.SerializeToString() for name, value in model.slots.items()},
        {
            name: LogState(log.first, Entries.of([value.SerializeToString() for value in log.entries]), log.rewritten)
            for name, log in model.logs.items()
        },
        dict(model.retired),
    )


@st.composite
def edits(draw: st.DrawFn, model: Model) -> Edit:
    """Any edit; about one in three does not fit the model."""
    edit = Edit()
    kind = draw(st.sampled_from([one.name for one in Edit.DESCRIPTOR.oneofs_by_name["edit"].fields]))
    body = getattr(edit, kind)
    if kind in SLOT_EDITS:
        body.slot = draw(st.sampled_from([*model.slots, *model.slots]) | names if model.slots else names)
    else:
        body.log = draw(st.sampled_from([*model.logs, *model.logs]) | names if model.logs else names)
    log = model.logs.get(getattr(body, "log", ""), ModelLog(0, []))
    near = st.integers(max(0, log.first - 1), log.next + 1)
    if kind in {"set_slot", "replace_entry"}:
        body.value.CopyFrom(draw(slot_values if kind == "set_slot" else values))
    if kind == "set_slot" and draw(st.booleans()):
        body.expected_sha256 = draw(st.sampled_from([hash_of(model.slots.get(body.slot))] * 3 + [b"", bytes(32)]))
    if kind == "add_number":
        body.delta = draw(st.one_of(st.integers(-3, 3), st.sampled_from([-(1 << 63), (1 << 63) - 1])))
    if kind == "splice_slot":
        data = model.slots.get(body.slot, Value()).data
        body.base_sha256 = draw(st.sampled_from([sha256(data).digest()] * 4 + [b"", bytes(32)]))
        places = st.integers(0, len(data) + draw(st.sampled_from([0, 0, 0, 2])))
        cuts = sorted(draw(st.lists(places, min_size=2, max_size=6)))
        for start, stop in zip(cuts[::2], cuts[1::2], strict=False):
            body.splices.append(Splice(offset=start, delete=stop - start, insert=draw(st.binary(max_size=4))))
    if kind == "append":
        body.entries.extend(draw(st.lists(values, min_size=1, max_size=4)))
        if draw(st.booleans()):
            body.at_index = draw(st.sampled_from([log.next, log.next, log.next + 1]))
    if kind == "replace_entry":
        body.index = draw(near)
    if kind == "trim_log":
        trim = draw(st.sampled_from(["keep_last", "before_index", "from_index"]))
        setattr(body, trim, draw(numbers if trim == "keep_last" else near))
    return edit


def edit_of(kind: str, **fields: object) -> Diff:
    """A diff of one edit."""
    diff = Diff()
    body = getattr(diff.edits.add(), kind)
    body.SetInParent()
    body.MergeFrom(type(body)(**fields))
    return diff


def history(*diffs: Diff) -> StateTree:
    """The state after these diffs, the first being version 1."""
    tree = EMPTY
    for version, diff in enumerate(diffs, 1):
        tree = apply_edits(tree, diff, version)
    return tree
