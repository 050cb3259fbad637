import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Question(_message.Message):
    __slots__ = ("prompt", "answer_schema", "parts", "asked_by")
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    ASKED_BY_FIELD_NUMBER: _ClassVar[int]
    prompt: str
    answer_schema: str
    parts: _containers.RepeatedCompositeFieldContainer[QuestionPart]
    asked_by: str
    def __init__(self, prompt: _Optional[str] = ..., answer_schema: _Optional[str] = ..., parts: _Optional[_Iterable[_Union[QuestionPart, _Mapping]]] = ..., asked_by: _Optional[str] = ...) -> None: ...

class QuestionPart(_message.Message):
    __slots__ = ("name", "prompt", "answer_schema", "asker", "wait_id")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PROMPT_FIELD_NUMBER: _ClassVar[int]
    ANSWER_SCHEMA_FIELD_NUMBER: _ClassVar[int]
    ASKER_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    name: str
    prompt: str
    answer_schema: str
    asker: str
    wait_id: str
    def __init__(self, name: _Optional[str] = ..., prompt: _Optional[str] = ..., answer_schema: _Optional[str] = ..., asker: _Optional[str] = ..., wait_id: _Optional[str] = ...) -> None: ...

class Signal(_message.Message):
    __slots__ = ("signal_id", "name", "payload", "sender", "wait_id", "create_time", "sequence", "parts")
    SIGNAL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    signal_id: str
    name: str
    payload: _state_pb2.Value
    sender: str
    wait_id: str
    create_time: _timestamp_pb2.Timestamp
    sequence: int
    parts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, signal_id: _Optional[str] = ..., name: _Optional[str] = ..., payload: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., sender: _Optional[str] = ..., wait_id: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sequence: _Optional[int] = ..., parts: _Optional[_Iterable[str]] = ...) -> None: ...
