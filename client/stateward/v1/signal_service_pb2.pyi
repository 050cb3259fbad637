from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import state_pb2 as _state_pb2
from stateward.v1 import write_pb2 as _write_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SendSignalRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "name", "payload", "sender", "wait_id", "expected_sequence", "expected_sequence_digest", "parts")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SEQUENCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    name: str
    payload: _state_pb2.Value
    sender: str
    wait_id: str
    expected_sequence: int
    expected_sequence_digest: bytes
    parts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., name: _Optional[str] = ..., payload: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., sender: _Optional[str] = ..., wait_id: _Optional[str] = ..., expected_sequence: _Optional[int] = ..., expected_sequence_digest: _Optional[bytes] = ..., parts: _Optional[_Iterable[str]] = ...) -> None: ...

class SendSignalResponse(_message.Message):
    __slots__ = ("receipt", "signal")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    signal: _signal_pb2.Signal
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., signal: _Optional[_Union[_signal_pb2.Signal, _Mapping]] = ...) -> None: ...

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
