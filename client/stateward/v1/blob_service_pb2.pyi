import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import state_pb2 as _state_pb2
from stateward.v1 import write_pb2 as _write_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WriteBlobRequest(_message.Message):
    __slots__ = ("begin", "data")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    begin: BlobBegin
    data: bytes
    def __init__(self, begin: _Optional[_Union[BlobBegin, _Mapping]] = ..., data: _Optional[bytes] = ...) -> None: ...

class BlobBegin(_message.Message):
    __slots__ = ("namespace", "thread", "options", "media_type", "sha256", "size_bytes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    media_type: str
    sha256: bytes
    size_bytes: int
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., media_type: _Optional[str] = ..., sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class WriteBlobResponse(_message.Message):
    __slots__ = ("receipt", "blob", "existed")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    blob: _state_pb2.BlobRef
    existed: bool
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., blob: _Optional[_Union[_state_pb2.BlobRef, _Mapping]] = ..., existed: bool = ...) -> None: ...

class ReadBlobRequest(_message.Message):
    __slots__ = ("namespace", "thread", "blob", "offset", "length")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    blob: _state_pb2.BlobRef
    offset: int
    length: int
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., blob: _Optional[_Union[_state_pb2.BlobRef, _Mapping]] = ..., offset: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class ReadBlobResponse(_message.Message):
    __slots__ = ("blob", "media_type", "offset", "data")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    blob: _state_pb2.BlobRef
    media_type: str
    offset: int
    data: bytes
    def __init__(self, blob: _Optional[_Union[_state_pb2.BlobRef, _Mapping]] = ..., media_type: _Optional[str] = ..., offset: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class StatBlobRequest(_message.Message):
    __slots__ = ("namespace", "thread", "sha256")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    sha256: bytes
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class StatBlobResponse(_message.Message):
    __slots__ = ("blob", "media_type", "sequence", "durability", "write_time", "stored_bytes", "is_here")
    BLOB_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    WRITE_TIME_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    IS_HERE_FIELD_NUMBER: _ClassVar[int]
    blob: _state_pb2.BlobRef
    media_type: str
    sequence: int
    durability: _checkpoint_pb2.Durability
    write_time: _timestamp_pb2.Timestamp
    stored_bytes: int
    is_here: bool
    def __init__(self, blob: _Optional[_Union[_state_pb2.BlobRef, _Mapping]] = ..., media_type: _Optional[str] = ..., sequence: _Optional[int] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., write_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stored_bytes: _Optional[int] = ..., is_here: bool = ...) -> None: ...
