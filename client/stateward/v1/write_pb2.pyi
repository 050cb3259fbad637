from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WriteOptions(_message.Message):
    __slots__ = ("request_id", "expected_uid", "expected_version", "expected_digest", "lease_token", "durability", "create")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_VERSION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    request_id: str
    expected_uid: str
    expected_version: int
    expected_digest: bytes
    lease_token: int
    durability: _checkpoint_pb2.Durability
    create: _thread_pb2.ThreadOptions
    def __init__(self, request_id: _Optional[str] = ..., expected_uid: _Optional[str] = ..., expected_version: _Optional[int] = ..., expected_digest: _Optional[bytes] = ..., lease_token: _Optional[int] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., create: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ...) -> None: ...

class Receipt(_message.Message):
    __slots__ = ("uid", "sequence", "digest", "durability", "archived_sequence", "replayed")
    UID_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    uid: str
    sequence: int
    digest: bytes
    durability: _checkpoint_pb2.Durability
    archived_sequence: int
    replayed: bool
    def __init__(self, uid: _Optional[str] = ..., sequence: _Optional[int] = ..., digest: _Optional[bytes] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., archived_sequence: _Optional[int] = ..., replayed: bool = ...) -> None: ...
