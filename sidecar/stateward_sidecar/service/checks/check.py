"""Checks requests at the border, before any work: every rule that needs no stored state. Errors name the field."""

from __future__ import annotations

from collections.abc import Iterable

from google.protobuf.duration_pb2 import Duration
from google.protobuf.timestamp_pb2 import Timestamp

from stateward.v1.blob_service_pb2 import BlobBegin
from stateward.v1.checkpoint_pb2 import (
    Durability,
    VersionRef,
    WorkStatus,
)
from stateward.v1.checkpoint_service_pb2 import (
    BatchSaveRequest,
    HydrateRequest,
    ListCheckpointsRequest,
    Projection,
    ReadLogRequest,
    SaveRequest,
)
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.thread_pb2 import Retention, ThreadOptions
from stateward.v1.thread_service_pb2 import (
    DeleteThreadRequest,
    PruneThreadRequest,
    ReadDigestsRequest,
    VersionSpans,
    WaitDurableRequest,
    WatchRequest,
)
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.codec.edits import (
    COMMUTATIVE,
    MAX_MEDIA_TYPE_BYTES,
    SHA256_BYTES,
    Named,
    check_diff,
    check_name,
    check_state,
    check_value,
    only_commutative,
)
from stateward_sidecar.errors import InvalidField, StatewardError
from stateward_sidecar.service.checks.checkparts import (
    LABEL_VALUE_BYTES_MAX,
    check_acks,
    check_conditions,
    check_effects,
    check_facts,
    check_labels,
    check_question,
    check_text,
    check_token,
    check_uid,
)
from stateward_sidecar.service.checks.checktrees import check_workspace
from stateward_sidecar.service.methods import Head, Lease, RequestId, Rule, WriteRequest, rule_of
from stateward_sidecar.store.thread.thread import MAIN
from stateward_sidecar.store.thread.threads import bare_name

CREATE = "options.create"
DEFAULT_NAMESPACE = "default"
ALL_THREADS = "-"
REQUEST_ID_BYTES_MAX = 256
TAG_BYTES_MAX = 256
DETAIL_BYTES_MAX = 4096
METADATA_BYTES_MAX = 1 << 20
PAGE_SIZE_MAX = 1000
PAGE_BYTES_MIN, PAGE_BYTES_MAX = 1 << 10, 64 << 20
DIGEST_BYTES = 16
STATUSES = frozenset(WorkStatus.values())
DURABILITIES = frozenset(Durability.values())
BATCH_MAX = 256
PRUNE_VERSIONS_MAX = 100_000
MASK_PATHS = ("labels", "ttl", "retention", "parent_thread", "agent")


def check_place(request: object, *, all_allowed: bool = False, is_known: bool = False) -> None:
    """Checks namespace, thread and branch, and fills in the default namespace.

    ``is_known``: this thread exists, so thread and namespace are valid names.
    """
    if not request.namespace:  # type: ignore[attr-defined]
        request.namespace = DEFAULT_NAMESPACE  # type: ignore[attr-defined]
    if not is_known:
        check_name(request.namespace, "namespace")  # type: ignore[attr-defined]
        thread = request.thread  # type: ignore[attr-defined]
        if thread == ALL_THREADS and not all_allowed:
            raise InvalidField("thread", '"-" stands for all threads and is not allowed here')
        check_name(bare_name(thread), "thread")
    if branch := getattr(request, "branch", ""):
        check_name(branch, "branch")
    if uid := getattr(request, "expected_uid", ""):
        check_uid(uid, "expected_uid")


def check_write(request: WriteRequest, *, is_known: bool = False) -> None:
    """Checks place and options of a write. ``is_known``: this thread exists, so its names are valid."""
    check_place(request, is_known=is_known)
    options, rule = request.options, rule_of(request)
    if options.request_id:
        check_request_id(options.request_id)
    elif rule.request_id is RequestId.REQUIRED:
        raise InvalidField("options.request_id", "is required: a retry could not be told from a second call")
    if options.expected_uid:
        check_uid(options.expected_uid, "options.expected_uid")
    if options.HasField("expected_version") or options.expected_digest:
        _check_expected(options, rule)
    elif rule.request_id is RequestId.UNLESS_EXPECTED and not options.request_id:
        raise InvalidField(
            "options.request_id", "is required without expected_version: a retry would apply the save twice"
        )
    if options.lease_token or rule.lease is Lease.REQUIRED:
        check_token(options.lease_token, "options.lease_token", required=rule.lease is Lease.REQUIRED)
        if rule.lease is Lease.NONE:
            raise InvalidField("options.lease_token", "is not allowed here: there is no lease that it could be of")
    if options.durability:
        check_durability(options.durability, "options.durability")
    if options.HasField("create"):
        if not rule.makes:
            raise InvalidField("options.create", "is not allowed: this call never makes a thread")
        check_options(options.create, CREATE)


def _check_expected(options: WriteOptions, rule: Rule) -> None:
    if rule.head is Head.NONE:
        raise InvalidField("options.expected_version", "is not allowed here: there is no head that it could be of")
    if options.expected_version < 0:
        raise InvalidField("options.expected_version", f"{options.expected_version} is negative")
    if digest := options.expected_digest:
        check_digest(digest, "options.expected_digest", options.expected_version, "options.expected_version")


def check_request_id(request_id: str) -> None:
    """Checks the form of a request id that is set."""
    if not (request_id.isascii() and request_id.isprintable() and len(request_id) <= 64):
        check_text(request_id, "options.request_id", REQUEST_ID_BYTES_MAX)
        check_name(request_id, "options.request_id")


def check_digest(digest: bytes, field: str, version: int, version_field: str) -> None:
    """Checks a digest that is set, which belongs to a version."""
    if version <= 0:
        raise InvalidField(field, f"is allowed only with a positive {version_field}")
    if len(digest) != DIGEST_BYTES:
        raise InvalidField(field, f"has {len(digest)} bytes, not {DIGEST_BYTES}")


def check_expected_sequence(request: DeleteThreadRequest | SendSignalRequest) -> None:
    """Checks which journal a deletion or a signal expects."""
    if request.expected_sequence < 0:
        raise InvalidField("expected_sequence", f"{request.expected_sequence} is negative")
    if digest := request.expected_sequence_digest:
        check_digest(digest, "expected_sequence_digest", request.expected_sequence, "expected_sequence")


def check_plan(request: PruneThreadRequest) -> None:
    """Checks the plan of a prune."""
    plan = request.plan
    if request.dry_run:
        raise InvalidField("plan", "is not allowed with dry_run, which makes one")
    if not plan.uid:
        raise InvalidField("plan.uid", "is required")
    check_uid(plan.uid, "plan.uid")
    before = check_spans(plan.versions, "plan.versions")
    check_digest(plan.newest_digest, "plan.newest_digest", before, "version")
    if plan.moved_heads and not request.move_heads:
        raise InvalidField("plan.moved_heads", "goes with move_heads only")


def check_named(versions: VersionSpans) -> None:
    """Checks the versions that a prune names."""
    check_spans(versions, "versions")
    count = sum(span.last - span.first + 1 for span in versions.spans)
    if count > PRUNE_VERSIONS_MAX:
        raise InvalidField("versions", f"names {count} versions, more than {PRUNE_VERSIONS_MAX}")


def check_spans(versions: VersionSpans, field: str) -> int:
    """Checks spans of versions. Returns the last version."""
    if not 1 <= len(versions.spans) <= PRUNE_VERSIONS_MAX:
        raise InvalidField(f"{field}.spans", f"must have 1 to {PRUNE_VERSIONS_MAX} spans; prune fewer at a time")
    before = -1
    for index, span in enumerate(versions.spans):
        if not before + 1 < span.first <= span.last:
            raise InvalidField(f"{field}.spans[{index}]", "is not a span of versions behind the one before it")
        before = span.last
    return before


def check_namespace(request: object) -> None:
    """Checks the namespace of a request without thread."""
    request.namespace = request.namespace or DEFAULT_NAMESPACE  # type: ignore[attr-defined]
    check_name(request.namespace, "namespace")  # type: ignore[attr-defined]


def check_ref(ref: VersionRef, field: str, *, zero_allowed: bool = False) -> None:
    """Checks a reference that is set."""
    kind = ref.WhichOneof("ref")
    if kind is None:
        raise InvalidField(field, "names no version: set version, checkpoint_id or tag")
    if kind == "version":
        if ref.version < 0 or (ref.version == 0 and not zero_allowed):
            raise InvalidField(f"{field}.version", f"{ref.version} is not a version; versions count from 1")
    else:
        check_name(getattr(ref, kind), f"{field}.{kind}")
    if ref.branch:
        check_name(ref.branch, f"{field}.branch")
        if kind != "checkpoint_id":
            raise InvalidField(f"{field}.branch", f"is allowed only with checkpoint_id, not with {kind}")
    if ref.digest:
        check_digest(ref.digest, f"{field}.digest", ref.version, "version")


def check_save(request: SaveRequest, prefix: str = "", *, is_known: bool = False) -> list[Named]:
    """Checks a save. Returns the blobs that it names. ``is_known`` as in ``check_place``. Raises InvalidField."""
    try:
        check_write(request, is_known=is_known)
        if request.checkpoint_id:
            check_name(request.checkpoint_id, "checkpoint_id")
        is_expected = request.options.HasField("expected_version")
        has_parent = request.HasField("parent")
        if has_parent:
            check_ref(request.parent, "parent", zero_allowed=True)
        if request.on_mismatch or request.fork_branch or request.HasField("guard"):
            check_conditions(request)
        check_description(request)
        if request.HasField("workspace") or request.objects:
            check_workspace(request)
        return _check_content(request, is_based=is_expected or has_parent)
    except StatewardError as error:
        raise in_item(error, prefix) from None


def in_item(error: StatewardError, prefix: str) -> StatewardError:
    """Returns the error of one item of a batch, with the item in message and field."""
    if not prefix:
        return error
    if isinstance(error, InvalidField):
        return InvalidField(f"{prefix}.{error.field}", error.description)
    located = type(error).__new__(type(error), *error.args)  # others may get the same error
    located.__dict__.update(error.__dict__, metadata={**error.metadata, "item": prefix})
    if "field" in error.metadata:
        located.metadata["field"] = f"{prefix}.{error.metadata['field']}"
    located.message = f"{prefix}: {error.message}"
    return located



def check_written(request: WaitDurableRequest) -> None:
    """Checks the fields that identify an entry."""
    if request.receipt.sequence < 1:
        raise InvalidField("receipt.sequence", f"{request.receipt.sequence} is not a sequence; sequences count from 1")
    check_uid(request.receipt.uid, "receipt.uid")
    if request.receipt.digest and len(request.receipt.digest) != DIGEST_BYTES:
        raise InvalidField("receipt.digest", f"has {len(request.receipt.digest)} bytes, not {DIGEST_BYTES}")


def check_after(request: ReadDigestsRequest) -> None:
    """Checks the fields that identify the entry behind which digests are read."""
    check_uid(request.uid, "uid")
    if request.after_sequence < 0:
        raise InvalidField("after_sequence", f"{request.after_sequence} is negative")
    wanted = DIGEST_BYTES if request.after_sequence else 0
    if len(request.after_digest) != wanted:
        raise InvalidField("after_digest", f"has {len(request.after_digest)} bytes, not {wanted}")


def _check_content(request: SaveRequest, *, is_based: bool) -> list[Named]:
    """Checks state or diff. Returns the blobs that it names. ``is_based``: the save has an expectation or a parent."""
    content = request.WhichOneof("content")
    if content is None:
        raise InvalidField("content", "is required: set state or diff")
    if content == "state":
        if not is_based and not request.overwrite:
            raise InvalidField(
                "options.expected_version", "is required with a full state; set overwrite to replace whatever is there"
            )
        return check_state(request.state)
    named = check_diff(request.diff)
    if not is_based:
        index = only_commutative(request.diff)
        if index is not None:
            raise InvalidField(
                f"diff.edits[{index}]",
                f"needs expected_version or parent; without them only {', '.join(COMMUTATIVE.values())} are allowed",
            )
    if request.overwrite:
        raise InvalidField("overwrite", "is allowed only with a full state")
    return named


def check_description(request: SaveRequest) -> None:
    """Checks all fields of a save except its content."""
    if request.status not in STATUSES:
        raise InvalidField("status", f"{request.status} is unknown")
    if request.status_detail:
        check_text(request.status_detail, "status_detail", DETAIL_BYTES_MAX)
    if request.wait_id:
        check_text(request.wait_id, "wait_id", LABEL_VALUE_BYTES_MAX)
    if request.HasField("question"):
        check_question(request)
    if request.effects:
        check_effects(request.effects)
    if request.ack_signals:
        check_acks(request.ack_signals)
    if request.schema_version < 0:
        raise InvalidField("schema_version", f"{request.schema_version} is negative")
    if request.labels or request.metrics or request.attributes:
        check_facts(request)
    if request.HasField("metadata"):
        check_value(request.metadata, "metadata")
        if request.metadata.ByteSize() > METADATA_BYTES_MAX:
            raise InvalidField("metadata", f"has {request.metadata.ByteSize()} bytes, more than {METADATA_BYTES_MAX}")


def check_batch(request: BatchSaveRequest) -> list[list[Named]]:
    """Checks a batch and each of its saves. Returns the blobs that each save names."""
    named = []
    if not 1 <= len(request.saves) <= BATCH_MAX:
        raise InvalidField("saves", f"has {len(request.saves)} items; 1 to {BATCH_MAX} are allowed")
    seen: set[tuple[str, str, str]] = set()
    for index, save in enumerate(request.saves):
        named.append(check_save(save, f"saves[{index}]"))
        key = save.namespace, save.thread, save.branch or MAIN
        if key in seen:
            what = f"branch {key[2]!r} of thread {save.thread!r}"
            raise InvalidField(f"saves[{index}].thread", f"{what} is in the batch twice")
        seen.add(key)
    return named


def check_durability(durability: int, field: str = "durability") -> None:
    """Checks a level."""
    if durability not in DURABILITIES:
        raise InvalidField(field, f"{durability} is unknown")


def check_options(options: ThreadOptions, field: str) -> None:
    """Checks settings of a thread."""
    check_labels(options.labels, f"{field}.labels")
    if options.HasField("ttl"):
        check_duration(options.ttl, f"{field}.ttl")
    if options.HasField("retention"):
        check_retention(options.retention, f"{field}.retention")
    if options.parent_thread:
        check_name(options.parent_thread, f"{field}.parent_thread")
    if options.agent:
        check_name(options.agent, f"{field}.agent")
    if options.held_key and field != CREATE:
        raise InvalidField(f"{field}.held_key", "cannot be changed: a thread is made with a session key, or without")


def check_retention(retention: Retention, field: str) -> None:
    """Checks a retention rule, which must not be empty."""
    if retention.keep_last < 0:
        raise InvalidField(f"{field}.keep_last", f"{retention.keep_last} is negative")
    if retention.HasField("keep_for"):
        check_duration(retention.keep_for, f"{field}.keep_for")
    elif not retention.keep_last:
        raise InvalidField(field, "is empty: set keep_last or keep_for, or leave the rule out to keep all versions")


def check_duration(duration: Duration, field: str) -> None:
    """Checks that a duration is positive and in range."""
    in_range = abs(duration.seconds) <= 315_576_000_000 and abs(duration.nanos) < 1_000_000_000
    if not in_range or duration.ToMicroseconds() <= 0:
        raise InvalidField(field, "is not a positive duration")


def check_page(page_size: int) -> int:
    """Checks a page size and returns it, at most the limit, as AIP-158 requires."""
    if page_size < 0:
        raise InvalidField("page_size", f"{page_size} is negative")
    return min(page_size, PAGE_SIZE_MAX)


def check_max_bytes(max_bytes: int) -> None:
    """Checks the size of a page of state."""
    if max_bytes and not PAGE_BYTES_MIN <= max_bytes <= PAGE_BYTES_MAX:
        raise InvalidField("max_bytes", f"{max_bytes} is not between {PAGE_BYTES_MIN} and {PAGE_BYTES_MAX}")


def check_hydrate(request: HydrateRequest) -> None:
    """Checks a hydrate."""
    check_place(request)
    if request.HasField("version"):
        check_ref(request.version, "version")
    check_max_bytes(request.max_bytes)
    if request.HasField("projection"):
        check_projection(request.projection)
    if request.known_version or request.known_digest:
        check_known(request.known_version, request.known_digest)
        if request.HasField("projection"):
            raise InvalidField("projection", "is not allowed with known_version, which names a whole state")


def check_known(version: int, digest: bytes) -> None:
    """Checks number and digest of a version that the client knows."""
    if version <= 0:
        raise InvalidField("known_version", f"{version} is not positive, but known_digest is set")
    if len(digest) != DIGEST_BYTES:
        raise InvalidField("known_digest", f"has {len(digest)} bytes, not {DIGEST_BYTES}")


def check_projection(projection: Projection) -> None:
    """Checks the names and counts of a projection."""
    for index, name in enumerate(projection.slots):
        check_name(name, f"projection.slots[{index}]")
    for index, log in enumerate(projection.logs):
        check_name(log.log, f"projection.logs[{index}].log")
        if log.last < 0:
            raise InvalidField(f"projection.logs[{index}].last", f"{log.last} is negative")


def check_contents(request: ListCheckpointsRequest) -> None:
    """Checks what a list shows beside descriptions of versions."""
    for field in ("include_states", "include_effects"):
        if getattr(request, field) and request.thread == ALL_THREADS:
            raise InvalidField(field, "is not allowed with all threads; list one thread")
    if request.skip_unreadable:
        if request.thread == ALL_THREADS:
            raise InvalidField("skip_unreadable", "is not allowed with all threads; list one thread")
        if request.include_states or request.include_effects:
            raise InvalidField("skip_unreadable", "is not allowed with include_states or include_effects")
    if request.HasField("projection"):
        if not request.include_states:
            raise InvalidField("projection", "is allowed only with include_states")
        check_projection(request.projection)


def check_sha256(digest: bytes, field: str) -> None:
    """Checks the SHA-256 that names a blob."""
    if len(digest) != SHA256_BYTES:
        raise InvalidField(field, f"has {len(digest)} bytes, not {SHA256_BYTES}")


def check_blob_begin(begin: BlobBegin) -> None:
    """Checks the first message of a blob."""
    try:
        check_write(begin)
        check_text(begin.media_type, "media_type", MAX_MEDIA_TYPE_BYTES)
        if begin.sha256:
            check_sha256(begin.sha256, "sha256")
        if begin.size_bytes < 0:
            raise InvalidField("size_bytes", f"{begin.size_bytes} is negative")
    except StatewardError as error:
        raise in_item(error, "begin") from None


def check_statuses(statuses: Iterable[int]) -> None:
    """Checks a filter by status."""
    for index, status in enumerate(statuses):
        if status not in STATUSES or not status:
            raise InvalidField(f"statuses[{index}]", f"{status} is not a status")


def check_mask(paths: Iterable[str]) -> None:
    """Checks the mask of an update."""
    if not list(paths):
        raise InvalidField("update_mask", f"is required: name any of {', '.join(MASK_PATHS)}")
    for path in paths:
        if path not in MASK_PATHS:
            raise InvalidField("update_mask", f"{path!r} cannot be changed; allowed are {', '.join(MASK_PATHS)}")


def check_tag(tag: str) -> None:
    """Checks the name of a tag."""
    check_name(tag, "tag")
    check_text(tag, "tag", TAG_BYTES_MAX)


def check_time(time: Timestamp, field: str) -> None:
    """Checks that a time is between the years 1 and 9999."""
    try:
        time.ToDatetime()
    except (ValueError, OverflowError):
        raise InvalidField(field, "is not a valid time") from None
    if not 0 <= time.nanos < 1_000_000_000:
        raise InvalidField(field, "is not a valid time")


ENTRIES_MAX = 10_000
WAIT_S_MAX = 60.0
WATCHED_NAMES_MAX = 1000


def check_read_log(request: ReadLogRequest) -> None:
    """Checks a read of a log. Lowers ``page_size`` to the limit, as for page sizes."""
    check_place(request)
    if request.HasField("version"):
        check_ref(request.version, "version")
    check_name(request.log, "log")
    if request.from_index < 0:
        raise InvalidField("from_index", f"{request.from_index} is negative")
    if request.page_size < 0:
        raise InvalidField("page_size", f"{request.page_size} is negative")
    request.page_size = min(request.page_size, ENTRIES_MAX)
    check_max_bytes(request.max_bytes)
    check_uid(request.expected_uid, "expected_uid")
    if request.known_version or request.known_digest:
        check_known(request.known_version, request.known_digest)
    if request.HasField("wait"):
        check_duration(request.wait, "wait")
        if request.wait.ToMicroseconds() > WAIT_S_MAX * 1e6:
            raise InvalidField("wait", f"is longer than {WAIT_S_MAX:g} s; read again to wait longer")
        if request.HasField("version"):
            raise InvalidField("version", "is not allowed with wait: a version never changes")


def check_watched(request: WatchRequest) -> None:
    """Checks the slots and logs that a watch chooses."""
    if len(request.slots) + len(request.logs) > WATCHED_NAMES_MAX:
        raise InvalidField("slots", f"has, together with logs, more than {WATCHED_NAMES_MAX:,} names")
    for field in ("slots", "logs"):
        for index, name in enumerate(getattr(request, field)):
            check_name(name, f"{field}[{index}]")
