from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Value(_message.Message):
    __slots__ = ("media_type", "data", "blob", "number")
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    media_type: str
    data: bytes
    blob: BlobRef
    number: int
    def __init__(self, media_type: _Optional[str] = ..., data: _Optional[bytes] = ..., blob: _Optional[_Union[BlobRef, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class BlobRef(_message.Message):
    __slots__ = ("sha256", "size_bytes", "preview")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size_bytes: int
    preview: bytes
    def __init__(self, sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., preview: _Optional[bytes] = ...) -> None: ...

class Log(_message.Message):
    __slots__ = ("first_index", "entries", "rewritten_version")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    REWRITTEN_VERSION_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    entries: _containers.RepeatedCompositeFieldContainer[Value]
    rewritten_version: int
    def __init__(self, first_index: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[Value, _Mapping]]] = ..., rewritten_version: _Optional[int] = ...) -> None: ...

class State(_message.Message):
    __slots__ = ("slots", "logs", "partial", "retired_logs")
    class SlotsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Value
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Value, _Mapping]] = ...) -> None: ...
    class LogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: Log
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[Log, _Mapping]] = ...) -> None: ...
    class RetiredLogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    PARTIAL_FIELD_NUMBER: _ClassVar[int]
    RETIRED_LOGS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.MessageMap[str, Value]
    logs: _containers.MessageMap[str, Log]
    partial: bool
    retired_logs: _containers.ScalarMap[str, int]
    def __init__(self, slots: _Optional[_Mapping[str, Value]] = ..., logs: _Optional[_Mapping[str, Log]] = ..., partial: bool = ..., retired_logs: _Optional[_Mapping[str, int]] = ...) -> None: ...
