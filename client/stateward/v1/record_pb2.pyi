import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StoredRecord(_message.Message):
    __slots__ = ("key", "value", "attributes", "revision", "create_time", "update_time", "ttl", "expire_time", "value_bytes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _checkpoint_pb2.AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_checkpoint_pb2.AttributeValue, _Mapping]] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: _state_pb2.Value
    attributes: _containers.MessageMap[str, _checkpoint_pb2.AttributeValue]
    revision: int
    create_time: _timestamp_pb2.Timestamp
    update_time: _timestamp_pb2.Timestamp
    ttl: _duration_pb2.Duration
    expire_time: _timestamp_pb2.Timestamp
    value_bytes: int
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., attributes: _Optional[_Mapping[str, _checkpoint_pb2.AttributeValue]] = ..., revision: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., update_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., expire_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., value_bytes: _Optional[int] = ...) -> None: ...

class RecordWrite(_message.Message):
    __slots__ = ("key", "value", "delete", "check", "expected_revision", "ttl", "attributes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _checkpoint_pb2.AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_checkpoint_pb2.AttributeValue, _Mapping]] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    CHECK_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_REVISION_FIELD_NUMBER: _ClassVar[int]
    TTL_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: _state_pb2.Value
    delete: _empty_pb2.Empty
    check: _empty_pb2.Empty
    expected_revision: int
    ttl: _duration_pb2.Duration
    attributes: _containers.MessageMap[str, _checkpoint_pb2.AttributeValue]
    def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., delete: _Optional[_Union[_empty_pb2.Empty, _Mapping]] = ..., check: _Optional[_Union[_empty_pb2.Empty, _Mapping]] = ..., expected_revision: _Optional[int] = ..., ttl: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., attributes: _Optional[_Mapping[str, _checkpoint_pb2.AttributeValue]] = ...) -> None: ...

class RecordPrefix(_message.Message):
    __slots__ = ("prefix", "records")
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    prefix: str
    records: int
    def __init__(self, prefix: _Optional[str] = ..., records: _Optional[int] = ...) -> None: ...

class RecordsChange(_message.Message):
    __slots__ = ("written", "deleted", "expired", "moved")
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    written: _containers.RepeatedCompositeFieldContainer[StoredRecord]
    deleted: _containers.RepeatedScalarFieldContainer[str]
    expired: bool
    moved: bool
    def __init__(self, written: _Optional[_Iterable[_Union[StoredRecord, _Mapping]]] = ..., deleted: _Optional[_Iterable[str]] = ..., expired: bool = ..., moved: bool = ...) -> None: ...
