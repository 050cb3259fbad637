import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from stateward.v1 import checkpoint_service_pb2 as _checkpoint_service_pb2
from stateward.v1 import error_reason_pb2 as _error_reason_pb2
from stateward.v1 import lease_pb2 as _lease_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WriteRequest(_message.Message):
    __slots__ = ("open", "save", "reset")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    open: OpenWriter
    save: WriterSave
    reset: ResetWriter
    def __init__(self, open: _Optional[_Union[OpenWriter, _Mapping]] = ..., save: _Optional[_Union[WriterSave, _Mapping]] = ..., reset: _Optional[_Union[ResetWriter, _Mapping]] = ...) -> None: ...

class OpenWriter(_message.Message):
    __slots__ = ("namespace", "thread", "branch", "holder", "term", "wait", "take_over", "request_id", "create", "expected_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    branch: str
    holder: _lease_pb2.Holder
    term: _duration_pb2.Duration
    wait: _duration_pb2.Duration
    take_over: bool
    request_id: str
    create: _thread_pb2.ThreadOptions
    expected_uid: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., branch: _Optional[str] = ..., holder: _Optional[_Union[_lease_pb2.Holder, _Mapping]] = ..., term: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., take_over: bool = ..., request_id: _Optional[str] = ..., create: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., expected_uid: _Optional[str] = ...) -> None: ...

class WriterSave(_message.Message):
    __slots__ = ("frame", "save", "awaited", "traceparent")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    AWAITED_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    frame: int
    save: _checkpoint_service_pb2.SaveRequest
    awaited: bool
    traceparent: str
    def __init__(self, frame: _Optional[int] = ..., save: _Optional[_Union[_checkpoint_service_pb2.SaveRequest, _Mapping]] = ..., awaited: bool = ..., traceparent: _Optional[str] = ...) -> None: ...

class ResetWriter(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WriteResponse(_message.Message):
    __slots__ = ("opened", "saved", "refused", "reset")
    OPENED_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    RESET_FIELD_NUMBER: _ClassVar[int]
    opened: WriterOpened
    saved: WriterSaved
    refused: WriterRefused
    reset: WriterReset
    def __init__(self, opened: _Optional[_Union[WriterOpened, _Mapping]] = ..., saved: _Optional[_Union[WriterSaved, _Mapping]] = ..., refused: _Optional[_Union[WriterRefused, _Mapping]] = ..., reset: _Optional[_Union[WriterReset, _Mapping]] = ...) -> None: ...

class WriterOpened(_message.Message):
    __slots__ = ("lease", "version", "digest", "last_version", "uid")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    lease: _lease_pb2.Lease
    version: int
    digest: bytes
    last_version: int
    uid: str
    def __init__(self, lease: _Optional[_Union[_lease_pb2.Lease, _Mapping]] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ..., last_version: _Optional[int] = ..., uid: _Optional[str] = ...) -> None: ...

class WriterSaved(_message.Message):
    __slots__ = ("frame", "save")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    frame: int
    save: _checkpoint_service_pb2.SaveResponse
    def __init__(self, frame: _Optional[int] = ..., save: _Optional[_Union[_checkpoint_service_pb2.SaveResponse, _Mapping]] = ...) -> None: ...

class WriterRefused(_message.Message):
    __slots__ = ("frame", "reason", "message", "metadata", "reason_name", "code")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    FRAME_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    REASON_NAME_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    frame: int
    reason: _error_reason_pb2.ErrorReason
    message: str
    metadata: _containers.ScalarMap[str, str]
    reason_name: str
    code: int
    def __init__(self, frame: _Optional[int] = ..., reason: _Optional[_Union[_error_reason_pb2.ErrorReason, str]] = ..., message: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., reason_name: _Optional[str] = ..., code: _Optional[int] = ...) -> None: ...

class WriterReset(_message.Message):
    __slots__ = ("version", "digest", "last_version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    digest: bytes
    last_version: int
    def __init__(self, version: _Optional[int] = ..., digest: _Optional[bytes] = ..., last_version: _Optional[int] = ...) -> None: ...
