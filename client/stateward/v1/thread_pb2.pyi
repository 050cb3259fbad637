import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import error_reason_pb2 as _error_reason_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ThreadAccess(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    THREAD_ACCESS_UNSPECIFIED: _ClassVar[ThreadAccess]
    THREAD_ACCESS_OWNED: _ClassVar[ThreadAccess]
    THREAD_ACCESS_REMOTE: _ClassVar[ThreadAccess]
    THREAD_ACCESS_ORPHAN: _ClassVar[ThreadAccess]
THREAD_ACCESS_UNSPECIFIED: ThreadAccess
THREAD_ACCESS_OWNED: ThreadAccess
THREAD_ACCESS_REMOTE: ThreadAccess
THREAD_ACCESS_ORPHAN: ThreadAccess

class Retention(_message.Message):
    __slots__ = ("keep_last", "keep_for")
    KEEP_LAST_FIELD_NUMBER: _ClassVar[int]
    KEEP_FOR_FIELD_NUMBER: _ClassVar[int]
    keep_last: int
    keep_for: _duration_pb2.Duration
    def __init__(self, keep_last: _Optional[int] = ..., keep_for: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ThreadOptions(_message.Message):
    __slots__ = ("labels", "ttl", "retention", "parent_thread", "agent", "held_key")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    LABELS_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    PARENT_THREAD_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    HELD_KEY_FIELD_NUMBER: _ClassVar[int]
    labels: _containers.ScalarMap[str, str]
    ttl: _duration_pb2.Duration
    retention: Retention
    parent_thread: str
    agent: str
    held_key: bool
    def __init__(self, labels: _Optional[_Mapping[str, str]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ..., parent_thread: _Optional[str] = ..., agent: _Optional[str] = ..., held_key: bool = ...) -> None: ...

class Branch(_message.Message):
    __slots__ = ("name", "version", "version_digest", "base_version", "moved_version", "newest_version", "first_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    MOVED_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    version_digest: bytes
    base_version: int
    moved_version: int
    newest_version: int
    first_version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., version_digest: _Optional[bytes] = ..., base_version: _Optional[int] = ..., moved_version: _Optional[int] = ..., newest_version: _Optional[int] = ..., first_version: _Optional[int] = ...) -> None: ...

class Tag(_message.Message):
    __slots__ = ("name", "version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class ForkSource(_message.Message):
    __slots__ = ("thread", "uid", "version")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    thread: str
    uid: str
    version: int
    def __init__(self, thread: _Optional[str] = ..., uid: _Optional[str] = ..., version: _Optional[int] = ...) -> None: ...

class UnreadableThread(_message.Message):
    __slots__ = ("uid", "thread", "reason", "message", "create_time", "update_time", "stored_bytes")
    UID_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    uid: str
    thread: str
    reason: _error_reason_pb2.ErrorReason
    message: str
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    stored_bytes: int
    def __init__(self, uid: _Optional[str] = ..., thread: _Optional[str] = ..., reason: _Optional[_Union[_error_reason_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class UnreadablePart(_message.Message):
    __slots__ = ("version", "key", "anchor", "message")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    version: int
    key: str
    anchor: str
    message: str
    def __init__(self, version: _Optional[int] = ..., key: _Optional[str] = ..., anchor: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class Orphan(_message.Message):
    __slots__ = ("thread", "common_sequence", "epoch")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    COMMON_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    thread: str
    common_sequence: int
    epoch: int
    def __init__(self, thread: _Optional[str] = ..., common_sequence: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class ThreadInfo(_message.Message):
    __slots__ = ("namespace", "thread", "uid", "version", "version_digest", "status", "status_detail", "step", "metrics", "labels", "create_time", "update_time", "ttl", "expire_time", "retention", "parent_thread", "agent", "forked_from", "sequence", "archived_sequence", "last_version", "retained_versions", "stored_bytes", "wait_id", "access", "owner_id", "owner_epoch", "orphan", "question", "pending_signals", "effects", "records", "record_bytes", "sequence_digest")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    RETENTION_FIELD_NUMBER: _ClassVar[int]
    PARENT_THREAD_FIELD_NUMBER: _ClassVar[int]
    AGENT_FIELD_NUMBER: _ClassVar[int]
    FORKED_FROM_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    RETAINED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    PENDING_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    uid: str
    version: int
    version_digest: bytes
    status: _checkpoint_pb2.WorkStatus
    status_detail: str
    step: int
    metrics: _containers.ScalarMap[str, float]
    labels: _containers.ScalarMap[str, str]
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    ttl: _duration_pb2.Duration
    expire_time: _timestamp_pb2.Timestamp
    retention: Retention
    parent_thread: str
    agent: str
    forked_from: ForkSource
    sequence: int
    archived_sequence: int
    last_version: int
    retained_versions: int
    stored_bytes: int
    wait_id: str
    access: ThreadAccess
    owner_id: str
    owner_epoch: int
    orphan: Orphan
    question: _signal_pb2.Question
    pending_signals: int
    effects: int
    records: int
    record_bytes: int
    sequence_digest: bytes
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., uid: _Optional[str] = ..., version: _Optional[int] = ..., version_digest: _Optional[bytes] = ..., status: _Optional[_Union[_checkpoint_pb2.WorkStatus, str]] = ..., status_detail: _Optional[str] = ..., step: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., labels: _Optional[_Mapping[str, str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., retention: _Optional[_Union[Retention, _Mapping]] = ..., parent_thread: _Optional[str] = ..., agent: _Optional[str] = ..., forked_from: _Optional[_Union[ForkSource, _Mapping]] = ..., sequence: _Optional[int] = ..., archived_sequence: _Optional[int] = ..., last_version: _Optional[int] = ..., retained_versions: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., wait_id: _Optional[str] = ..., access: _Optional[_Union[ThreadAccess, str]] = ..., owner_id: _Optional[str] = ..., owner_epoch: _Optional[int] = ..., orphan: _Optional[_Union[Orphan, _Mapping]] = ..., question: _Optional[_Union[_signal_pb2.Question, _Mapping]] = ..., pending_signals: _Optional[int] = ..., effects: _Optional[int] = ..., records: _Optional[int] = ..., record_bytes: _Optional[int] = ..., sequence_digest: _Optional[bytes] = ...) -> None: ...
