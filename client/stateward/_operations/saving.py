"""Operations that write versions."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Protocol, TypedDict

from stateward import values
from stateward._operations import threads
from stateward._operations.migration_lease import Patience
from stateward._operations.reading import hydrate_stored
from stateward._operations.steps import Call, Operation, ThreadRef, check_options, new_request_id
from stateward._operations.uploads import learn_support, write_blobs
from stateward._state.log import Log
from stateward._state.unsaved import Unsaved
from stateward._workspace.git import attributes_of
from stateward.arguments import instance, several, text
from stateward.attributes import Attribute, read_attributes, write_attributes
from stateward.durations import Duration
from stateward.effects import Effect, effects_to_proto
from stateward.errors import InvalidField, LeaseHeld, NotArchivedYet, SchemaMismatch, VersionMismatch
from stateward.fromproto import read_map, read_member, read_time
from stateward.models import Checkpoint, Durability, Status, Tree, choice_number
from stateward.options import ThreadOptions
from stateward.signals import Question, Signal
from stateward.state import Origin, State
from stateward.v1 import checkpoint_service_pb2 as checkpoints
from stateward.v1 import diff_pb2, state_pb2, workspace_pb2
from stateward.v1.checkpoint_pb2 import AttributeValue
from stateward.workspaces import GitHead, Snapshot

ACKNOWLEDGED = "signals or of their ids"
ATTRIBUTES_MAX, ATTRIBUTES_BYTES_MAX = 64, 16 << 10
"""So many attributes a version may have, and so many bytes of them."""
MERGES_MAX = 10
"""How often edits are prepared again because their thread was migrated in the meantime."""


class HeldToken(Protocol):
    """A lease that is held, by its fencing token."""

    @property
    def token(self) -> int: ...


class HeldElsewhere(HeldToken, Protocol):
    """A lease that is held on a named thread, such as a lock."""

    @property
    def thread(self) -> str: ...


class SaveOptions(TypedDict, total=False):
    """What a save records besides the state. Every option has a default."""

    step: int | None
    """The agent's own step number; may be negative."""
    status: Status | str | None
    """The status of the work, as a Status or its name in any case, such as "waiting". None = RUNNING; for a save
    without a state, such as an append, None = unchanged."""
    status_detail: str
    """A text about the status, at most 4 KiB."""
    checkpoint_id: str
    """A name for the version, unique in its branch."""
    labels: Mapping[str, str] | None
    """At most 64 labels. They are indexed: `checkpoints.list(labels=…)` finds versions by them, and
    `client.checkpoints` does among all threads."""
    attributes: Mapping[str, Attribute] | None
    """At most 64 typed facts (text, int, float, bool), 16 KiB together. They cost a save less than labels, because no
    index holds them. `checkpoints.list(where=…)` selects by them."""
    metadata: Any
    """One opaque value, at most 1 MiB."""
    metrics: Mapping[str, float] | None
    """At most 64 numbers, such as tokens or cost; by convention cumulative."""
    schema_version: int
    """The agent's number for the shape of its state; 0 = not given. The default is the number of the state."""
    durability: Durability | str | None
    """The level that must be reached before the daemon answers; None = the daemon's default. "archived" can raise
    NotArchivedYet, although the version is saved."""
    request_id: str | None
    """Lets another process repeat this save safely. None = a new id for this call and all its retries."""
    create: ThreadOptions | None
    """The options of the thread, if this call creates it."""
    overwrite: bool
    """Saves the whole state on top of any head: the last writer wins."""
    lease: HeldToken | None
    """The lease under which to save; None = the lease that was taken through this handle, if there is one."""
    guard: HeldElsewhere | None
    """A lease or lock on another thread: the save raises LeaseHeld if it is lost. Not in a writer."""
    on_mismatch: Literal["fail", "fork"] | None
    """What happens if the branch's head is not the version of the state: "fail" raises VersionMismatch, as None does;
    "fork" saves on a new branch, made from the version of the state. `checkpoint.branch` names the branch, and
    `thread.branch(checkpoint.branch)` goes on with the state. Not in a writer."""
    fork_branch: str
    """The branch that "fork" makes; it must not exist. "" = such as "main-fork-7", with the number of the version."""
    wait_id: str
    """The name of what a WAITING agent waits for."""
    effects: Iterable[Effect] | None
    """At most 1,000 results that are recorded with the version, all or none."""
    question: Question | None
    """The question that the agent asks; needs `wait_id`. `thread.ask` sets status, `wait_id` and question."""
    workspace: Snapshot | None
    """The files of the version: what `snapshot` of `thread.workspace` returned. A version without it names none."""
    ack: Iterable[Signal | str]
    """Signals that are done with, or their ids. Ids of signals that do not exist are ignored. Do not name
    `state.answer`: a save that goes on from the question acknowledges it by itself."""


@dataclass(frozen=True)
class PreparedSave:
    """A save that `save_all` makes together with others."""

    ref: ThreadRef
    state: State
    options: SaveOptions

    def __post_init__(self) -> None:
        require_state(self.state, "a save")
        object.__setattr__(self, "options", repeatable(self.options))


def repeatable(options: SaveOptions) -> SaveOptions:
    """Returns the options for several requests: an iterator would give its items to the first request only."""
    given: Any = options
    what = {"effects": "Effects", "ack": ACKNOWLEDGED}
    lists: Any = {name: tuple(several(given[name], name, what[name])) for name in what if given.get(name) is not None}
    return {**options, **lists}


def labels_of(options: SaveOptions) -> Mapping[str, str]:
    """Returns the labels among the options, to which an operation adds some."""
    return instance(options.get("labels") or {}, "labels", Mapping, "a dict of texts")


def require_state(state: Any, what: str) -> None:
    """Raises TypeError unless it is a state. The error calls the operation `what`."""
    if not isinstance(state, State):
        raise TypeError(f"{what} takes the State that hydrate returned, not {state!r:.100}")


def save(ref: ThreadRef, state: State, options: SaveOptions) -> Operation[Checkpoint]:
    """Saves the changes of `state` as one version. The state then continues from that version."""
    return (yield from save_all([PreparedSave(ref, state, options)], single=True))[0]


def save_all(saves: Sequence[PreparedSave], *, single: bool = False) -> Operation[list[Checkpoint]]:
    """Saves one version in each of several threads, all or none. Raises NotArchivedYet for the first version that is
    less durable than asked."""
    given: Sequence[Any] = saves
    if wrong := [each for each in given if not isinstance(each, PreparedSave)]:
        raise TypeError(f"save_all takes what thread.prepare returned, not {wrong[0]!r:.100}")
    states = [each.state for each in saves]
    if any(state.saving for state in states) or len(set(map(id, states))) < len(states):
        raise RuntimeError("this state is being saved already; wait for that save")
    for state in states:
        state.saving = True
    try:
        parts = []
        for each in saves:
            if unnumbered := each.state._logs_without_numbers():
                yield from learn_numbers(each.ref, each.state, unnumbered)
            request, unsaved = save_request(each)
            if unsaved.blobs:
                request, unsaved = yield from store_blobs(each, request, unsaved)
            parts.append((request, unsaved))
        requests = [request for request, _ in parts]
        responses = yield from _send(saves, requests, single=single)
        made = list(map(read_checkpoint, requests, responses))
        for each, (request, unsaved), checkpoint in zip(saves, parts, made, strict=True):
            go_on(each.ref, each.state, request, unsaved, checkpoint)
        require_durable(requests, made)
        return made
    finally:
        for state in states:
            state.saving = False


def _send(
    saves: Sequence[PreparedSave], requests: Sequence[checkpoints.SaveRequest], *, single: bool
) -> Operation[Sequence[checkpoints.SaveResponse]]:
    """Sends the requests of some saves, and returns the answers."""
    try:
        if single:
            return [(yield Call("Save", requests[0]))]
        answer: checkpoints.BatchSaveResponse = yield Call("BatchSave", checkpoints.BatchSaveRequest(saves=requests))
        return answer.saves
    except VersionMismatch as error:
        raise _advise(error, saves) from None
    except InvalidField as error:
        note_lost_objects(error, [each.options for each in saves])
        raise


def learn_numbers(ref: ThreadRef, state: State, logs: list[Log]) -> Operation[None]:
    """Asks the daemon for the next indexes of new logs, since a log of the same name may have been deleted before."""
    with ref.held.working_on_the_same():
        found = yield from hydrate_stored(ref, state.version, logs={log.name: 1 for log in logs})
    for log in logs:
        log._renumber(found.logs[log.name].next_index)


def store_blobs(
    prepared: PreparedSave, request: checkpoints.SaveRequest, unsaved: Unsaved
) -> Operation[tuple[checkpoints.SaveRequest, Unsaved]]:
    """Writes the blobs of a save. Returns the save without blobs if the daemon does not support them."""
    if not (yield from learn_support(prepared.ref)):
        return save_request(prepared)
    is_first = not prepared.state.version or prepared.options.get("overwrite")  # then they may make the thread
    create = (prepared.options.get("create") or ThreadOptions()) if is_first else None
    yield from write_blobs(prepared.ref, unsaved.blobs, create, request.options.expected_uid)
    return request, unsaved


def require_durable(requests: Iterable[checkpoints.SaveRequest], made: Sequence[Checkpoint]) -> None:
    """Raises NotArchivedYet for the first version that is less durable than its request asks."""
    for request, checkpoint in zip(requests, made, strict=True):
        if (checkpoint.durability or 0) < request.options.durability:
            raise NotArchivedYet(checkpoint.thread, checkpoint.sequence, checkpoint, made)


def go_on(
    ref: ThreadRef, state: State, request: checkpoints.SaveRequest, unsaved: Unsaved, checkpoint: Checkpoint
) -> None:
    """Makes a state continue from the version that was saved from it."""
    origin = Origin(ref.namespace, ref.thread, checkpoint.branch or ref.branch)
    state._rebase(unsaved, checkpoint, origin, whole=request.overwrite)
    ref.held.read_uid = checkpoint.uid or ref.held.read_uid
    state._acknowledge(request.ack_signals)
    state._read_blobs_through(ref.blobs)
    state._keep_blobs(unsaved.blobs)


def save_request(prepared: PreparedSave) -> tuple[checkpoints.SaveRequest, Unsaved]:
    ref, state, options = prepared.ref, prepared.state, prepared.options
    request = bare_request(ref, options)
    if options.get("schema_version") is None:
        current = ref.migrations.current if ref.migrations is not None and state.version == 0 else 0
        request.schema_version = state.schema_version or current
    answer = _used_answer(ref, state, request.wait_id)
    if answer is not None and answer.id not in request.ack_signals:
        request.ack_signals.append(answer.id)
    if ref.ephemeral:  # the state may have been made here, or read through another handle
        state._keep_out(ref.ephemeral)
    threshold = ref.blobs.policy.threshold_bytes if ref.blobs is not None else 0
    origin = state.origin
    is_of_thread = origin is not None and (origin.namespace, origin.thread) == (ref.namespace, ref.thread)
    if is_of_thread and state.checkpoint is not None and state.checkpoint.uid:
        # The state continues this creation of the thread, and no other.
        request.options.expected_uid = state.checkpoint.uid
    if request.overwrite:
        unsaved = state._collect(blob_threshold=threshold)
        request.state.CopyFrom(state._whole(unsaved))
        return request, unsaved
    if origin is not None and not is_of_thread:
        raise ValueError(f"this state belongs to thread {origin.thread!r}, not {ref.thread!r}; fork copies a state")
    if state.version == 0 or origin is None:
        request.options.expected_version = 0
    elif origin.branch == ref.branch:
        request.options.expected_version, request.options.expected_digest = state.version, state.digest
    elif ref.at == state.version:
        request.options.expected_version = 0
        request.parent.version, request.parent.digest = state.version, state.digest
    else:
        raise ValueError(
            f"this state is version {state.version} of branch {origin.branch!r}; to continue on another branch: "
            f'thread.branch("{ref.branch}", at={state.version}).save(state)'
        )
    request.diff.SetInParent()  # a version may change nothing
    return request, state._collect(request.diff, threshold)


def _used_answer(ref: ThreadRef, state: State, wait_id: str) -> Signal | None:
    """Returns the answer that a save acknowledges by itself, because the save ends the question.

    The question and its answer end in one version. If the answer ended later, an agent that crashes in between would
    use it twice. If it ended earlier, with `hydrate` or with a read of `state.answer`, a crash would lose it. An answer
    that came after `hydrate` is not in the state, and stays. Other branches neither ask nor end a question.
    """
    answer = state._waiting_answer if ref.branch == "main" else None
    return None if answer is None or answer.wait_id == wait_id else answer


_ON_MISMATCH = {"fail": checkpoints.ON_MISMATCH_FAIL, "fork": checkpoints.ON_MISMATCH_FORK}
# Options that have another form in the request.
_WRITERS: dict[str, Callable[[Any], Any]] = {
    "attributes": write_attributes,
    "status": partial(choice_number, Status),
    "durability": partial(choice_number, Durability),
    "metadata": lambda value: values.encode(value, "metadata"),
    "create": ThreadOptions.to_proto,
    "effects": effects_to_proto,
    "question": Question.to_proto,
    "guard": lambda lease: checkpoints.LeaseGuard(
        thread=lease.thread, token=lease.token, expected_uid=getattr(lease, "uid", "")
    ),
    "on_mismatch": lambda choice: _ON_MISMATCH[choice],
}


_TAKEN = {
    "create": "ThreadOptions", "question": "a Question", "guard": "a lease or lock that is held",
}  # fmt: skip


def bare_request(ref: ThreadRef, options: SaveOptions) -> checkpoints.SaveRequest:
    """Returns a SaveRequest without content and without an expected version."""
    check_options(options, SaveOptions, "save")
    if (choice := options.get("on_mismatch")) is not None and choice not in _ON_MISMATCH:
        raise ValueError(f"on_mismatch is one of {', '.join(_ON_MISMATCH)}, not {choice!r}")
    fields: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    for name, write in _WRITERS.items():
        if name in fields:
            try:
                fields[name] = write(fields[name])
            except AttributeError:
                wanted = _TAKEN.get(name, "another value")
                raise TypeError(f"{name} takes {wanted}, not {fields[name]!r:.100}") from None
    if "ack" in fields:
        done = several(fields.pop("ack"), "ack", ACKNOWLEDGED)
        fields["ack_signals"] = [each.id if isinstance(each, Signal) else each for each in done]
    if "workspace" in fields:
        taken = fields["workspace"]
        fields.update(_workspace_of(ref, taken))
        fields["attributes"] = _with_git(taken.git, fields.get("attributes", {}))
    fields["request_id"] = fields.get("request_id") or new_request_id()
    lease = fields.pop("lease", None)
    if lease is None:
        fields["lease_token"], fields["expected_uid"] = ref.held.for_call(), ref.held.lease_uid
    elif not hasattr(lease, "token"):
        raise TypeError(f"lease takes a lease that is held, not {lease!r:.100}")
    else:
        fields["lease_token"], fields["expected_uid"] = lease.token, getattr(lease, "uid", "")
    note_call = getattr(lease, "_note_call", None)
    if note_call is not None:  # an open writer, which tells the versions of its frames in advance
        note_call()
    return ref.on_branch(checkpoints.SaveRequest, **fields)


def _workspace_of(ref: ThreadRef, taken: Any) -> dict[str, Any]:
    """Returns the fields that name the files of a version."""
    if not isinstance(taken, Snapshot):
        raise TypeError(f"workspace takes what workspace.snapshot() returned, not {taken!r:.100}")
    if (taken.namespace, taken.thread) != (ref.namespace, ref.thread):
        raise ValueError(f"this snapshot was taken for thread {taken.thread!r}, not for {ref.thread!r}: take it there")
    tree = taken.tree
    named = workspace_pb2.TreeRef(digest=tree.digest, files=tree.files, size_bytes=tree.size_bytes)
    return {"workspace": named, "objects": taken.objects}


def _with_git(head: GitHead | None, given: dict[str, AttributeValue]) -> dict[str, AttributeValue]:
    """Returns the attributes of a version, with those that say where git was. The caller's own come first: they alone
    are sent if all together would be too many, since the daemon refuses such a save."""
    found = {**write_attributes(attributes_of(head)), **given}
    size_bytes = sum(len(key.encode()) + max(len(value.string_value.encode()), 8) for key, value in found.items())
    return found if len(found) <= ATTRIBUTES_MAX and size_bytes <= ATTRIBUTES_BYTES_MAX else given


def note_lost_objects(error: InvalidField, saves: Iterable[SaveOptions]) -> None:
    """Has the next snapshot ask for all objects, if the thread lacks one of those that a save names."""
    for each in saves:
        taken = each.get("workspace")
        if taken is not None and "workspace" in error.field:
            taken.forget()


def read_checkpoint(request: checkpoints.SaveRequest, response: checkpoints.SaveResponse) -> Checkpoint:
    """Returns the version that a request and its answer describe together."""
    return Checkpoint(
        namespace=request.namespace,
        thread=request.thread,
        uid=response.receipt.uid,
        version=response.version,
        parent_version=response.parent_version,
        branch=response.branch or request.branch,
        checkpoint_id=request.checkpoint_id,
        digest=response.receipt.digest,
        status=read_member(Status, request.status or response.status) or Status.RUNNING,
        status_detail=request.status_detail,
        step=request.step if request.HasField("step") else None,
        schema_version=request.schema_version or response.schema_version,
        labels=read_map(request.labels),
        metrics=read_map(request.metrics),
        create_time=read_time(response.create_time),
        edit_bytes=request.diff.ByteSize() if request.HasField("diff") else request.state.ByteSize(),
        stored_bytes=response.stored_bytes,
        sequence=response.receipt.sequence,
        durability=read_member(Durability, response.receipt.durability),
        wait_id=request.wait_id or response.wait_id,
        replayed=response.receipt.replayed,
        metadata_value=request.metadata if request.HasField("metadata") else None,
        question=Question.from_proto(request.question) if request.HasField("question") else None,
        parent_checkpoint_id=response.parent_checkpoint_id,
        attributes=read_attributes(request.attributes) if request.attributes else {},
        workspace=Tree.from_proto(request.workspace) if request.HasField("workspace") else None,
    )


def _advise(error: VersionMismatch, saves: Sequence[PreparedSave]) -> VersionMismatch:
    """Returns the same error, with advice that names the methods of this client."""
    state = next((each.state for each in saves if each.state.pinned), saves[0].state)
    if state.pinned:
        advice = (
            f"this state was hydrated at version {state.version}, which is not the head; to continue from it on a new "
            f'branch: thread.branch("name", at={state.version}).save(state)'
        )
    else:
        advice = "somebody saved in between: hydrate, redo the change and save again, as thread.update(fn) does"
    return VersionMismatch(f"{error.message}; {advice}", reason=error.reason, code=error.code, metadata=error.metadata)


def finish(ref: ThreadRef, state: State, ttl: Duration | None, options: SaveOptions) -> Operation[Checkpoint]:
    """Saves the last version of a run, unless it is saved already, then sets the TTL. The TTL runs from that save."""
    require_state(state, "finish")
    expiring = None if ttl is None else ThreadOptions(ttl=ttl)
    status = options.get("status") or Status.COMPLETED
    options = {**options, "status": status}
    last = state.checkpoint
    if last is not None:  # lists and exports find a run by these
        options = {"step": last.step, "metrics": last.metrics, **options}
    is_there = last is not None and last.status == choice_number(Status, status) and not state._collect().diff.edits
    if last is None or not is_there:
        if expiring is not None and not state.version and options.get("create") is None:
            options["create"] = expiring
        last = yield from save(ref, state, options)
    if ttl is not None:  # not before the save: an unfinished thread must not expire if its agent dies in between
        yield from threads.update_options(ref, {"ttl": ttl})
    return last


def append(ref: ThreadRef, log: str, entries: Sequence[Any], options: SaveOptions) -> Operation[Checkpoint]:
    """Appends entries on top of the branch's head, without reading it."""
    if not entries:
        raise ValueError("append needs at least one value")
    text(log, "the name of a log")
    request = yield from begin_merge("append", ref, options)
    edit = request.diff.edits.add().append
    edit.log = log
    encoded = [values.encode(value, f"logs.{log}[{position}]") for position, value in enumerate(entries)]
    edit.entries.extend((yield from store_values(ref, encoded, options, request.options.expected_uid)))
    return (yield from merge(ref, request))


def begin_merge(what: str, ref: ThreadRef, options: SaveOptions) -> Operation[checkpoints.SaveRequest]:
    """Returns a SaveRequest for edits on top of the branch's head, whatever it is. Errors call the operation `what`."""
    if options.get("overwrite"):
        raise TypeError(f"{what} has no option overwrite")
    if ref.at is not None:
        raise ValueError(
            f"{what} does not make a branch: save a state to {ref.branch!r} once, "
            f'then {what} through thread.branch("{ref.branch}")'
        )
    if ref.migrations is not None and options.get("schema_version") is None:
        options = {**options, "schema_version": (yield from ref.migrations._prepare_append(ref))}
    request = bare_request(ref, options)
    request.options.expected_uid = request.options.expected_uid or ref.held.read_uid
    return request


def store_values(
    ref: ThreadRef, encoded: Sequence[state_pb2.Value], options: SaveOptions, uid: str, *, may_make: bool = True
) -> Operation[Sequence[state_pb2.Value]]:
    """Returns the values for such edits. Writes those above the threshold as blobs: to the creation `uid` of the
    thread, as the save that follows. `may_make`: whether this save, and so a blob, may make the thread."""
    threshold = ref.blobs.policy.threshold_bytes if ref.blobs else 0
    unsaved = Unsaved(diff_pb2.Diff(), blob_threshold=threshold)
    taken = [unsaved.take(value) for value in encoded]
    if unsaved.blobs and not (yield from learn_support(ref)):
        return encoded
    create = (options.get("create") or ThreadOptions()) if may_make else None
    yield from write_blobs(ref, unsaved.blobs, create, uid)
    return taken


def merge(ref: ThreadRef, request: checkpoints.SaveRequest) -> Operation[Checkpoint]:
    """Saves such edits. Raises NotArchivedYet if they are saved less durably than asked."""
    return accept_merge(request, (yield from send_merge(ref, request)))


def send_merge(ref: ThreadRef, request: checkpoints.SaveRequest) -> Operation[checkpoints.SaveResponse]:
    """Sends such edits, and returns the answer."""
    patience, attempts = Patience(), 0
    while True:
        try:
            response: checkpoints.SaveResponse = yield Call("Save", request)
            return response
        except LeaseHeld as error:  # it may be the short lease of a migration
            yield from patience.wait(error)
        except SchemaMismatch:  # the head got another schema in the meantime
            attempts += 1
            if ref.migrations is None or request.schema_version != ref.migrations.current or attempts == MERGES_MAX:
                raise
            yield from ref.migrations._prepare_append(ref)


def accept_merge(request: checkpoints.SaveRequest, response: checkpoints.SaveResponse) -> Checkpoint:
    """Returns the version of such edits. Raises NotArchivedYet if it is less durable than asked."""
    checkpoint = read_checkpoint(request, response)
    require_durable([request], [checkpoint])
    return checkpoint
