import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from stateward.v1 import lease_pb2 as _lease_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AcquireLeaseRequest(_message.Message):
    __slots__ = ("namespace", "thread", "holder", "term", "wait", "take_over", "request_id", "create", "expected_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    TAKE_OVER_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    holder: _lease_pb2.Holder
    term: _duration_pb2.Duration
    wait: _duration_pb2.Duration
    take_over: bool
    request_id: str
    create: _thread_pb2.ThreadOptions
    expected_uid: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., holder: _Optional[_Union[_lease_pb2.Holder, _Mapping]] = ..., term: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., take_over: bool = ..., request_id: _Optional[str] = ..., create: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., expected_uid: _Optional[str] = ...) -> None: ...

class AcquireLeaseResponse(_message.Message):
    __slots__ = ("lease", "version", "digest", "sequence", "uid")
    LEASE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    lease: _lease_pb2.Lease
    version: int
    digest: bytes
    sequence: int
    uid: str
    def __init__(self, lease: _Optional[_Union[_lease_pb2.Lease, _Mapping]] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ..., sequence: _Optional[int] = ..., uid: _Optional[str] = ...) -> None: ...

class RenewLeaseRequest(_message.Message):
    __slots__ = ("namespace", "thread", "token", "expected_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    token: int
    expected_uid: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., token: _Optional[int] = ..., expected_uid: _Optional[str] = ...) -> None: ...

class RenewLeaseResponse(_message.Message):
    __slots__ = ("lease",)
    LEASE_FIELD_NUMBER: _ClassVar[int]
    lease: _lease_pb2.Lease
    def __init__(self, lease: _Optional[_Union[_lease_pb2.Lease, _Mapping]] = ...) -> None: ...

class ReleaseLeaseRequest(_message.Message):
    __slots__ = ("namespace", "thread", "token", "expected_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    token: int
    expected_uid: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., token: _Optional[int] = ..., expected_uid: _Optional[str] = ...) -> None: ...

class ReleaseLeaseResponse(_message.Message):
    __slots__ = ("released",)
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    released: bool
    def __init__(self, released: bool = ...) -> None: ...
