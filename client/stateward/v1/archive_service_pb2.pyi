import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import admin_service_pb2 as _admin_service_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class GetArchiveRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetArchiveResponse(_message.Message):
    __slots__ = ("url", "archive_id", "owner_id", "stats", "interval", "lease")
    URL_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    STATS_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    url: str
    archive_id: str
    owner_id: str
    stats: _admin_service_pb2.ArchiveStats
    interval: _duration_pb2.Duration
    lease: _duration_pb2.Duration
    def __init__(self, url: _Optional[str] = ..., archive_id: _Optional[str] = ..., owner_id: _Optional[str] = ..., stats: _Optional[_Union[_admin_service_pb2.ArchiveStats, _Mapping]] = ..., interval: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., lease: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class ListArchiveRequest(_message.Message):
    __slots__ = ("namespace", "index", "elsewhere")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    ELSEWHERE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    index: bool
    elsewhere: bool
    def __init__(self, namespace: _Optional[str] = ..., index: bool = ..., elsewhere: bool = ...) -> None: ...

class ListArchiveResponse(_message.Message):
    __slots__ = ("thread", "detached", "object_bytes", "archive_time", "problem")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_TIME_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.ThreadInfo
    detached: bool
    object_bytes: int
    archive_time: _timestamp_pb2.Timestamp
    problem: str
    def __init__(self, thread: _Optional[_Union[_thread_pb2.ThreadInfo, _Mapping]] = ..., detached: bool = ..., object_bytes: _Optional[int] = ..., archive_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., problem: _Optional[str] = ...) -> None: ...

class VerifyArchiveRequest(_message.Message):
    __slots__ = ("namespace", "thread", "data_percent", "deleted_keys")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    DATA_PERCENT_FIELD_NUMBER: _ClassVar[int]
    DELETED_KEYS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    data_percent: float
    deleted_keys: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., data_percent: _Optional[float] = ..., deleted_keys: bool = ...) -> None: ...

class VerifyArchiveResponse(_message.Message):
    __slots__ = ("progress", "finding", "deleted_key")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    FINDING_FIELD_NUMBER: _ClassVar[int]
    DELETED_KEY_FIELD_NUMBER: _ClassVar[int]
    progress: _admin_service_pb2.ScanProgress
    finding: _admin_service_pb2.VerifyFinding
    deleted_key: _admin_service_pb2.DeletedKey
    def __init__(self, progress: _Optional[_Union[_admin_service_pb2.ScanProgress, _Mapping]] = ..., finding: _Optional[_Union[_admin_service_pb2.VerifyFinding, _Mapping]] = ..., deleted_key: _Optional[_Union[_admin_service_pb2.DeletedKey, _Mapping]] = ...) -> None: ...

class RestoreArchiveRequest(_message.Message):
    __slots__ = ("namespace", "thread", "dry_run")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    dry_run: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class RestoreArchiveResponse(_message.Message):
    __slots__ = ("progress", "entries", "thread", "problem")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    progress: _admin_service_pb2.ScanProgress
    entries: int
    thread: str
    problem: str
    def __init__(self, progress: _Optional[_Union[_admin_service_pb2.ScanProgress, _Mapping]] = ..., entries: _Optional[int] = ..., thread: _Optional[str] = ..., problem: _Optional[str] = ...) -> None: ...

class CollectGarbageRequest(_message.Message):
    __slots__ = ("namespace", "dry_run", "grace")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    GRACE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    dry_run: bool
    grace: _duration_pb2.Duration
    def __init__(self, namespace: _Optional[str] = ..., dry_run: bool = ..., grace: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class CollectGarbageResponse(_message.Message):
    __slots__ = ("progress", "removed", "removed_bytes", "key", "failed", "problem")
    PROGRESS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    REMOVED_BYTES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    progress: _admin_service_pb2.ScanProgress
    removed: int
    removed_bytes: int
    key: str
    failed: int
    problem: str
    def __init__(self, progress: _Optional[_Union[_admin_service_pb2.ScanProgress, _Mapping]] = ..., removed: _Optional[int] = ..., removed_bytes: _Optional[int] = ..., key: _Optional[str] = ..., failed: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class RepairThreadRequest(_message.Message):
    __slots__ = ("namespace", "thread", "dry_run")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    dry_run: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., dry_run: bool = ...) -> None: ...

class RepairThreadResponse(_message.Message):
    __slots__ = ("thread", "findings")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    FINDINGS_FIELD_NUMBER: _ClassVar[int]
    thread: _thread_pb2.ThreadInfo
    findings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, thread: _Optional[_Union[_thread_pb2.ThreadInfo, _Mapping]] = ..., findings: _Optional[_Iterable[str]] = ...) -> None: ...
