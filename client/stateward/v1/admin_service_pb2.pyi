import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import error_reason_pb2 as _error_reason_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetServerInfoRequest(_message.Message):
    __slots__ = ("namespace",)
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    def __init__(self, namespace: _Optional[str] = ...) -> None: ...

class GetServerInfoResponse(_message.Message):
    __slots__ = ("version", "format", "features", "max_state_bytes", "max_message_bytes", "request_id_window_entries", "request_id_window", "default_durability", "key_id", "warnings", "start_time", "max_request_items", "not_ready", "wire", "limits", "principal", "reads_part")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    FEATURES_FIELD_NUMBER: _ClassVar[int]
    MAX_STATE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAX_MESSAGE_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_WINDOW_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_WINDOW_FIELD_NUMBER: _ClassVar[int]
    DEFAULT_DURABILITY_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    START_TIME_FIELD_NUMBER: _ClassVar[int]
    MAX_REQUEST_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NOT_READY_FIELD_NUMBER: _ClassVar[int]
    WIRE_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    PRINCIPAL_FIELD_NUMBER: _ClassVar[int]
    READS_PART_FIELD_NUMBER: _ClassVar[int]
    version: str
    format: int
    features: _containers.RepeatedScalarFieldContainer[str]
    max_state_bytes: int
    max_message_bytes: int
    request_id_window_entries: int
    request_id_window: _duration_pb2.Duration
    default_durability: _checkpoint_pb2.Durability
    key_id: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    start_time: _timestamp_pb2.Timestamp
    max_request_items: int
    not_ready: _containers.RepeatedScalarFieldContainer[str]
    wire: str
    limits: _containers.RepeatedCompositeFieldContainer[LimitUse]
    principal: str
    reads_part: bool
    def __init__(self, version: _Optional[str] = ..., format: _Optional[int] = ..., features: _Optional[_Iterable[str]] = ..., max_state_bytes: _Optional[int] = ..., max_message_bytes: _Optional[int] = ..., request_id_window_entries: _Optional[int] = ..., request_id_window: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., default_durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., key_id: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ..., start_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., max_request_items: _Optional[int] = ..., not_ready: _Optional[_Iterable[str]] = ..., wire: _Optional[str] = ..., limits: _Optional[_Iterable[_Union[LimitUse, _Mapping]]] = ..., principal: _Optional[str] = ..., reads_part: bool = ...) -> None: ...

class LimitUse(_message.Message):
    __slots__ = ("limit", "subject", "maximum", "used")
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    MAXIMUM_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    limit: str
    subject: str
    maximum: int
    used: int
    def __init__(self, limit: _Optional[str] = ..., subject: _Optional[str] = ..., maximum: _Optional[int] = ..., used: _Optional[int] = ...) -> None: ...

class GetStatsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetStatsResponse(_message.Message):
    __slots__ = ("threads", "saves", "entries", "commits", "entry_bytes", "snapshot_bytes", "snapshots", "used_bytes", "file_bytes", "map_bytes", "queued_writes", "cache_bytes", "cache_limit_bytes", "watches", "archive", "background_failures", "blob_bytes", "draining", "limits", "limit_refusals")
    class LimitRefusalsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    THREADS_FIELD_NUMBER: _ClassVar[int]
    SAVES_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    COMMITS_FIELD_NUMBER: _ClassVar[int]
    ENTRY_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    USED_BYTES_FIELD_NUMBER: _ClassVar[int]
    FILE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MAP_BYTES_FIELD_NUMBER: _ClassVar[int]
    QUEUED_WRITES_FIELD_NUMBER: _ClassVar[int]
    CACHE_BYTES_FIELD_NUMBER: _ClassVar[int]
    CACHE_LIMIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    WATCHES_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_FIELD_NUMBER: _ClassVar[int]
    BACKGROUND_FAILURES_FIELD_NUMBER: _ClassVar[int]
    BLOB_BYTES_FIELD_NUMBER: _ClassVar[int]
    DRAINING_FIELD_NUMBER: _ClassVar[int]
    LIMITS_FIELD_NUMBER: _ClassVar[int]
    LIMIT_REFUSALS_FIELD_NUMBER: _ClassVar[int]
    threads: int
    saves: int
    entries: int
    commits: int
    entry_bytes: int
    snapshot_bytes: int
    snapshots: int
    used_bytes: int
    file_bytes: int
    map_bytes: int
    queued_writes: int
    cache_bytes: int
    cache_limit_bytes: int
    watches: int
    archive: ArchiveStats
    background_failures: int
    blob_bytes: int
    draining: bool
    limits: _containers.RepeatedCompositeFieldContainer[LimitUse]
    limit_refusals: _containers.ScalarMap[str, int]
    def __init__(self, threads: _Optional[int] = ..., saves: _Optional[int] = ..., entries: _Optional[int] = ..., commits: _Optional[int] = ..., entry_bytes: _Optional[int] = ..., snapshot_bytes: _Optional[int] = ..., snapshots: _Optional[int] = ..., used_bytes: _Optional[int] = ..., file_bytes: _Optional[int] = ..., map_bytes: _Optional[int] = ..., queued_writes: _Optional[int] = ..., cache_bytes: _Optional[int] = ..., cache_limit_bytes: _Optional[int] = ..., watches: _Optional[int] = ..., archive: _Optional[_Union[ArchiveStats, _Mapping]] = ..., background_failures: _Optional[int] = ..., blob_bytes: _Optional[int] = ..., draining: bool = ..., limits: _Optional[_Iterable[_Union[LimitUse, _Mapping]]] = ..., limit_refusals: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ArchiveStats(_message.Message):
    __slots__ = ("dirty_threads", "lag_entries", "lag_bytes", "lag", "away", "error", "heads", "objects", "head_bytes", "object_bytes", "entry_bytes", "requests", "owned_threads", "orphans", "rolled_back")
    DIRTY_THREADS_FIELD_NUMBER: _ClassVar[int]
    LAG_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    LAG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LAG_FIELD_NUMBER: _ClassVar[int]
    AWAY_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    HEAD_BYTES_FIELD_NUMBER: _ClassVar[int]
    OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ENTRY_BYTES_FIELD_NUMBER: _ClassVar[int]
    REQUESTS_FIELD_NUMBER: _ClassVar[int]
    OWNED_THREADS_FIELD_NUMBER: _ClassVar[int]
    ORPHANS_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    dirty_threads: int
    lag_entries: int
    lag_bytes: int
    lag: _duration_pb2.Duration
    away: bool
    error: str
    heads: int
    objects: int
    head_bytes: int
    object_bytes: int
    entry_bytes: int
    requests: int
    owned_threads: int
    orphans: int
    rolled_back: int
    def __init__(self, dirty_threads: _Optional[int] = ..., lag_entries: _Optional[int] = ..., lag_bytes: _Optional[int] = ..., lag: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., away: bool = ..., error: _Optional[str] = ..., heads: _Optional[int] = ..., objects: _Optional[int] = ..., head_bytes: _Optional[int] = ..., object_bytes: _Optional[int] = ..., entry_bytes: _Optional[int] = ..., requests: _Optional[int] = ..., owned_threads: _Optional[int] = ..., orphans: _Optional[int] = ..., rolled_back: _Optional[int] = ...) -> None: ...

class VerifyRequest(_message.Message):
    __slots__ = ("namespace", "thread", "deleted_keys")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    DELETED_KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    deleted_keys: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., deleted_keys: bool = ...) -> None: ...

class DeletedKey(_message.Message):
    __slots__ = ("uid", "namespace", "thread", "delete_time", "exists", "may_have_versions")
    UID_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    DELETE_TIME_FIELD_NUMBER: _ClassVar[int]
    EXISTS_FIELD_NUMBER: _ClassVar[int]
    MAY_HAVE_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    uid: str
    namespace: str
    thread: str
    delete_time: _timestamp_pb2.Timestamp
    exists: bool
    may_have_versions: bool
    def __init__(self, uid: _Optional[str] = ..., namespace: _Optional[str] = ..., thread: _Optional[str] = ..., delete_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., exists: bool = ..., may_have_versions: bool = ...) -> None: ...

class ScanProgress(_message.Message):
    __slots__ = ("threads", "total_threads", "items", "bytes")
    THREADS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_THREADS_FIELD_NUMBER: _ClassVar[int]
    ITEMS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    threads: int
    total_threads: int
    items: int
    bytes: int
    def __init__(self, threads: _Optional[int] = ..., total_threads: _Optional[int] = ..., items: _Optional[int] = ..., bytes: _Optional[int] = ...) -> None: ...

class VerifyResponse(_message.Message):
    __slots__ = ("progress", "finding", "deleted_key")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FINDING_FIELD_NUMBER: _ClassVar[int]
    DELETED_KEY_FIELD_NUMBER: _ClassVar[int]
    progress: ScanProgress
    finding: VerifyFinding
    deleted_key: DeletedKey
    def __init__(self, progress: _Optional[_Union[ScanProgress, _Mapping]] = ..., finding: _Optional[_Union[VerifyFinding, _Mapping]] = ..., deleted_key: _Optional[_Union[DeletedKey, _Mapping]] = ...) -> None: ...

class VerifyFinding(_message.Message):
    __slots__ = ("reason", "namespace", "thread", "uid", "version", "sequence", "message")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    reason: _error_reason_pb2.ErrorReason
    namespace: str
    thread: str
    uid: str
    version: int
    sequence: int
    message: str
    def __init__(self, reason: _Optional[_Union[_error_reason_pb2.ErrorReason, str]] = ..., namespace: _Optional[str] = ..., thread: _Optional[str] = ..., uid: _Optional[str] = ..., version: _Optional[int] = ..., sequence: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class RekeyThreadRequest(_message.Message):
    __slots__ = ("namespace", "thread", "expected_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    expected_uid: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., expected_uid: _Optional[str] = ...) -> None: ...

class RekeyThreadResponse(_message.Message):
    __slots__ = ("old_uid", "uid", "entries")
    OLD_UID_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    old_uid: str
    uid: str
    entries: int
    def __init__(self, old_uid: _Optional[str] = ..., uid: _Optional[str] = ..., entries: _Optional[int] = ...) -> None: ...

class CompactRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CompactResponse(_message.Message):
    __slots__ = ("before_bytes", "after_bytes", "pause", "old_file_removed")
    BEFORE_BYTES_FIELD_NUMBER: _ClassVar[int]
    AFTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_FIELD_NUMBER: _ClassVar[int]
    OLD_FILE_REMOVED_FIELD_NUMBER: _ClassVar[int]
    before_bytes: int
    after_bytes: int
    pause: _duration_pb2.Duration
    old_file_removed: bool
    def __init__(self, before_bytes: _Optional[int] = ..., after_bytes: _Optional[int] = ..., pause: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., old_file_removed: bool = ...) -> None: ...

class DrainRequest(_message.Message):
    __slots__ = ("undo", "grace")
    UNDO_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    undo: bool
    grace: _duration_pb2.Duration
    def __init__(self, undo: bool = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class DrainResponse(_message.Message):
    __slots__ = ("detached_threads", "dirty_threads", "ready")
    DETACHED_THREADS_FIELD_NUMBER: _ClassVar[int]
    DIRTY_THREADS_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    detached_threads: int
    dirty_threads: int
    ready: bool
    def __init__(self, detached_threads: _Optional[int] = ..., dirty_threads: _Optional[int] = ..., ready: bool = ...) -> None: ...

class DiagnoseRequest(_message.Message):
    __slots__ = ("probe_bucket",)
    PROBE_BUCKET_FIELD_NUMBER: _ClassVar[int]
    probe_bucket: bool
    def __init__(self, probe_bucket: bool = ...) -> None: ...

class DiagnoseResponse(_message.Message):
    __slots__ = ("diagnoses", "time")
    DIAGNOSES_FIELD_NUMBER: _ClassVar[int]
    TIME_FIELD_NUMBER: _ClassVar[int]
    diagnoses: _containers.RepeatedCompositeFieldContainer[Diagnosis]
    time: _timestamp_pb2.Timestamp
    def __init__(self, diagnoses: _Optional[_Iterable[_Union[Diagnosis, _Mapping]]] = ..., time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Diagnosis(_message.Message):
    __slots__ = ("check", "verdict", "summary", "advice", "facts")
    class Verdict(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        VERDICT_UNSPECIFIED: _ClassVar[Diagnosis.Verdict]
        VERDICT_OK: _ClassVar[Diagnosis.Verdict]
        VERDICT_WARNING: _ClassVar[Diagnosis.Verdict]
        VERDICT_FAILED: _ClassVar[Diagnosis.Verdict]
        VERDICT_SKIPPED: _ClassVar[Diagnosis.Verdict]
    VERDICT_UNSPECIFIED: Diagnosis.Verdict
    VERDICT_OK: Diagnosis.Verdict
    VERDICT_WARNING: Diagnosis.Verdict
    VERDICT_FAILED: Diagnosis.Verdict
    VERDICT_SKIPPED: Diagnosis.Verdict
    class FactsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CHECK_FIELD_NUMBER: _ClassVar[int]
    VERDICT_FIELD_NUMBER: _ClassVar[int]
    SUMMARY_FIELD_NUMBER: _ClassVar[int]
    ADVICE_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    check: str
    verdict: Diagnosis.Verdict
    summary: str
    advice: str
    facts: _containers.ScalarMap[str, str]
    def __init__(self, check: _Optional[str] = ..., verdict: _Optional[_Union[Diagnosis.Verdict, str]] = ..., summary: _Optional[str] = ..., advice: _Optional[str] = ..., facts: _Optional[_Mapping[str, str]] = ...) -> None: ...
