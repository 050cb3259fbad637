"""Operations on threads as a whole, and on the daemon."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, NoReturn, SupportsIndex, TypedDict, Unpack

from google.protobuf.field_mask_pb2 import FieldMask

from stateward._operations.steps import (
    Call,
    Operation,
    ThreadRef,
    check_options,
    expectation,
    new_request_id,
    thread_error,
    timestamp,
    unchanged,
    version_ref,
)
from stateward.admin import Compaction, Diagnoses, DrainResult, Rekeyed, ServerInfo, Stats
from stateward.arguments import instance, message, several, text, whole_number
from stateward.durations import Duration, seconds, span
from stateward.errors import (
    DeadlineExceeded,
    Locked,
    NotArchivedYet,
    StatewardError,
    ThreadNotFound,
    ThreadsUnreadable,
    UidMismatch,
)
from stateward.fromproto import read_member
from stateward.models import (
    At,
    Checkpoint,
    Durability,
    DurableResult,
    HeldThread,
    MovedHead,
    PruneResult,
    Status,
    Tag,
    ThreadFilters,
    ThreadInfo,
    UnreadableThread,
    choice_number,
)
from stateward.options import Retention, ThreadOptions, options_to_proto
from stateward.v1 import admin_service_pb2 as admin
from stateward.v1 import checkpoint_pb2, thread_pb2
from stateward.v1 import thread_service_pb2 as threads
from stateward.v1.error_reason_pb2 import ERROR_REASON_LOCKED
from stateward.v1.write_pb2 import Receipt

PAGE_MAX = 1000
_LONG_AGO = datetime.fromtimestamp(0, UTC)
GRACE_MAX_S = 3600.0
# The deadline of a drain is this much longer than its grace time: the daemon answers when the grace time ends.
DRAIN_MARGIN_S = 5.0
# The deadline of a drain with the daemon's own grace time, which the client does not know.
DIAGNOSE_DEADLINE_S = 120.0
COMPACT_DEADLINE_S = 6 * 3600.0
DRAIN_DEADLINE_S = 3600.0
LOCAL_LOOK_S = 1.0
"""The most time to find out the uid of a thread that is deleted on this disk only."""
NO_UID = "0" * 32
"""A uid that no thread has."""
# An error names so many threads that cannot be opened.
NAMED_MAX = 10


class OptionChanges(TypedDict, total=False):
    """Changes of a thread's options. Options that are not given stay as they are; None clears an option."""

    labels: Mapping[str, str] | None
    ttl: Duration | None
    retention: Retention | None
    parent_thread: str | None
    agent: str | None


def get_thread(ref: ThreadRef) -> Operation[ThreadInfo]:
    """Returns what the daemon knows about the thread."""
    return ThreadInfo.from_proto((yield Call("GetThread", ref.about(threads.GetThreadRequest))))


_KINDS: dict[str, tuple[Any, str]] = {
    **dict.fromkeys(("step", "min_step", "max_step", "page_size"), (SupportsIndex, "a whole number")),
    "updated_before": (datetime, "a datetime"),
    "name_prefix": (str, "a text"),
    **dict.fromkeys(("has_versions", "has_records"), (bool, "True or False")),
    "labels": (Mapping, "a dict of texts"),
}


def list_threads(namespace: str, **filters: Unpack[ThreadFilters]) -> threads.ListThreadsRequest:
    """Returns the request for the first page. Raises TypeError for a filter of the wrong type, or one given twice."""
    check_options(filters, ThreadFilters, "a list of threads")
    given: dict[str, Any] = {name: value for name, value in filters.items() if value is not None}
    for name in given.keys() & _KINDS.keys():
        _require(name, given[name], *_KINDS[name])
    labels, statuses = given.get("labels", {}), given.pop("statuses", ())
    if not all(isinstance(text, str) for pair in labels.items() for text in pair):
        raise TypeError(f"labels takes a dict of texts, not {labels!r}")
    if isinstance(statuses, str):
        raise TypeError(f"statuses takes a list; status takes one, such as {statuses!r}")
    numbers = [choice_number(Status, each, "statuses") for each in several(statuses, "statuses", "Statuses")]
    if "status" in given:
        numbers = [choice_number(Status, given.pop("status"))] if not numbers else _said_twice("status", "statuses")
    if "step" in given:
        if given.keys() & {"min_step", "max_step"}:
            _said_twice("step", "min_step and max_step")
        given["min_step"] = given["max_step"] = given.pop("step")
    after = since(given.pop("updated_within", None), given.pop("updated_after", None))
    before = given.pop("updated_before", None)
    return threads.ListThreadsRequest(
        namespace=namespace,
        statuses=numbers,  # type: ignore[arg-type]
        updated_after=timestamp(after),
        updated_before=timestamp(before),
        **given,
    )


def since(updated_within: Duration | None, updated_after: datetime | None) -> datetime | None:
    """Returns the time that `updated_within` or `updated_after` gives; None = neither is given."""
    _require("updated_after", updated_after, datetime, "a datetime")
    if updated_within is None:
        return updated_after
    if updated_after is not None:
        _said_twice("updated_within", "updated_after")
    return datetime.now(UTC) - span(updated_within, "updated_within")


def count_threads(
    namespace: str, updated_within: Duration | None, updated_after: datetime | None, updated_before: datetime | None
) -> Operation[dict[Status | int, int]]:
    """Returns the number of threads for each status that a thread has."""
    _require("updated_before", updated_before, datetime, "a datetime")
    request = threads.CountThreadsRequest(
        namespace=namespace,
        updated_after=timestamp(since(updated_within, updated_after)),
        updated_before=timestamp(updated_before),
    )
    response: threads.CountThreadsResponse = yield Call("CountThreads", request)
    counts = {read_member(Status, each.status) or Status.RUNNING: each.count for each in response.counts}
    if found := damaged(response.unreadable):
        error = unreadable(found)
        error.counts = counts
        raise error
    return counts


def _require(name: str, value: object, kind: Any, what: str) -> None:
    if value is not None and not isinstance(value, kind):
        raise TypeError(f"{name} takes {what}, not {value!r}")


def _said_twice(short: str, long: str) -> NoReturn:
    raise TypeError(f"give {short} or {long}, not both")


def read_threads(
    request: threads.ListThreadsRequest, into: dict[str, thread_pb2.UnreadableThread] | None = None
) -> Operation[list[ThreadInfo]]:
    """Returns a page, and sets the request's page token for the next one; an empty token = there is none.

    Adds threads that cannot be opened to `into`.
    """
    page: threads.ListThreadsResponse = yield Call("ListThreads", request)
    request.page_token = page.next_page_token
    if into is not None:
        into.update((each.uid or each.message, each) for each in damaged(page.unreadable))
    return list(map(ThreadInfo.from_proto, page.threads))


def held_threads(namespace: str) -> Operation[list[HeldThread]]:
    """Returns what lists say of held threads, the most recently changed first."""
    request, found = threads.ListThreadsRequest(namespace=namespace, page_size=PAGE_MAX), dict[str, HeldThread]()
    while True:
        page: threads.ListThreadsResponse = yield Call("ListThreads", request)
        held = [each for each in page.unreadable if each.reason == ERROR_REASON_LOCKED]
        found.update((each.uid, HeldThread.from_proto(each)) for each in held)
        request.page_token = page.next_page_token
        if not request.page_token:
            return sorted(found.values(), key=lambda each: each.update_time or _LONG_AGO, reverse=True)


def damaged(found: Iterable[thread_pb2.UnreadableThread]) -> list[thread_pb2.UnreadableThread]:
    """Returns the threads that cannot be opened because of damage. Held threads are no damage: no list shows them."""
    return [each for each in found if each.reason != ERROR_REASON_LOCKED]


def unreadable(found: Iterable[thread_pb2.UnreadableThread]) -> ThreadsUnreadable:
    """Returns the error that names threads that cannot be opened."""
    each = [UnreadableThread.from_proto(message) for message in found]
    named = [f"{one.name or 'uid ' + (one.uid or 'unknown')} ({one.message})" for one in each[:NAMED_MAX]]
    more = f", and {len(each) - NAMED_MAX} more" if len(each) > NAMED_MAX else ""
    what = "1 thread cannot be opened" if len(each) == 1 else f"{len(each)} threads cannot be opened"
    error = ThreadsUnreadable(f"{what}: {', '.join(named)}{more}", reason="CORRUPT", code="DATA_LOSS")
    error.threads = tuple(each)
    return error


def fork(
    ref: ThreadRef, new_thread: str, at: At | None, all_versions: bool,
    create: ThreadOptions | None,
) -> Operation[ThreadInfo]:
    """Copies one version, or the whole thread, to a new thread."""
    request = ref.about(
        threads.ForkThreadRequest,
        branch="" if all_versions else ref.branch,
        version=version_ref(at),
        new_thread=new_thread,
        all_versions=all_versions,
        create=options_to_proto(create),
        request_id=new_request_id(),
    )
    return ThreadInfo.from_proto((yield Call("ForkThread", request)).thread)


def prune(
    ref: ThreadRef,
    versions: Iterable[int] | None,
    older_than: Duration | None,
    keep_latest_per_branch: int | None,
    dry_run: bool,
    move_heads: bool = False,
    expected: Checkpoint | ThreadInfo | int | None = None,
    expected_uid: str = "",
    plan: PruneResult | None = None,
) -> Operation[PruneResult]:
    """Removes versions."""
    _require("plan", plan, PruneResult, "the result of a dry run")
    if plan is not None and plan.plan is None and plan.pruned_versions:
        raise TypeError("plan takes the result of a dry run")
    if plan is not None and dry_run:
        raise TypeError("prune takes plan or dry_run, not both")
    if sum(each is not None for each in (versions, older_than, keep_latest_per_branch)) != 1:
        raise TypeError("prune takes exactly one of versions, older_than and keep_latest_per_branch")
    request = ref.to_write(
        threads.PruneThreadRequest,
        **{**expectation(expected), **({"expected_uid": expected_uid} if expected_uid else {})},
        versions=None if versions is None else spans_of(versions),
        older_than=None if older_than is None else span(older_than, "older_than"),
        keep_latest_per_branch=keep_latest_per_branch,
        move_heads=move_heads,
        lease_token=ref.held.for_call() if move_heads else 0,
        dry_run=dry_run,
        request_id="" if dry_run else new_request_id(),
        plan=None if plan is None else plan.plan,
    )
    if plan is not None and plan.plan is None:
        return plan  # there was nothing to remove
    response: threads.PruneThreadResponse = yield Call("PruneThread", request)
    found = response.plan if response.HasField("plan") else None
    return PruneResult(tuple(numbers_of(response.pruned)), response.retained_versions, found)


def delete(
    ref: ThreadRef,
    missing_ok: bool,
    expected: Checkpoint | ThreadInfo | int | None,
    durability: Durability | str | None,
    local_only: bool,
    expected_uid: str = "",
    unchanged_since: ThreadInfo | None = None,
) -> Operation[bool]:
    """Deletes the thread, and returns whether there was one. Reads the uid first and deletes this creation: a call that
    is sent again after a lost answer must not delete the next thread of the name. Who finds no thread asks all the
    same: an earlier deletion may have failed half-way, and the answer comes when nothing is left of the thread."""
    request = ref.about(
        threads.DeleteThreadRequest,
        **expectation(expected),
        **unchanged(unchanged_since),
        allow_missing=True,
        durability=choice_number(Durability, durability),
        local_only=local_only,
    )
    if unchanged_since is not None:
        expected_uid = expected_uid or unchanged_since.uid
    wanted = request.options.expected_uid = text(expected_uid, "expected_uid") or request.options.expected_uid
    try:
        # A deletion on this disk does not need the archive. The read could wait for it.
        found = yield Call("GetThread", ref.about(threads.GetThreadRequest), LOCAL_LOOK_S if local_only else None)
        request.options.expected_uid = wanted or found.thread.uid
        is_there = bool(request.options.expected_uid == found.thread.uid)
    except Locked as error:  # whoever has lost the session key may still delete
        request.options.expected_uid = wanted or error.uid
        is_there = bool((yield Call("DeleteThread", request)).receipt.uid)
    except ThreadNotFound:
        request.options.expected_uid = wanted or NO_UID
        is_there = not local_only and bool((yield Call("DeleteThread", request)).receipt.uid)
        if not is_there and not missing_ok and not wanted:
            raise
    except StatewardError:
        if not local_only:
            raise
        is_there = bool((yield Call("DeleteThread", request)).receipt.uid)
    else:
        yield Call("DeleteThread", request)
    ref.held.read_uid = ""
    if not is_there and not missing_ok:
        raise _not_there(ref, wanted)
    return is_there


def _not_there(ref: ThreadRef, wanted: str) -> StatewardError:
    what = f"there is no thread {ref.thread!r} any more, or it was deleted and made again"
    if wanted:
        return thread_error(UidMismatch, ref.thread, what, reason="UID_MISMATCH", expected_uid=wanted)
    return thread_error(ThreadNotFound, ref.thread, what, reason="THREAD_NOT_FOUND")


def update_options(ref: ThreadRef, options: OptionChanges) -> Operation[ThreadInfo]:
    """Changes the given options, and clears those that are given as None."""
    unknown = options.keys() - OptionChanges.__annotations__.keys()
    if unknown or not options:
        known = ", ".join(OptionChanges.__annotations__)
        raise TypeError(f"update_options takes one or more of {known}, not {', '.join(sorted(unknown)) or 'nothing'}")
    given: dict[str, Any] = {name: value for name, value in options.items() if value is not None}
    request = ref.to_write(
        threads.UpdateThreadRequest,
        update=ThreadOptions(**given).to_proto(),
        update_mask=FieldMask(paths=options),
        request_id=new_request_id(),
    )
    return ThreadInfo.from_proto((yield Call("UpdateThread", request)).thread)


def set_tag(
    ref: ThreadRef, name: str, at: At | None, expected: Checkpoint | int | None
) -> Operation[Tag]:
    """Makes or moves a tag."""
    request = ref.to_write(
        threads.SetTagRequest,
        branch=ref.branch,
        tag=text(name, "the name of a tag"),
        version=version_ref(at),
        **_expected_tagged(expected),
        request_id=new_request_id(),
    )
    return Tag.from_proto((yield Call("SetTag", request)).tag)


def _expected_tagged(expected: Checkpoint | int | None) -> dict[str, Any]:
    if not isinstance(expected, Checkpoint):
        return {"expected_tagged_version": expected}
    found = expectation(expected)
    del found["expected_version"], found["expected_digest"]
    return {"expected_tagged_version": expected.version, "expected_tagged_digest": expected.digest, **found}


def delete_tag(ref: ThreadRef, name: str, expected: Checkpoint | int | None) -> Operation[Tag]:
    """Removes a tag."""
    request = ref.to_write(
        threads.DeleteTagRequest,
        tag=text(name, "the name of a tag"),
        **_expected_tagged(expected),
        request_id=new_request_id(),
    )
    return Tag.from_proto((yield Call("DeleteTag", request)).tag)


def move_head(ref: ThreadRef, name: str, at: At, expected: Checkpoint | int | None) -> Operation[MovedHead]:
    """Moves the head of a branch."""
    request = ref.to_write(
        threads.MoveBranchRequest,
        branch=name,
        version=version_ref(at),
        **expectation(expected),
        lease_token=ref.held.for_call(),
        request_id=new_request_id(),
    )
    return MovedHead.from_proto((yield Call("MoveBranch", request)))


def delete_branch(ref: ThreadRef, name: str, expected: Checkpoint | int | None) -> Operation[int]:
    """Deletes a branch, and returns the version that was its head."""
    request = ref.to_write(
        threads.DeleteBranchRequest,
        branch=name,
        **expectation(expected),
        lease_token=ref.held.for_call(),
        request_id=new_request_id(),
    )
    return int((yield Call("DeleteBranch", request)).version)


def wait_archived(ref: ThreadRef, what: Checkpoint | int, timeout: Duration | None) -> Operation[DurableResult]:
    """Waits until a version, or a position in the journal, is archived. Raises NotArchivedYet on timeout."""
    timeout_s = None if timeout is None else seconds(timeout, "timeout")
    checkpoint = what if isinstance(what, Checkpoint) else None
    return await_archived(ref, _wait_request(ref, what), timeout_s, checkpoint)


def await_archived(
    ref: ThreadRef,
    request: threads.WaitDurableRequest,
    timeout_s: float | None = None,
    version: Checkpoint | None = None,
) -> Operation[DurableResult]:
    """Waits until the entry that a request names is archived. Raises NotArchivedYet, with its `version`, on timeout."""
    request.durability = checkpoint_pb2.DURABILITY_ARCHIVED
    late = NotArchivedYet(ref.thread, request.receipt.sequence, version, () if version is None else (version,))
    try:
        result = DurableResult.from_proto((yield Call("WaitDurable", request, timeout_s)))
    except DeadlineExceeded:
        raise late from None
    if (result.durability or 0) < Durability.ARCHIVED:
        raise late
    return result


def entry_of(ref: ThreadRef, receipt: Receipt) -> threads.WaitDurableRequest:
    """Names the journal entry of an answer by its digest, too: after a takeover its position may have another entry."""
    return ref.about(threads.WaitDurableRequest, receipt=receipt)


def _wait_request(ref: ThreadRef, what: Checkpoint | int) -> threads.WaitDurableRequest:
    if not isinstance(what, Checkpoint):
        instance(what, "what", SupportsIndex, "a Checkpoint or a sequence")
        return entry_of(ref, message(Receipt, {"sequence": what}))
    if (what.namespace, what.thread) != (ref.namespace, ref.thread):
        raise ValueError(f"this version belongs to thread {what.thread!r}, not {ref.thread!r}")
    return entry_of(ref, Receipt(uid=what.uid, sequence=what.sequence, digest=what.digest))


def spans_of(versions: Iterable[int]) -> threads.VersionSpans:
    """Returns versions as the contract has them."""
    spans = list[threads.VersionSpan]()
    for version in sorted({whole_number(each, "versions") for each in several(versions, "versions", "whole numbers")}):
        if spans and version == spans[-1].last + 1:
            spans[-1].last = version
        else:
            spans.append(threads.VersionSpan(first=version, last=version))
    return threads.VersionSpans(spans=spans)


def numbers_of(versions: threads.VersionSpans) -> Iterator[int]:
    """Yields the versions of spans."""
    for each in versions.spans:
        yield from range(each.first, each.last + 1)


def server_info(namespace: str) -> Operation[ServerInfo]:
    """Returns the daemon's version, features and limits."""
    return ServerInfo.from_proto((yield Call("GetServerInfo", admin.GetServerInfoRequest(namespace=namespace))))


def stats() -> Operation[Stats]:
    """Returns counts and sizes of the daemon."""
    return Stats.from_proto((yield Call("GetStats", admin.GetStatsRequest())))


def diagnose(probe_bucket: bool) -> Operation[Diagnoses]:
    """Returns what the daemon finds about itself and its machine."""
    answer = yield Call("Diagnose", message(admin.DiagnoseRequest, {"probe_bucket": probe_bucket}), DIAGNOSE_DEADLINE_S)
    return Diagnoses.from_proto(answer)


def compact() -> Operation[Compaction]:
    """Returns what a compaction of the daemon's data file did."""
    return Compaction.from_proto((yield Call("Compact", admin.CompactRequest(), COMPACT_DEADLINE_S)))


def rekey(namespace: str, thread: str) -> Operation[Rekeyed]:
    """Returns what came of a change of a thread's data key."""
    request = message(admin.RekeyThreadRequest, {"namespace": namespace, "thread": thread})
    return Rekeyed.from_proto((yield Call("RekeyThread", request, COMPACT_DEADLINE_S)))


def drain(grace: Duration | None, undo: bool) -> Operation[DrainResult]:
    """Starts to drain the daemon, or with `undo` stops it."""
    given = None if grace is None else span(grace, "grace", most=GRACE_MAX_S)
    request = message(admin.DrainRequest, {"undo": undo, "grace": given})
    deadline_s = None if undo else DRAIN_DEADLINE_S if given is None else given.total_seconds() + DRAIN_MARGIN_S
    return DrainResult.from_proto((yield Call("Drain", request, deadline_s)))
