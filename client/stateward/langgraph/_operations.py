"""What the saver does, without I/O: operations as in `stateward._operations`, driven by the blocking and the asyncio
client alike.

A LangGraph thread is a thread, a checkpoint namespace is a branch, and a checkpoint is a version under its checkpoint
id. The state of a version has the channels, and one slot for the rest of the checkpoint. Pending writes are effects.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from stateward._naming import escape, name_for, text_of, unescape
from stateward._operations.pages import Pages, read_pages
from stateward._operations.steps import Call, Operation, ThreadRef, new_request_id, thread_error
from stateward.attributes import INT_MAX, INT_MIN
from stateward.errors import (
    CheckpointIdReused,
    ClaimLost,
    EditConflict,
    Exhausted,
    InvalidRequest,
    ThreadNotFound,
    UidMismatch,
    VersionMismatch,
    VersionNotFound,
    VersionPruned,
)
from stateward.langgraph._answers import ANSWERS
from stateward.langgraph._bases import Base, Bases, Creations
from stateward.langgraph._channels import (
    Edits,
    Serializer,
    Stored,
    change_channels,
    from_value,
    read_channels,
    to_value,
)
from stateward.langgraph._joining import Writes
from stateward.langgraph._names import CHANNEL, MAIN, by_id, channel_name, effect_name, namespace_of, thread_of
from stateward.langgraph._telling import NO_TASK, Told, is_edge, status_of
from stateward.langgraph._types import Placed, dump
from stateward.options import ThreadOptions
from stateward.v1 import checkpoint_pb2, diff_pb2, effect_pb2, state_pb2
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import effect_service_pb2 as effects

_KEEP, _REPLACE = effect_pb2.Effect.CONFLICT_RULE_KEEP, effect_pb2.Effect.CONFLICT_RULE_REPLACE
_NOTHING = "null", b""
"""How LangGraph's serializer stores None."""
REST = "checkpoint"
RUN_LABEL = "run_id"
DELTA_COUNTERS = "counters_since_delta_snapshot"
PAGE = 1000
_EFFECTS_MAX = 1000
_SORT_BYTES_MAX = 1024
_ABOUT = "; about"
"""Ends the media type of a value before whose bytes names stand."""
# What a save is refused with if the version that it is made from is not as it is remembered.
_STALE = EditConflict, VersionMismatch, VersionNotFound, VersionPruned
# What a save with writes may be refused with because of the writes.
_NOT_TOGETHER = CheckpointIdReused, ClaimLost, Exhausted, InvalidRequest


@dataclass(frozen=True, slots=True)
class Written:
    """A pending write: task, channel, value as it was serialized, and the order in which LangGraph applies it."""

    task_id: str
    channel: str
    value: tuple[str, bytes]
    order: tuple[str, str, int]

    @property
    def place(self) -> tuple[str, int]:
        """Task, and index among its writes."""
        return self.order[1:]


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint as it was read."""

    message: checkpoint_pb2.Checkpoint
    rest: dict[str, Any]
    base: Base
    writes: list[Written]

    @property
    def channels(self) -> Mapping[str, Stored]:
        """By their names (see `_names`)."""
        return self.base.channels

    @property
    def checkpoint_id(self) -> str:
        text = text_of(self.message.checkpoint_id)
        return str(self.rest["id"]) if text is None else text


def get(
    ref: ThreadRef,
    serde: Serializer,
    version: checkpoint_pb2.VersionRef | None,
    known: Base | None = None,
    creations: Creations | None = None,
) -> Operation[Found | None]:
    """Reads a checkpoint with its writes; `version` None = the newest one of the branch. None = there is none, or not
    with the digest in `version`.

    With `known`, an earlier version of the thread or the same one, the daemon sends only what changed since.
    """
    request = ref.on_branch(checkpoints.HydrateRequest, version=version, include_effects=True)
    if known is not None:
        request.known_version, request.known_digest = known.version, known.digest
    try:
        pages = yield from read_pages(request)
    except (ThreadNotFound, VersionNotFound, VersionPruned, VersionMismatch):
        if creations is not None and ref.branch == MAIN and version is None:
            creations.note_missing(ref)
        return None
    message = pages.last.checkpoint
    if creations is not None:
        creations.note(ref, message.checkpoint_id, message.uid)
    return _found(serde, pages, known)


def _found(serde: Serializer, pages: Pages, known: Base | None = None) -> Found | None:
    """The checkpoint that was read; None = the empty state that is left where a run was deleted."""
    removed = {*pages.removed_slots, *pages.removed_logs}
    before = known if pages.last.base_version else None
    slots, logs = pages.slots, pages.logs
    channels = change_channels(before.channels, removed, slots, logs) if before else read_channels(slots, logs)
    rest = from_value(slots[REST]) if REST in slots else before.rest if before and REST not in removed else None
    if rest is None and not (pages.last.checkpoint.checkpoint_id or channels or slots or logs):
        return None
    return make_found(serde, pages.last.checkpoint, rest, channels, pages.effects)


def make_found(
    serde: Serializer,
    message: checkpoint_pb2.Checkpoint,
    rest: tuple[str, bytes] | None,
    channels: Mapping[str, Stored],
    writes: Iterable[effect_pb2.RecordedEffect],
) -> Found:
    """A checkpoint from its parts. Raises ValueError if the version is none."""
    if rest is None or not message.checkpoint_id:
        place = f"version {message.version} of thread {message.thread!r}"
        raise ValueError(f"{place} is no checkpoint of LangGraph: something else writes to this thread")
    opened = serde.loads_typed(rest)
    base = Base(message.version, opened["channel_versions"], channels, message.digest, message.uid, rest)
    return Found(message, opened, base, _all_written(writes))


def read_writes(ref: ThreadRef, checkpoint_id: str, channels: Sequence[str] = ()) -> Operation[list[Written]]:
    """Reads the pending writes of a checkpoint, in the order in which LangGraph applies them; () = all channels."""
    names = map(name_for, channels)
    request = ref.about(effects.ListEffectsRequest, anchor=name_for(checkpoint_id), names=names, page_size=PAGE)
    recorded = list[effect_pb2.RecordedEffect]()
    while True:
        page: effects.ListEffectsResponse = yield Call("ListEffects", request)
        recorded += page.effects
        if not page.next_page_token:
            found = _all_written(recorded)
            return [each for each in found if each.channel in channels] if channels else found
        request.page_token = page.next_page_token


def _written(effect: effect_pb2.Effect) -> Iterator[Written]:
    about, kind, data = _open_value(effect.value)
    task_id, index = about["key"] if "key" in about else json.loads(text_of(effect.key) or "")
    channel = about["channel"] if "channel" in about else text_of(effect.name) or ""
    path = about["path"] if "path" in about else effect.sort_key.decode(errors="surrogatepass")
    yield Written(task_id, channel, (kind, data), (path, task_id, index))
    for at, sign in about.get("signs", ()):
        yield Written(task_id, sign, _NOTHING, (path, task_id, at))


def _all_written(recorded: Iterable[effect_pb2.RecordedEffect]) -> list[Written]:
    """What is written in effects, in the order in which LangGraph applies it. A task has one write of each index, the
    one that was stored first: a sign may be stored again within another write."""
    pairs = [(one, each) for one in recorded for each in _written(one.effect)]
    found = {each.place: each for _, each in pairs}
    if len(found) < len(pairs):
        # A copy of a thread keeps the times. It may have the sequences in another order.
        pairs.sort(key=lambda pair: (pair[0].begin_time.ToNanoseconds(), pair[0].sequence), reverse=True)
        found = {each.place: each for _, each in pairs}
    return sorted(found.values(), key=lambda each: each.order)


@dataclass(slots=True)
class History:
    """What one channel got along the ancestors of a checkpoint: its nearest stored value, and the writes since."""

    writes: list[Written] = field(default_factory=list)
    seed: Stored | None = None


def channel_history(
    ref: ThreadRef, serde: Serializer, checkpoint_id: str | None, channels: Sequence[str]
) -> Operation[dict[str, History]]:
    """Walks from the parent of a checkpoint to its ancestors, for each channel until one has a value of it."""
    found = {channel: History() for channel in channels}
    parent_id = yield from _parent_id(ref, serde, checkpoint_id)
    while parent_id and (missing := [name for name, each in found.items() if each.seed is None]):
        names = [CHANNEL + channel_name(channel) for channel in missing]
        request = ref.on_branch(checkpoints.HydrateRequest, version=by_id(parent_id))
        request.projection.slots.extend(names)
        request.projection.logs.extend(checkpoints.LogSelection(log=name) for name in names)
        try:
            pages = yield from read_pages(request)
        except (ThreadNotFound, VersionNotFound, VersionPruned):
            break
        stored = read_channels(pages.slots, pages.logs)
        for each in reversed((yield from read_writes(ref, parent_id, missing))):
            found[each.channel].writes.append(each)
        for channel in missing:
            found[channel].seed = stored.get(channel_name(channel))
        parent_id = about(serde, pages.last.checkpoint)[1]
    for history in found.values():
        history.writes.reverse()
    return found


def _parent_id(ref: ThreadRef, serde: Serializer, checkpoint_id: str | None) -> Operation[str]:
    try:
        request = ref.on_branch(checkpoints.GetCheckpointRequest, version=by_id(checkpoint_id))
        answer = yield Call("GetCheckpoint", request)
    except (ThreadNotFound, VersionNotFound, VersionPruned):
        return ""
    return about(serde, answer.checkpoint)[1]


def to_effects(
    checkpoint_id: str, writes: Iterable[tuple[int, str, tuple[str, bytes]]], task_id: str, task_path: str
) -> list[effect_pb2.Effect]:
    """What a task wrote, as it is stored: of (index, channel, serialized value). Those with an index below 0 replace
    earlier ones, also earlier ones of the same call: LangGraph writes a channel of this kind twice when a node asks
    twice.

    The signs to LangGraph's next nodes have no values. They travel within the task's first other write, because an
    effect costs the daemon as much as half a checkpoint.
    """
    last, anchor = {write[0]: write for write in writes}, name_for(checkpoint_id)
    kept, signs = list(last.values()), list[tuple[int, str]]()
    host = next((index for index, channel, value in kept if index >= 0 and not _is_sign(channel, value)), None)
    if host is not None and task_id != NO_TASK:  # the writes of no task grow from call to call
        signs = [(index, channel) for index, channel, value in kept if index >= 0 and _is_sign(channel, value)]
        kept = [write for write in kept if write[:2] not in signs]
    return [_to_effect(anchor, *write, task_id, task_path, signs if write[0] == host else ()) for write in kept]


def _is_sign(channel: str, value: tuple[str, bytes]) -> bool:
    return value == _NOTHING and is_edge(channel)


def expected_uid(ref: ThreadRef, creations: Creations, checkpoint_id: str, ancestors: Iterable[str]) -> tuple[str, str]:
    """Returns the uid that the thread must have when the tasks of a checkpoint write: as one of the `ancestors` or the
    checkpoint tells (else empty), or else as the thread had it last."""
    known = creations.of(ref, map(name_for, (checkpoint_id, *ancestors)))
    return known, known or creations.of_thread(ref)


def put_writes(
    ref: ThreadRef,
    creations: Creations,
    checkpoint_id: str,
    made: Sequence[effect_pb2.Effect],
    create: ThreadOptions,
    *,
    ancestors: Iterable[str] = (),
    told: Told | None = None,
) -> Operation[None]:
    """Writes what a task wrote, and what that tells about the work.

    Raises UidMismatch if the thread of the checkpoint, or of one of the `ancestors`, was deleted.
    """
    known, expected = expected_uid(ref, creations, checkpoint_id, ancestors)
    try:
        uid = yield from put_effects(ref, made, create, expected, told)
    except UidMismatch:
        # A checkpoint that this saver has not seen may belong to the next thread of the name.
        if known or not (current := (yield from _uid_of(ref, checkpoint_id))):
            raise
        uid = yield from put_effects(ref, made, create, current, told)
    creations.note(ref, name_for(checkpoint_id), uid)


def put_together(creations: Creations, written: Sequence[Writes], create: ThreadOptions) -> Operation[None]:
    """Writes what several tasks of one thread wrote, and expect the same uid."""
    ref, effects = written[0].ref, [effect for each in written for effect in each.effects]
    uid = yield from put_effects(ref, effects, create, written[0].uid)
    for each in written:
        creations.note(each.ref, each.anchor, uid)
        each.is_over = True


def _uid_of(ref: ThreadRef, checkpoint_id: str) -> Operation[str]:
    """Returns the uid of the thread, if it has this checkpoint; else empty."""
    try:
        request = ref.on_branch(checkpoints.GetCheckpointRequest, version=by_id(checkpoint_id))
        answer = yield Call("GetCheckpoint", request)
    except (ThreadNotFound, VersionNotFound, VersionPruned):
        return ""
    return str(answer.checkpoint.uid)


def to_effect(
    checkpoint_id: str, index: int, channel: str, value: tuple[str, bytes], task_id: str, task_path: str
) -> effect_pb2.Effect:
    """A pending write as it is stored; `_written` is the reverse."""
    return _to_effect(name_for(checkpoint_id), index, channel, value, task_id, task_path)


def _to_effect(
    anchor: str, index: int, channel: str, value: tuple[str, bytes], task_id: str, task_path: str,
    signs: Sequence[tuple[int, str]] = (),
) -> effect_pb2.Effect:  # fmt: skip
    path = task_path.encode(errors="surrogatepass")
    key, name = name_for(json.dumps([task_id, index])), effect_name(channel)
    about: dict[str, Any] = {}
    if text_of(key) is None:
        about["key"] = [task_id, index]
    if text_of(name) is None:
        about["channel"] = channel
    if len(path) > _SORT_BYTES_MAX:
        about["path"] = task_path
    if signs:
        about["signs"] = signs
    return effect_pb2.Effect(
        anchor=anchor, key=key, name=name, sort_key=path[:_SORT_BYTES_MAX], value=_close_value(about, *value),
        on_conflict=_KEEP if index >= 0 else _REPLACE,
    )  # fmt: skip


def _close_value(about: Mapping[str, Any], kind: str, data: bytes) -> state_pb2.Value:
    """A value of a pending write; before its bytes stand names that are too long for the fields of an effect."""
    value = to_value(kind, data)
    if about:
        head = json.dumps(about).encode()
        value.media_type += _ABOUT
        value.data = len(head).to_bytes(4) + head + value.data
    return value


def _open_value(value: state_pb2.Value) -> tuple[dict[str, Any], str, bytes]:
    """The reverse of `_close_value`."""
    kind, data = from_value(value)
    if not kind.endswith(_ABOUT):
        return {}, kind, data
    end = 4 + int.from_bytes(data[:4])
    return json.loads(data[4:end]), kind.removesuffix(_ABOUT), data[end:]


def put_effects(
    ref: ThreadRef, made: Sequence[effect_pb2.Effect], create: ThreadOptions, uid: str = "", told: Told | None = None,
) -> Operation[str]:  # fmt: skip
    """Writes pending writes of any number of tasks and checkpoints. Returns the uid of the thread. `told`: what writes
    of one checkpoint tell about the work."""
    for start in range(0, len(made), _EFFECTS_MAX):
        part = made[start : start + _EFFECTS_MAX]
        request = ref.about(effects.PutEffectsRequest, effects=part, request_id=new_request_id(), expected_uid=uid)
        request.options.create.CopyFrom(create.to_proto())
        if told is not None and start + _EFFECTS_MAX >= len(made):
            told.add_to(request)
        answer: effects.PutEffectsResponse = yield Call("PutEffects", request)
        uid = answer.receipt.uid
    return uid


@dataclass(frozen=True, slots=True)
class Put:
    """A checkpoint to be written."""

    parent_id: str
    rest: Mapping[str, Any]
    """The checkpoint without the values of its channels."""
    values: Mapping[str, Any]
    new_versions: Mapping[str, Any]
    metadata: Mapping[str, Any]
    ancestors: Sequence[str] = ()
    """Checkpoints of the graphs around this one, which are of the same thread."""
    thread_id: str = ""
    checkpoint_ns: str = ""

    @property
    def checkpoint_id(self) -> str:
        return str(self.rest["id"])

    @property
    def channel_versions(self) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.rest["channel_versions"]
        return found


def put(
    ref: ThreadRef, serde: Serializer, bases: Bases, creations: Creations, wanted: Put, create: ThreadOptions, *,
    owns: bool, written: Sequence[Writes] = (),
) -> Operation[None]:  # fmt: skip
    """Writes a checkpoint as a version: what changed since its parent. With it what tasks of the parent wrote, if the
    daemon takes both.

    If the parent is no longer the head of the branch, the version is a fork, as in every LangGraph saver. With `owns`
    the call raises VersionMismatch instead. Raises UidMismatch if the thread of the parent was deleted.
    """
    name = name_for(wanted.checkpoint_id)
    uid = creations.of(ref, map(name_for, (wanted.parent_id, *wanted.ancestors)))
    if wanted.ancestors and not uid:
        uid = creations.of_thread(ref)
    creations.note(ref, name, uid, is_seen=False)  # now: the writes of its tasks may be sent before the answer comes
    base = bases.get(ref, wanted.parent_id)
    known, acks = base is not None, ANSWERS.end(uid, ref.branch, name_for(wanted.parent_id))
    while True:
        if base is None:
            base = yield from _read_base(ref, serde, wanted, uid)
        edits = _edits(serde, base, wanted)
        rest = dump(serde, dict(wanted.rest))
        request = _request(ref, serde, edits, wanted, rest)
        request.options.expected_uid = base.uid or uid
        if not base.version:  # else the thread is there, and has its settings
            request.options.create.CopyFrom(create.to_proto())
        request.ack_signals.extend(acks)
        joined = _join(request, written)
        try:
            saved = yield from _save(request, base, owns=owns)
            break
        except _NOT_TOGETHER as error:
            if not joined or error.retryable:  # it was repeated to its end
                raise
            written = ()
        except _STALE as error:
            bases.forget(ref)
            if not known or (owns and isinstance(error, VersionMismatch)):
                raise
            base, known = None, False  # what is remembered is not what is there: look
    creations.note(ref, name, saved.receipt.uid)
    for each in joined:
        each.is_over = True
    if acks:
        ANSWERS.forget(uid, acks)
    _keep(ref, bases, wanted, edits, rest, saved)


def _join(request: checkpoints.SaveRequest, written: Sequence[Writes]) -> list[Writes]:
    """Adds what tasks wrote to a save, if they expect the same thread. Returns those that were added."""
    joined = [each for each in written if each.uid in ("", request.options.expected_uid)]
    request.effects.extend(effect for each in joined for effect in each.effects)
    return joined


def _keep(
    ref: ThreadRef, bases: Bases, wanted: Put, edits: Edits, rest: tuple[str, bytes], saved: checkpoints.SaveResponse
) -> None:
    """Remembers a checkpoint that was written."""
    if all(each.first is not None for each in edits.channels.values()):
        digest, uid = saved.receipt.digest, saved.receipt.uid
        kept = Base(saved.version, wanted.channel_versions, edits.channels, digest, uid, rest)
        bases.keep(ref, wanted.checkpoint_id, kept)
    else:
        bases.forget(ref)  # the next checkpoint reads where the new log begins


def _read_base(ref: ThreadRef, serde: Serializer, wanted: Put, uid: str) -> Operation[Base]:
    """Reads the parent. If it is no longer there, the checkpoint is written whole, on top of the empty state."""
    if not wanted.parent_id:
        return Base(uid=uid)
    try:
        pages = yield from read_pages(ref.on_branch(checkpoints.HydrateRequest, version=by_id(wanted.parent_id)))
    except (ThreadNotFound, VersionNotFound, VersionPruned):
        if uid and wanted.metadata.get(DELTA_COUNTERS):
            message = f"checkpoint {wanted.parent_id}, from which delta channels are made, is no longer there"
            raise thread_error(VersionNotFound, ref.thread, message, reason="VERSION_NOT_FOUND") from None
        return Base(uid=uid)
    found_uid = pages.last.checkpoint.uid
    if uid and found_uid != uid:
        message = (
            f"thread {ref.thread!r} was deleted and made again; checkpoint {wanted.parent_id} is of the deleted one"
        )
        facts = {"uid": found_uid, "expected_uid": uid}
        raise thread_error(UidMismatch, ref.thread, message, reason="UID_MISMATCH", **facts)
    found = _found(serde, pages)
    return Base(uid=found_uid) if found is None else found.base


def _edits(serde: Serializer, base: Base, wanted: Put) -> Edits:
    """A channel is unchanged if its version is that of the parent, and it is not said to be new."""
    edits = Edits(serde, base.channels, is_new=base.version == 0)
    for channel, version in wanted.channel_versions.items():
        if channel not in wanted.values:
            continue
        is_new = channel in wanted.new_versions or not edits.has(channel)
        if is_new or base.channel_versions.get(channel) != version:
            with Placed(wanted.thread_id, f"channel {channel!r}"):
                edits.put(channel, wanted.values[channel])
        else:
            edits.keep(channel)
    edits.finish()
    return edits


def _request(
    ref: ThreadRef, serde: Serializer, edits: Edits, wanted: Put, rest: tuple[str, bytes]
) -> checkpoints.SaveRequest:
    about = {"metadata": dict(wanted.metadata), "parent_id": wanted.parent_id}
    if text_of(ref.thread) is None:
        about["thread_id"] = escape(wanted.thread_id)
    if namespace_of(ref.branch) is None:
        about["checkpoint_ns"] = escape(wanted.checkpoint_ns)
    first = diff_pb2.Edit(set_slot=diff_pb2.SetSlot(slot=REST, value=to_value(*rest)))
    request = ref.on_branch(
        checkpoints.SaveRequest, checkpoint_id=name_for(wanted.checkpoint_id), request_id=new_request_id(),
        metadata=_metadata(serde, about, wanted), diff=diff_pb2.Diff(edits=[first, *edits.edits]),
    )  # fmt: skip
    if ref.branch == MAIN:
        request.status = status_of(wanted.rest, wanted.values, wanted.metadata.get("source"))
    if isinstance(step := wanted.metadata.get("step"), int) and INT_MIN <= step <= INT_MAX:
        request.step = step
    if isinstance(run_id := wanted.metadata.get(RUN_LABEL), str) and run_id:
        request.labels[RUN_LABEL] = name_for(run_id)
    return request


def _metadata(serde: Serializer, about: Mapping[str, Any], wanted: Put) -> state_pb2.Value:
    with Placed(wanted.thread_id, "the metadata"):
        return to_value(*dump(serde, about))


def _save(request: checkpoints.SaveRequest, base: Base, *, owns: bool) -> Operation[checkpoints.SaveResponse]:
    """Saves on top of the base, or beside the versions that were saved on top of it since."""
    request.options.expected_version, request.options.expected_digest = base.version, base.digest
    try:
        answer: checkpoints.SaveResponse = yield Call("Save", request)
    except VersionMismatch:
        if owns:
            raise
        request.options.ClearField("expected_version")
        request.options.ClearField("expected_digest")
        request.parent.version, request.parent.digest = base.version, base.digest
        answer = yield Call("Save", request)
    return answer


def about(serde: Serializer, message: checkpoint_pb2.Checkpoint) -> tuple[dict[str, Any], str]:
    """Metadata and parent's checkpoint id of a version."""
    found = serde.loads_typed(from_value(message.metadata))
    return found["metadata"], found["parent_id"]


def place_of(serde: Serializer, message: checkpoint_pb2.Checkpoint) -> tuple[str, str]:
    """Thread id and checkpoint namespace of a version."""
    thread_id, namespace = text_of(message.thread), namespace_of(message.branch)
    if thread_id is None or namespace is None:
        found = serde.loads_typed(from_value(message.metadata))
        if thread_id is None:  # a copy of a thread has the id of the original
            told = unescape(found.get("thread_id", ""))
            thread_id = told if thread_of(told) == message.thread else message.thread
        if namespace is None:
            namespace = unescape(found["checkpoint_ns"])
    return thread_id, namespace
