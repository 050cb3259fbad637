import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import diff_pb2 as _diff_pb2
from stateward.v1 import effect_pb2 as _effect_pb2
from stateward.v1 import record_pb2 as _record_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import state_pb2 as _state_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from stateward.v1 import workspace_pb2 as _workspace_pb2
from stateward.v1 import write_pb2 as _write_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ExportThreadRequest(_message.Message):
    __slots__ = ("namespace", "thread")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ...) -> None: ...

class ExportThreadResponse(_message.Message):
    __slots__ = ("parts",)
    PARTS_FIELD_NUMBER: _ClassVar[int]
    parts: _containers.RepeatedCompositeFieldContainer[ThreadPart]
    def __init__(self, parts: _Optional[_Iterable[_Union[ThreadPart, _Mapping]]] = ...) -> None: ...

class ImportThreadRequest(_message.Message):
    __slots__ = ("begin", "parts")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    begin: ImportBegin
    parts: _containers.RepeatedCompositeFieldContainer[ThreadPart]
    def __init__(self, begin: _Optional[_Union[ImportBegin, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[ThreadPart, _Mapping]]] = ...) -> None: ...

class ImportBegin(_message.Message):
    __slots__ = ("namespace", "thread", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class ImportThreadResponse(_message.Message):
    __slots__ = ("receipt", "thread")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    thread: _thread_pb2.ThreadInfo
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., thread: _Optional[_Union[_thread_pb2.ThreadInfo, _Mapping]] = ...) -> None: ...

class ThreadPart(_message.Message):
    __slots__ = ("thread", "blob", "blob_data", "version", "state", "diff", "effect", "signal", "end", "record", "entry", "objects")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    BLOB_DATA_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    thread: BackupThread
    blob: BackupBlob
    blob_data: bytes
    version: BackupVersion
    state: _state_pb2.State
    diff: _diff_pb2.Diff
    effect: BackupEffect
    signal: BackupSignal
    end: BackupEnd
    record: BackupRecord
    entry: BackupEntry
    objects: _workspace_pb2.TreeObjects
    def __init__(self, thread: _Optional[_Union[BackupThread, _Mapping]] = ..., blob: _Optional[_Union[BackupBlob, _Mapping]] = ..., blob_data: _Optional[bytes] = ..., version: _Optional[_Union[BackupVersion, _Mapping]] = ..., state: _Optional[_Union[_state_pb2.State, _Mapping]] = ..., diff: _Optional[_Union[_diff_pb2.Diff, _Mapping]] = ..., effect: _Optional[_Union[BackupEffect, _Mapping]] = ..., signal: _Optional[_Union[BackupSignal, _Mapping]] = ..., end: _Optional[_Union[BackupEnd, _Mapping]] = ..., record: _Optional[_Union[BackupRecord, _Mapping]] = ..., entry: _Optional[_Union[BackupEntry, _Mapping]] = ..., objects: _Optional[_Union[_workspace_pb2.TreeObjects, _Mapping]] = ...) -> None: ...

class BackupThread(_message.Message):
    __slots__ = ("options", "create_time", "update_time", "forked_from", "token_floor", "oldest_time")
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    FORKED_FROM_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FLOOR_FIELD_NUMBER: _ClassVar[int]
    OLDEST_TIME_FIELD_NUMBER: _ClassVar[int]
    options: _thread_pb2.ThreadOptions
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    forked_from: _thread_pb2.ForkSource
    token_floor: int
    oldest_time: _timestamp_pb2.Timestamp
    def __init__(self, options: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., forked_from: _Optional[_Union[_thread_pb2.ForkSource, _Mapping]] = ..., token_floor: _Optional[int] = ..., oldest_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class BackupBlob(_message.Message):
    __slots__ = ("blob", "media_type")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    blob: _state_pb2.BlobRef
    media_type: str
    def __init__(self, blob: _Optional[_Union[_state_pb2.BlobRef, _Mapping]] = ..., media_type: _Optional[str] = ...) -> None: ...

class BackupVersion(_message.Message):
    __slots__ = ("checkpoint", "whole", "retired_logs", "acked_signals", "request")
    class RetiredLogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    RETIRED_LOGS_FIELD_NUMBER: _ClassVar[int]
    ACKED_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    whole: bool
    retired_logs: _containers.ScalarMap[str, int]
    acked_signals: _containers.RepeatedScalarFieldContainer[str]
    request: RequestMark
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ..., whole: bool = ..., retired_logs: _Optional[_Mapping[str, int]] = ..., acked_signals: _Optional[_Iterable[str]] = ..., request: _Optional[_Union[RequestMark, _Mapping]] = ...) -> None: ...

class RequestMark(_message.Message):
    __slots__ = ("id_hash", "fingerprint")
    ID_HASH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    id_hash: bytes
    fingerprint: bytes
    def __init__(self, id_hash: _Optional[bytes] = ..., fingerprint: _Optional[bytes] = ...) -> None: ...

class BackupEffect(_message.Message):
    __slots__ = ("effect", "idempotency_key")
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    effect: _effect_pb2.RecordedEffect
    idempotency_key: str
    def __init__(self, effect: _Optional[_Union[_effect_pb2.RecordedEffect, _Mapping]] = ..., idempotency_key: _Optional[str] = ...) -> None: ...

class BackupRecord(_message.Message):
    __slots__ = ("record",)
    RECORD_FIELD_NUMBER: _ClassVar[int]
    record: _record_pb2.StoredRecord
    def __init__(self, record: _Optional[_Union[_record_pb2.StoredRecord, _Mapping]] = ...) -> None: ...

class BackupSignal(_message.Message):
    __slots__ = ("signal", "request")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    signal: _signal_pb2.Signal
    request: RequestMark
    def __init__(self, signal: _Optional[_Union[_signal_pb2.Signal, _Mapping]] = ..., request: _Optional[_Union[RequestMark, _Mapping]] = ...) -> None: ...

class BackupEntry(_message.Message):
    __slots__ = ("kind", "metadata", "content")
    KIND_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    kind: int
    metadata: bytes
    content: bytes
    def __init__(self, kind: _Optional[int] = ..., metadata: _Optional[bytes] = ..., content: _Optional[bytes] = ...) -> None: ...

class BackupEnd(_message.Message):
    __slots__ = ("last_version", "branches", "tags", "versions", "blobs", "effects", "signals", "deleted_branches", "records", "entries", "objects")
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    VERSIONS_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    DELETED_BRANCHES_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    last_version: int
    branches: _containers.RepeatedCompositeFieldContainer[_thread_pb2.Branch]
    tags: _containers.RepeatedCompositeFieldContainer[_thread_pb2.Tag]
    versions: int
    blobs: int
    effects: int
    signals: int
    deleted_branches: _containers.RepeatedScalarFieldContainer[str]
    records: int
    entries: int
    objects: int
    def __init__(self, last_version: _Optional[int] = ..., branches: _Optional[_Iterable[_Union[_thread_pb2.Branch, _Mapping]]] = ..., tags: _Optional[_Iterable[_Union[_thread_pb2.Tag, _Mapping]]] = ..., versions: _Optional[int] = ..., blobs: _Optional[int] = ..., effects: _Optional[int] = ..., signals: _Optional[int] = ..., deleted_branches: _Optional[_Iterable[str]] = ..., records: _Optional[int] = ..., entries: _Optional[int] = ..., objects: _Optional[int] = ...) -> None: ...
