"""Edits against a model of dicts and lists, and every refusal with the field it names."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from hashlib import sha256

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.codec.test_state import count_bytes, names, slot_values, trees, values

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
from stateward.v1.state_pb2 import State, Value
from stateward_sidecar.codec import draft as draft_module
from stateward_sidecar.codec.edits import (
    apply_edits,
    check_diff,
    check_name,
    check_state,
    check_value,
    only_commutative,
)
from stateward_sidecar.codec.state import EMPTY, Entries, LogState, StateTree, unframe
from stateward_sidecar.errors import EditConflict, InvalidField

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


@given(trees(), st.data())
def test_apply_agrees_with_the_model(tree: StateTree, data: st.DataObject) -> None:
    """Edits give what the model gives, in one diff or one by one; what it refuses is refused, and leaves no trace."""
    model, before, fitting = Model.of(tree), copy.deepcopy(tree), Diff()
    stepwise = tree
    for _ in range(data.draw(st.integers(0, 12))):
        edit = data.draw(edits(model))
        tried = copy.deepcopy(model)
        try:
            tried.apply(edit, 7)
        except Conflict:
            with pytest.raises(EditConflict) as caught:
                apply_edits(tree, Diff(edits=[*fitting.edits, edit]), 7)
            assert caught.value.edit_index == len(fitting.edits)
            assert caught.value.field.startswith(f"diff.edits[{len(fitting.edits)}].{edit.WhichOneof('edit')}.")
            continue
        model = tried
        fitting.edits.append(edit)
        stepwise = apply_edits(stepwise, Diff(edits=[edit]), 7)
    together = apply_edits(tree, fitting, 7)
    assert together == stepwise == to_tree(model)
    assert together.size_bytes == stepwise.size_bytes == count_bytes(together)
    assert tree == before
    if not any(edit.WhichOneof("edit") == "splice_slot" and not edit.splice_slot.base_sha256 for edit in fitting.edits):
        check_diff(fitting)


def test_append_shares_everything_else() -> None:
    """One more entry leaves every other dict and list where it is."""
    tree = StateTree.of({"s": b"\x12\x00"}, {"m": LogState(0, Entries.of([b"\x12\x00"] * 3))}, {})
    grown = apply_edits(tree, Diff(edits=[Edit(append=Append(log="m", entries=[Value(data=b"x")]))]), 1)
    assert grown.slots is tree.slots
    assert grown.retired is tree.retired
    assert grown.logs["m"].entries._items is tree.logs["m"].entries._items
    assert (len(tree.logs["m"].entries), len(grown.logs["m"].entries)) == (3, 4)


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


def appended(count: int) -> Diff:
    """Adds so many entries to log m."""
    return edit_of("append", log="m", entries=[Value(data=b"x")] * count)


@pytest.mark.parametrize(
    ("trim", "first_index", "next_index", "rewritten_version"),
    [
        ({"keep_last": 2}, 3, 5, 2),
        ({"keep_last": 9}, 0, 5, 0),
        ({"before_index": 5}, 5, 5, 2),
        ({"before_index": 0}, 0, 5, 0),
        ({"from_index": 2}, 0, 2, 2),
        ({"from_index": 5}, 0, 5, 0),
        ({"from_index": 0}, 0, 0, 2),
    ],
)
def test_trim(trim: dict[str, int], first_index: int, next_index: int, rewritten_version: int) -> None:
    """Only what is cut from the end is numbered again, and only a trim that drops something rewrites."""
    log = history(appended(5), edit_of("trim_log", log="m", **trim)).logs["m"]
    assert (log.first_index, log.next_index, log.rewritten_version) == (first_index, next_index, rewritten_version)


def test_index_below_the_start_is_never_reached() -> None:
    """Cutting from an index that was trimmed at the start empties the log and gives no trimmed index out again."""
    trims = edit_of("trim_log", log="m", before_index=3), edit_of("trim_log", log="m", from_index=1)
    assert history(appended(5), *trims).logs["m"].first_index == 3


def test_deleted_log_continues() -> None:
    """A log made under a deleted one's name goes on with its indexes, and tells readers to start again."""
    tree = history(appended(5), edit_of("delete_log", log="m"))
    assert (tree.logs, tree.retired) == ({}, {"m": 5})
    log = apply_edits(tree, appended(1), 3).logs["m"]
    assert (log.first_index, log.rewritten_version) == (5, 3)


def test_log_deleted_in_the_diff_that_made_it() -> None:
    """A log that one diff makes, deletes and makes again is counted once."""
    diff = Diff(edits=[*appended(2).edits, *edit_of("delete_log", log="m").edits, *appended(1).edits])
    tree = apply_edits(EMPTY, diff, 1)
    assert (tree.logs["m"].first_index, tree.retired) == (2, {})
    assert tree.size_bytes == count_bytes(tree)


def test_edits_the_daemon_makes() -> None:
    """A splice without base and an append without entries are applied, and refused from clients."""
    tree = apply_edits(EMPTY, edit_of("set_slot", slot="s", value=Value(data=b"abc")), 1)
    spliced = edit_of("splice_slot", slot="s", splices=[Splice(offset=1, delete=1, insert=b"--")])
    assert Value.FromString(apply_edits(tree, spliced, 2).slots["s"]).data == b"a--c"
    assert len(apply_edits(tree, edit_of("append", log="m"), 2).logs["m"].entries) == 0
    for diff in (spliced, edit_of("append", log="m")):
        with pytest.raises(InvalidField):
            check_diff(diff)


def test_splice_keeps_unknown_fields() -> None:
    """A field of a value that this server does not know survives a splice."""
    tree = StateTree.of({"s": Value(media_type="m", data=b"abc").SerializeToString() + b"\x22\x01x"}, {}, {})
    spliced = apply_edits(tree, edit_of("splice_slot", slot="s", splices=[Splice(offset=3, insert=b"d")]), 2)
    assert spliced.slots["s"] == Value(media_type="m", data=b"abcd").SerializeToString() + b"\x22\x01x"


def test_splices_have_a_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splices that copy a large slot over and over are refused, the first never."""
    monkeypatch.setattr(draft_module, "MAX_SPLICED_BYTES", 100)
    tree = apply_edits(EMPTY, edit_of("set_slot", slot="s", value=Value(data=bytes(500))), 1)
    bases = (sha256(b"x" * count + bytes(500)).digest() for count in range(2))
    first, second = (
        edit_of("splice_slot", slot="s", base_sha256=base, splices=[Splice(offset=0, insert=b"x")]).edits
        for base in bases
    )
    apply_edits(tree, Diff(edits=first), 2)
    with pytest.raises(EditConflict, match="set the slot"):
        apply_edits(tree, Diff(edits=[*first, *second]), 2)
    # Without a base, as only a backup may have them: the first of a slot is the daemon's own, and is not counted.
    one = edit_of("splice_slot", slot="s", splices=[Splice(offset=0, insert=b"x")])
    with pytest.raises(EditConflict, match="set the slot"):
        apply_edits(tree, Diff(edits=[*one.edits, *one.edits, *one.edits]), 2)


def test_unknown_edit_is_not_skipped() -> None:
    """An edit that is unset, or of a kind from the future, is refused by check and by apply."""
    for diff in (Diff(edits=[Edit()]), Diff.FromString(b"\x0a\x04\xfa\x07\x01x")):
        with pytest.raises(InvalidField, match=r"diff\.edits\[0\]"):
            check_diff(diff)
        with pytest.raises(EditConflict):
            apply_edits(EMPTY, diff, 1)


OK, BASE, NAME = Value(data=b""), bytes(32), "n" * 1025


@pytest.mark.parametrize(
    ("kind", "fields", "path"),
    [
        ("set_slot", {"slot": "", "value": OK}, "slot"),
        ("set_slot", {"slot": NAME, "value": OK}, "slot"),
        ("set_slot", {"slot": "s"}, "value"),
        ("set_slot", {"slot": "s", "value": Value(media_type="ü" * 128, data=b"")}, "value.media_type"),
        ("set_slot", {"slot": "s", "value": Value(media_type="m", number=1)}, "value.media_type"),
        ("set_slot", {"slot": "s", "value": OK, "expected_sha256": BASE[1:]}, "expected_sha256"),
        ("add_number", {"slot": "a\x7f", "delta": 1}, "slot"),
        ("delete_slot", {"slot": "a\x7f"}, "slot"),
        ("splice_slot", {"slot": "\x00", "base_sha256": BASE, "splices": [Splice()]}, "slot"),
        ("splice_slot", {"slot": "s", "base_sha256": BASE[1:], "splices": [Splice()]}, "base_sha256"),
        ("splice_slot", {"slot": "s", "base_sha256": BASE}, "splices"),
        ("splice_slot", {"slot": "s", "base_sha256": BASE, "splices": [Splice(offset=-1)]}, "splices[0].offset"),
        ("splice_slot", {"slot": "s", "base_sha256": BASE, "splices": [Splice(delete=-1)]}, "splices[0].delete"),
        (
            "splice_slot",
            {"slot": "s", "base_sha256": BASE, "splices": [Splice(offset=1, delete=2), Splice(offset=2)]},
            "splices[1].offset",
        ),
        ("append", {"log": "", "entries": [OK]}, "log"),
        ("append", {"log": "m"}, "entries"),
        ("append", {"log": "m", "entries": [OK, Value()]}, "entries[1]"),
        ("append", {"log": "m", "entries": [OK, Value(number=1)]}, "entries[1].number"),
        ("append", {"log": "m", "entries": [OK], "at_index": -1}, "at_index"),
        ("replace_entry", {"log": "", "value": OK}, "log"),
        ("replace_entry", {"log": "m", "index": -1, "value": OK}, "index"),
        ("replace_entry", {"log": "m"}, "value"),
        ("replace_entry", {"log": "m", "value": Value(number=1)}, "value.number"),
        ("trim_log", {"log": "", "keep_last": 1}, "log"),
        ("trim_log", {"log": "m"}, ""),
        ("trim_log", {"log": "m", "keep_last": -1}, "keep_last"),
        ("trim_log", {"log": "m", "before_index": -1}, "before_index"),
        ("trim_log", {"log": "m", "from_index": -1}, "from_index"),
        ("delete_log", {"log": "a\x85"}, "log"),
    ],
)
def test_check_diff_names_the_field(kind: str, fields: dict[str, object], path: str) -> None:
    """What is wrong without any state is refused, with the path of the field."""
    diff = Diff(edits=[*appended(1).edits, *edit_of(kind, **fields).edits])
    with pytest.raises(InvalidField) as caught:
        check_diff(diff, "saves[2].diff")
    assert caught.value.field == f"saves[2].diff.edits[1].{kind}" + (f".{path}" if path else "")


def test_check_diff_counts() -> None:
    """100,000 edits are allowed, one more is not."""
    diff = Diff(edits=[edit_of("delete_slot", slot="s").edits[0]] * 100_000)
    check_diff(diff)
    diff.edits.append(diff.edits[0])
    with pytest.raises(InvalidField, match="100,001"):
        check_diff(diff)


def state_with(change: Callable[[State], object]) -> State:
    """A good state, changed."""
    state = State()
    state.slots["s"].data = b"x"
    state.logs["m"].entries.add(data=b"x")
    change(state)
    return state


@pytest.mark.parametrize(
    ("change", "path"),
    [
        (lambda state: setattr(state, "partial", True), "state.partial"),
        (lambda state: state.slots[""].CopyFrom(OK), "state.slots"),
        (lambda state: state.slots["s"].ClearField("data"), "state.slots[s]"),
        (lambda state: state.slots["s"].blob.SetInParent(), "state.slots[s].blob.sha256"),
        (lambda state: state.logs["m\n"].SetInParent(), "state.logs"),
        (lambda state: setattr(state.logs["m"], "first_index", -1), "state.logs[m].first_index"),
        (lambda state: state.logs["m"].entries.add(), "state.logs[m].entries[1]"),
        (lambda state: state.logs["m"].entries.add(number=0), "state.logs[m].entries[1].number"),
    ],
)
def test_check_state_names_the_field(change: Callable[[State], object], path: str) -> None:
    """A full state is checked like edits are."""
    check_state(state_with(lambda state: None))
    with pytest.raises(InvalidField) as caught:
        check_state(state_with(change))
    assert caught.value.field == path


@given(st.text(min_size=1, max_size=20))
def test_check_name(name: str) -> None:
    """A name is refused exactly for its control characters."""
    control = any(ord(one) < 32 or 127 <= ord(one) < 160 for one in name)
    if control:
        with pytest.raises(InvalidField):
            check_name(name, "x")
    else:
        check_name(name, "x")


def test_limits_are_inclusive() -> None:
    """The longest name and media type are allowed, in bytes."""
    check_name("ü" * 512, "x")
    check_value(Value(media_type="ü" * 127 + "m", data=b""), "x")
    for name in ("ü" * 512 + "a", ""):
        with pytest.raises(InvalidField):
            check_name(name, "x")


def test_only_commutative() -> None:
    """The first edit that needs its base is found."""
    free = [
        *edit_of("set_slot", slot="s", value=OK).edits,
        *edit_of("delete_slot", slot="s").edits,
        *edit_of("add_number", slot="n").edits,
        *appended(1).edits,
    ]
    assert only_commutative(Diff(edits=free)) is None
    for kind in ("splice_slot", "replace_entry", "trim_log", "delete_log"):
        assert only_commutative(Diff(edits=[*free, *edit_of(kind).edits])) == len(free)


@pytest.mark.parametrize(
    ("diff", "path", "facts"),
    [
        (edit_of("delete_slot", slot="none"), "delete_slot.slot", "'none'"),
        (edit_of("set_slot", slot="s", value=OK, expected_sha256=BASE), "set_slot.expected_sha256", "found"),
        (edit_of("set_slot", slot="s", value=OK, expected_sha256=b""), "set_slot.expected_sha256", "not to exist"),
        (edit_of("set_slot", slot="none", value=OK, expected_sha256=BASE), "set_slot.expected_sha256", "no slot"),
        (edit_of("add_number", slot="s", delta=1), "add_number.slot", "no number"),
        (edit_of("splice_slot", slot="s", base_sha256=BASE), "splice_slot.base_sha256", "found"),
        (edit_of("splice_slot", slot="s", splices=[Splice(offset=9)]), "splice_slot.splices[0]", "9 of 3"),
        (edit_of("append", log="m", at_index=5), "append.at_index", "ends at 2"),
        (edit_of("append", log="none", at_index=5), "append.at_index", "ends at 0"),
        (edit_of("replace_entry", log="m", index=2, value=OK), "replace_entry.index", "expected an entry 2"),
        (edit_of("trim_log", log="m", before_index=3), "trim_log.before_index", "beyond the end"),
        (edit_of("trim_log", log="none", keep_last=3), "trim_log.log", "'none'"),
        (edit_of("delete_log", log="none"), "delete_log.log", "'none'"),
    ],
)
def test_conflict_states_the_facts(diff: Diff, path: str, facts: str) -> None:
    """A conflict names edit and field, and says what was found."""
    tree = history(edit_of("set_slot", slot="s", value=Value(data=b"abc")), appended(2))
    with pytest.raises(EditConflict) as caught:
        apply_edits(tree, diff, 3)
    assert caught.value.metadata == {"edit": "0", "field": f"diff.edits[0].{path}"}
    assert facts in caught.value.message
