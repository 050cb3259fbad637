from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SendSignalRequest(_message.Message):
    __slots__ = ("namespace", "thread", "name", "payload", "sender", "wait_id", "request_id", "durability", "expected_uid", "expected_sequence", "expected_sequence_digest", "parts")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SEQUENCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    name: str
    payload: _state_pb2.Value
    sender: str
    wait_id: str
    request_id: str
    durability: _checkpoint_pb2.Durability
    expected_uid: str
    expected_sequence: int
    expected_sequence_digest: bytes
    parts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., name: _Optional[str] = ..., payload: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., sender: _Optional[str] = ..., wait_id: _Optional[str] = ..., request_id: _Optional[str] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., expected_uid: _Optional[str] = ..., expected_sequence: _Optional[int] = ..., expected_sequence_digest: _Optional[bytes] = ..., parts: _Optional[_Iterable[str]] = ...) -> None: ...

class SendSignalResponse(_message.Message):
    __slots__ = ("signal", "durability", "archived_sequence", "replayed", "uid", "digest")
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REPLAYED_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    signal: _signal_pb2.Signal
    durability: _checkpoint_pb2.Durability
    archived_sequence: int
    replayed: bool
    uid: str
    digest: bytes
    def __init__(self, signal: _Optional[_Union[_signal_pb2.Signal, _Mapping]] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., archived_sequence: _Optional[int] = ..., replayed: bool = ..., uid: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class ListSignalsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "page_size", "page_token", "acknowledged_by")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_BY_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    page_size: int
    page_token: str
    acknowledged_by: _checkpoint_pb2.VersionRef
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., acknowledged_by: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ...) -> None: ...

class ListSignalsResponse(_message.Message):
    __slots__ = ("signals", "next_page_token")
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    signals: _containers.RepeatedCompositeFieldContainer[_signal_pb2.Signal]
    next_page_token: str
    def __init__(self, signals: _Optional[_Iterable[_Union[_signal_pb2.Signal, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...
