from stateward.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Snapshot(_message.Message):
    __slots__ = ("slots", "logs", "retired_logs")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    RETIRED_LOGS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedCompositeFieldContainer[NamedValue]
    logs: _containers.RepeatedCompositeFieldContainer[NamedLog]
    retired_logs: _containers.RepeatedCompositeFieldContainer[RetiredLog]
    def __init__(self, slots: _Optional[_Iterable[_Union[NamedValue, _Mapping]]] = ..., logs: _Optional[_Iterable[_Union[NamedLog, _Mapping]]] = ..., retired_logs: _Optional[_Iterable[_Union[RetiredLog, _Mapping]]] = ...) -> None: ...

class NamedValue(_message.Message):
    __slots__ = ("name", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    value: _state_pb2.Value
    def __init__(self, name: _Optional[str] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ...) -> None: ...

class NamedLog(_message.Message):
    __slots__ = ("name", "entries", "first_index", "rewritten_version", "runs")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    REWRITTEN_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUNS_FIELD_NUMBER: _ClassVar[int]
    name: str
    entries: _containers.RepeatedCompositeFieldContainer[_state_pb2.Value]
    first_index: int
    rewritten_version: int
    runs: _containers.RepeatedCompositeFieldContainer[LogRun]
    def __init__(self, name: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[_state_pb2.Value, _Mapping]]] = ..., first_index: _Optional[int] = ..., rewritten_version: _Optional[int] = ..., runs: _Optional[_Iterable[_Union[LogRun, _Mapping]]] = ...) -> None: ...

class LogRun(_message.Message):
    __slots__ = ("segment", "entries", "segment_count", "segment_bytes", "skipped", "count", "size_bytes", "blobs")
    SEGMENT_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_COUNT_FIELD_NUMBER: _ClassVar[int]
    SEGMENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    segment: bytes
    entries: _containers.RepeatedCompositeFieldContainer[_state_pb2.Value]
    segment_count: int
    segment_bytes: int
    skipped: int
    count: int
    size_bytes: int
    blobs: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, segment: _Optional[bytes] = ..., entries: _Optional[_Iterable[_Union[_state_pb2.Value, _Mapping]]] = ..., segment_count: _Optional[int] = ..., segment_bytes: _Optional[int] = ..., skipped: _Optional[int] = ..., count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., blobs: _Optional[_Iterable[bytes]] = ...) -> None: ...

class RetiredLog(_message.Message):
    __slots__ = ("name", "next_index")
    NAME_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    name: str
    next_index: int
    def __init__(self, name: _Optional[str] = ..., next_index: _Optional[int] = ...) -> None: ...
