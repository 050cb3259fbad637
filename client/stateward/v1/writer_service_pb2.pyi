import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.rpc import status_pb2 as _status_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_service_pb2 as _checkpoint_service_pb2
from stateward.v1 import lease_pb2 as _lease_pb2
from stateward.v1 import write_pb2 as _write_pb2
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
    __slots__ = ("namespace", "thread", "options", "branch", "holder", "term", "wait", "take_over")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    branch: str
    holder: _lease_pb2.Holder
    term: _duration_pb2.Duration
    wait: _duration_pb2.Duration
    take_over: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., branch: _Optional[str] = ..., holder: _Optional[_Union[_lease_pb2.Holder, _Mapping]] = ..., term: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., take_over: bool = ...) -> None: ...

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
    __slots__ = ("receipt", "lease", "version", "version_digest", "last_version")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    lease: _lease_pb2.Lease
    version: int
    version_digest: bytes
    last_version: int
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., lease: _Optional[_Union[_lease_pb2.Lease, _Mapping]] = ..., version: _Optional[int] = ..., version_digest: _Optional[bytes] = ..., last_version: _Optional[int] = ...) -> None: ...

class WriterSaved(_message.Message):
    __slots__ = ("frame", "save")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    frame: int
    save: _checkpoint_service_pb2.SaveResponse
    def __init__(self, frame: _Optional[int] = ..., save: _Optional[_Union[_checkpoint_service_pb2.SaveResponse, _Mapping]] = ...) -> None: ...

class WriterRefused(_message.Message):
    __slots__ = ("frame", "status")
    FRAME_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    frame: int
    status: _status_pb2.Status
    def __init__(self, frame: _Optional[int] = ..., status: _Optional[_Union[_status_pb2.Status, _Mapping]] = ...) -> None: ...

class WriterReset(_message.Message):
    __slots__ = ("version", "version_digest", "last_version")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    version_digest: bytes
    last_version: int
    def __init__(self, version: _Optional[int] = ..., version_digest: _Optional[bytes] = ..., last_version: _Optional[int] = ...) -> None: ...
