import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import field_mask_pb2 as _field_mask_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import diff_pb2 as _diff_pb2
from stateward.v1 import effect_pb2 as _effect_pb2
from stateward.v1 import lease_pb2 as _lease_pb2
from stateward.v1 import record_pb2 as _record_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from stateward.v1 import write_pb2 as _write_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AttachMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ATTACH_MODE_UNSPECIFIED: _ClassVar[AttachMode]
    ATTACH_MODE_IF_FREE: _ClassVar[AttachMode]
    ATTACH_MODE_TAKE_OVER: _ClassVar[AttachMode]
    ATTACH_MODE_READ_ONLY: _ClassVar[AttachMode]
ATTACH_MODE_UNSPECIFIED: AttachMode
ATTACH_MODE_IF_FREE: AttachMode
ATTACH_MODE_TAKE_OVER: AttachMode
ATTACH_MODE_READ_ONLY: AttachMode

class GetThreadRequest(_message.Message):
    __slots__ = ("namespace", "thread")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ...) -> None: ...

class GetThreadResponse(_message.Message):
    __slots__ = ("thread", "branches", "tags", "lease")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.ThreadInfo
    branches: _containers.RepeatedCompositeFieldContainer[_thread_pb2.Branch]
    tags: _containers.RepeatedCompositeFieldContainer[_thread_pb2.Tag]
    lease: _lease_pb2.Lease
    def __init__(self, thread: _Optional[_Union[_thread_pb2.ThreadInfo, _Mapping]] = ..., branches: _Optional[_Iterable[_Union[_thread_pb2.Branch, _Mapping]]] = ..., tags: _Optional[_Iterable[_Union[_thread_pb2.Tag, _Mapping]]] = ..., lease: _Optional[_Union[_lease_pb2.Lease, _Mapping]] = ...) -> None: ...

class ListThreadsRequest(_message.Message):
    __slots__ = ("namespace", "statuses", "labels", "name_prefix", "updated_after", "updated_before", "min_step", "max_step", "page_size", "page_token", "has_versions", "has_records")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    NAME_PREFIX_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AFTER_FIELD_NUMBER: _ClassVar[int]
    UPDATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    MIN_STEP_FIELD_NUMBER: _ClassVar[int]
    MAX_STEP_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HAS_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    HAS_RECORDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    statuses: _containers.RepeatedScalarFieldContainer[_checkpoint_pb2.WorkStatus]
    labels: _containers.ScalarMap[str, str]
    name_prefix: str
    updated_after: _timestamp_pb2.Timestamp
    updated_before: _timestamp_pb2.Timestamp
    min_step: int
    max_step: int
    page_size: int
    page_token: str
    has_versions: bool
    has_records: bool
    def __init__(self, namespace: _Optional[str] = ..., statuses: _Optional[_Iterable[_Union[_checkpoint_pb2.WorkStatus, str]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., name_prefix: _Optional[str] = ..., updated_after: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., min_step: _Optional[int] = ..., max_step: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., has_versions: bool = ..., has_records: bool = ...) -> None: ...

class ListThreadsResponse(_message.Message):
    __slots__ = ("threads", "next_page_token", "unreadable")
    THREADS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    threads: _containers.RepeatedCompositeFieldContainer[_thread_pb2.ThreadInfo]
    next_page_token: str
    unreadable: _containers.RepeatedCompositeFieldContainer[_thread_pb2.UnreadableThread]
    def __init__(self, threads: _Optional[_Iterable[_Union[_thread_pb2.ThreadInfo, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., unreadable: _Optional[_Iterable[_Union[_thread_pb2.UnreadableThread, _Mapping]]] = ...) -> None: ...

class CountThreadsRequest(_message.Message):
    __slots__ = ("namespace", "updated_after", "updated_before")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    UPDATED_AFTER_FIELD_NUMBER: _ClassVar[int]
    UPDATED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    updated_after: _timestamp_pb2.Timestamp
    updated_before: _timestamp_pb2.Timestamp
    def __init__(self, namespace: _Optional[str] = ..., updated_after: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., updated_before: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class CountThreadsResponse(_message.Message):
    __slots__ = ("counts", "unreadable")
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    counts: _containers.RepeatedCompositeFieldContainer[StatusCount]
    unreadable: _containers.RepeatedCompositeFieldContainer[_thread_pb2.UnreadableThread]
    def __init__(self, counts: _Optional[_Iterable[_Union[StatusCount, _Mapping]]] = ..., unreadable: _Optional[_Iterable[_Union[_thread_pb2.UnreadableThread, _Mapping]]] = ...) -> None: ...

class StatusCount(_message.Message):
    __slots__ = ("status", "count")
    STATUS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    status: _checkpoint_pb2.WorkStatus
    count: int
    def __init__(self, status: _Optional[_Union[_checkpoint_pb2.WorkStatus, str]] = ..., count: _Optional[int] = ...) -> None: ...

class ForkThreadRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "branch", "version", "new_thread", "all_versions")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NEW_THREAD_FIELD_NUMBER: _ClassVar[int]
    ALL_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    branch: str
    version: _checkpoint_pb2.VersionRef
    new_thread: str
    all_versions: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., branch: _Optional[str] = ..., version: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., new_thread: _Optional[str] = ..., all_versions: bool = ...) -> None: ...

class ForkThreadResponse(_message.Message):
    __slots__ = ("receipt", "thread")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    thread: _thread_pb2.ThreadInfo
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., thread: _Optional[_Union[_thread_pb2.ThreadInfo, _Mapping]] = ...) -> None: ...

class PruneThreadRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "versions", "older_than", "keep_latest_per_branch", "dry_run", "move_heads", "plan")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    OLDER_THAN_FIELD_NUMBER: _ClassVar[int]
    KEEP_LATEST_PER_BRANCH_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    MOVE_HEADS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    versions: VersionSpans
    older_than: _duration_pb2.Duration
    keep_latest_per_branch: int
    dry_run: bool
    move_heads: bool
    plan: PrunePlan
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., versions: _Optional[_Union[VersionSpans, _Mapping]] = ..., older_than: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., keep_latest_per_branch: _Optional[int] = ..., dry_run: bool = ..., move_heads: bool = ..., plan: _Optional[_Union[PrunePlan, _Mapping]] = ...) -> None: ...

class PrunePlan(_message.Message):
    __slots__ = ("uid", "versions", "newest_digest", "moved_heads")
    UID_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    NEWEST_DIGEST_FIELD_NUMBER: _ClassVar[int]
    MOVED_HEADS_FIELD_NUMBER: _ClassVar[int]
    uid: str
    versions: VersionSpans
    newest_digest: bytes
    moved_heads: _containers.RepeatedCompositeFieldContainer[MovedHead]
    def __init__(self, uid: _Optional[str] = ..., versions: _Optional[_Union[VersionSpans, _Mapping]] = ..., newest_digest: _Optional[bytes] = ..., moved_heads: _Optional[_Iterable[_Union[MovedHead, _Mapping]]] = ...) -> None: ...

class VersionSpan(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class VersionSpans(_message.Message):
    __slots__ = ("spans",)
    SPANS_FIELD_NUMBER: _ClassVar[int]
    spans: _containers.RepeatedCompositeFieldContainer[VersionSpan]
    def __init__(self, spans: _Optional[_Iterable[_Union[VersionSpan, _Mapping]]] = ...) -> None: ...

class PruneThreadResponse(_message.Message):
    __slots__ = ("receipt", "pruned", "retained_versions", "plan")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    PRUNED_FIELD_NUMBER: _ClassVar[int]
    RETAINED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    PLAN_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    pruned: VersionSpans
    retained_versions: int
    plan: PrunePlan
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., pruned: _Optional[_Union[VersionSpans, _Mapping]] = ..., retained_versions: _Optional[int] = ..., plan: _Optional[_Union[PrunePlan, _Mapping]] = ...) -> None: ...

class DeleteThreadRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "allow_missing", "local_only", "expected_sequence", "expected_sequence_digest")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_MISSING_FIELD_NUMBER: _ClassVar[int]
    LOCAL_ONLY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SEQUENCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    allow_missing: bool
    local_only: bool
    expected_sequence: int
    expected_sequence_digest: bytes
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., allow_missing: bool = ..., local_only: bool = ..., expected_sequence: _Optional[int] = ..., expected_sequence_digest: _Optional[bytes] = ...) -> None: ...

class DeleteThreadResponse(_message.Message):
    __slots__ = ("receipt", "forks", "everywhere")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    EVERYWHERE_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    forks: int
    everywhere: bool
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., forks: _Optional[int] = ..., everywhere: bool = ...) -> None: ...

class UpdateThreadRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "update", "update_mask")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    UPDATE_FIELD_NUMBER: _ClassVar[int]
    UPDATE_MASK_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    update: _thread_pb2.ThreadOptions
    update_mask: _field_mask_pb2.FieldMask
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., update: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., update_mask: _Optional[_Union[_field_mask_pb2.FieldMask, _Mapping]] = ...) -> None: ...

class UpdateThreadResponse(_message.Message):
    __slots__ = ("receipt", "thread")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    thread: _thread_pb2.ThreadInfo
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., thread: _Optional[_Union[_thread_pb2.ThreadInfo, _Mapping]] = ...) -> None: ...

class SetTagRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "branch", "tag", "version", "expected_tagged_version", "expected_tagged_digest")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TAGGED_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TAGGED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    branch: str
    tag: str
    version: _checkpoint_pb2.VersionRef
    expected_tagged_version: int
    expected_tagged_digest: bytes
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., branch: _Optional[str] = ..., tag: _Optional[str] = ..., version: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., expected_tagged_version: _Optional[int] = ..., expected_tagged_digest: _Optional[bytes] = ...) -> None: ...

class SetTagResponse(_message.Message):
    __slots__ = ("receipt", "tag")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    tag: _thread_pb2.Tag
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., tag: _Optional[_Union[_thread_pb2.Tag, _Mapping]] = ...) -> None: ...

class DeleteTagRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "tag", "expected_tagged_version", "expected_tagged_digest")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TAGGED_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_TAGGED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    tag: str
    expected_tagged_version: int
    expected_tagged_digest: bytes
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., tag: _Optional[str] = ..., expected_tagged_version: _Optional[int] = ..., expected_tagged_digest: _Optional[bytes] = ...) -> None: ...

class DeleteTagResponse(_message.Message):
    __slots__ = ("receipt", "tag")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    tag: _thread_pb2.Tag
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., tag: _Optional[_Union[_thread_pb2.Tag, _Mapping]] = ...) -> None: ...

class MoveBranchRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "branch", "version")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    branch: str
    version: _checkpoint_pb2.VersionRef
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., branch: _Optional[str] = ..., version: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ...) -> None: ...

class MoveBranchResponse(_message.Message):
    __slots__ = ("receipt", "version", "version_digest", "previous_version")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    version: int
    version_digest: bytes
    previous_version: int
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., version: _Optional[int] = ..., version_digest: _Optional[bytes] = ..., previous_version: _Optional[int] = ...) -> None: ...

class DeleteBranchRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "branch")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    branch: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., branch: _Optional[str] = ...) -> None: ...

class DeleteBranchResponse(_message.Message):
    __slots__ = ("receipt", "version", "version_digest")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    version: int
    version_digest: bytes
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., version: _Optional[int] = ..., version_digest: _Optional[bytes] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("namespace", "thread", "after_sequence", "after_cursor", "include_diff", "labels", "slots", "logs", "include_records")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AFTER_CURSOR_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_DIFF_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_RECORDS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    after_sequence: int
    after_cursor: str
    include_diff: bool
    labels: _containers.ScalarMap[str, str]
    slots: _containers.RepeatedScalarFieldContainer[str]
    logs: _containers.RepeatedScalarFieldContainer[str]
    include_records: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., after_sequence: _Optional[int] = ..., after_cursor: _Optional[str] = ..., include_diff: bool = ..., labels: _Optional[_Mapping[str, str]] = ..., slots: _Optional[_Iterable[str]] = ..., logs: _Optional[_Iterable[str]] = ..., include_records: bool = ...) -> None: ...

class WatchResponse(_message.Message):
    __slots__ = ("events", "cursor")
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    events: _containers.RepeatedCompositeFieldContainer[JournalEvent]
    cursor: str
    def __init__(self, events: _Optional[_Iterable[_Union[JournalEvent, _Mapping]]] = ..., cursor: _Optional[str] = ...) -> None: ...

class JournalEvent(_message.Message):
    __slots__ = ("cursor", "thread", "uid", "sequence", "time", "checkpoint", "tag_set", "tag_deleted", "options_changed", "pruned", "deleted", "signal", "effect", "lease", "heads_moved", "effects_deleted", "records_changed", "diff", "status_told")
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TAG_SET_FIELD_NUMBER: _ClassVar[int]
    TAG_DELETED_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    PRUNED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    HEADS_MOVED_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_DELETED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_CHANGED_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    STATUS_TOLD_FIELD_NUMBER: _ClassVar[int]
    cursor: str
    thread: str
    uid: str
    sequence: int
    time: _timestamp_pb2.Timestamp
    checkpoint: _checkpoint_pb2.Checkpoint
    tag_set: _thread_pb2.Tag
    tag_deleted: _thread_pb2.Tag
    options_changed: _thread_pb2.ThreadOptions
    pruned: VersionSpans
    deleted: ThreadDeletion
    signal: _signal_pb2.Signal
    effect: _effect_pb2.RecordedEffect
    lease: _lease_pb2.Lease
    heads_moved: HeadsMoved
    effects_deleted: _effect_pb2.EffectsDeleted
    records_changed: _record_pb2.RecordsChange
    diff: _diff_pb2.Diff
    status_told: _checkpoint_pb2.StatusTold
    def __init__(self, cursor: _Optional[str] = ..., thread: _Optional[str] = ..., uid: _Optional[str] = ..., sequence: _Optional[int] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ..., tag_set: _Optional[_Union[_thread_pb2.Tag, _Mapping]] = ..., tag_deleted: _Optional[_Union[_thread_pb2.Tag, _Mapping]] = ..., options_changed: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., pruned: _Optional[_Union[VersionSpans, _Mapping]] = ..., deleted: _Optional[_Union[ThreadDeletion, _Mapping]] = ..., signal: _Optional[_Union[_signal_pb2.Signal, _Mapping]] = ..., effect: _Optional[_Union[_effect_pb2.RecordedEffect, _Mapping]] = ..., lease: _Optional[_Union[_lease_pb2.Lease, _Mapping]] = ..., heads_moved: _Optional[_Union[HeadsMoved, _Mapping]] = ..., effects_deleted: _Optional[_Union[_effect_pb2.EffectsDeleted, _Mapping]] = ..., records_changed: _Optional[_Union[_record_pb2.RecordsChange, _Mapping]] = ..., diff: _Optional[_Union[_diff_pb2.Diff, _Mapping]] = ..., status_told: _Optional[_Union[_checkpoint_pb2.StatusTold, _Mapping]] = ...) -> None: ...

class HeadsMoved(_message.Message):
    __slots__ = ("heads",)
    HEADS_FIELD_NUMBER: _ClassVar[int]
    heads: _containers.RepeatedCompositeFieldContainer[MovedHead]
    def __init__(self, heads: _Optional[_Iterable[_Union[MovedHead, _Mapping]]] = ...) -> None: ...

class MovedHead(_message.Message):
    __slots__ = ("branch", "version", "version_digest", "previous_version")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_VERSION_FIELD_NUMBER: _ClassVar[int]
    branch: str
    version: int
    version_digest: bytes
    previous_version: int
    def __init__(self, branch: _Optional[str] = ..., version: _Optional[int] = ..., version_digest: _Optional[bytes] = ..., previous_version: _Optional[int] = ...) -> None: ...

class ThreadDeletion(_message.Message):
    __slots__ = ("cause",)
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    cause: str
    def __init__(self, cause: _Optional[str] = ...) -> None: ...

class WaitDurableRequest(_message.Message):
    __slots__ = ("namespace", "thread", "receipt", "durability")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    receipt: _write_pb2.Receipt
    durability: _checkpoint_pb2.Durability
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ...) -> None: ...

class WaitDurableResponse(_message.Message):
    __slots__ = ("receipt", "newest_sequence")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    NEWEST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    newest_sequence: int
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., newest_sequence: _Optional[int] = ...) -> None: ...

class ReadDigestsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "uid", "after_sequence", "after_digest")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    AFTER_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AFTER_DIGEST_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    uid: str
    after_sequence: int
    after_digest: bytes
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., uid: _Optional[str] = ..., after_sequence: _Optional[int] = ..., after_digest: _Optional[bytes] = ...) -> None: ...

class ReadDigestsResponse(_message.Message):
    __slots__ = ("uid", "entries", "newest_sequence")
    UID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEWEST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    uid: str
    entries: _containers.RepeatedCompositeFieldContainer[EntryDigest]
    newest_sequence: int
    def __init__(self, uid: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[EntryDigest, _Mapping]]] = ..., newest_sequence: _Optional[int] = ...) -> None: ...

class EntryDigest(_message.Message):
    __slots__ = ("sequence", "version", "previous_digest", "digest", "without_content")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_CONTENT_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    version: int
    previous_digest: bytes
    digest: bytes
    without_content: bool
    def __init__(self, sequence: _Optional[int] = ..., version: _Optional[int] = ..., previous_digest: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., without_content: bool = ...) -> None: ...

class AttachRequest(_message.Message):
    __slots__ = ("namespace", "thread", "mode", "wait")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    mode: AttachMode
    wait: _duration_pb2.Duration
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., mode: _Optional[_Union[AttachMode, str]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class AttachResponse(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.ThreadInfo
    def __init__(self, thread: _Optional[_Union[_thread_pb2.ThreadInfo, _Mapping]] = ...) -> None: ...

class DetachRequest(_message.Message):
    __slots__ = ("namespace", "thread")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ...) -> None: ...

class DetachResponse(_message.Message):
    __slots__ = ("thread",)
    THREAD_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.ThreadInfo
    def __init__(self, thread: _Optional[_Union[_thread_pb2.ThreadInfo, _Mapping]] = ...) -> None: ...
