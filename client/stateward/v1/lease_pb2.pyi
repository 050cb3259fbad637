import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Holder(_message.Message):
    __slots__ = ("name", "incarnation")
    NAME_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    name: str
    incarnation: str
    def __init__(self, name: _Optional[str] = ..., incarnation: _Optional[str] = ...) -> None: ...

class Lease(_message.Message):
    __slots__ = ("holder", "token", "term", "remaining", "grant_time")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    REMAINING_FIELD_NUMBER: _ClassVar[int]
    GRANT_TIME_FIELD_NUMBER: _ClassVar[int]
    holder: Holder
    token: int
    term: _duration_pb2.Duration
    remaining: _duration_pb2.Duration
    grant_time: _timestamp_pb2.Timestamp
    def __init__(self, holder: _Optional[_Union[Holder, _Mapping]] = ..., token: _Optional[int] = ..., term: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., remaining: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., grant_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...
