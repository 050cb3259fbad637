import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StepStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_STATUS_UNSPECIFIED: _ClassVar[StepStatus]
    STEP_STATUS_PENDING: _ClassVar[StepStatus]
    STEP_STATUS_IN_PROGRESS: _ClassVar[StepStatus]
    STEP_STATUS_DONE: _ClassVar[StepStatus]
    STEP_STATUS_FAILED: _ClassVar[StepStatus]
    STEP_STATUS_SKIPPED: _ClassVar[StepStatus]

class Role(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ROLE_UNSPECIFIED: _ClassVar[Role]
    ROLE_SYSTEM: _ClassVar[Role]
    ROLE_USER: _ClassVar[Role]
    ROLE_ASSISTANT: _ClassVar[Role]
    ROLE_TOOL: _ClassVar[Role]

class ToolCallStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TOOL_CALL_STATUS_UNSPECIFIED: _ClassVar[ToolCallStatus]
    TOOL_CALL_STATUS_PENDING: _ClassVar[ToolCallStatus]
    TOOL_CALL_STATUS_BEGUN: _ClassVar[ToolCallStatus]
    TOOL_CALL_STATUS_DONE: _ClassVar[ToolCallStatus]
    TOOL_CALL_STATUS_FAILED: _ClassVar[ToolCallStatus]
    TOOL_CALL_STATUS_CANCELLED: _ClassVar[ToolCallStatus]
STEP_STATUS_UNSPECIFIED: StepStatus
STEP_STATUS_PENDING: StepStatus
STEP_STATUS_IN_PROGRESS: StepStatus
STEP_STATUS_DONE: StepStatus
STEP_STATUS_FAILED: StepStatus
STEP_STATUS_SKIPPED: StepStatus
ROLE_UNSPECIFIED: Role
ROLE_SYSTEM: Role
ROLE_USER: Role
ROLE_ASSISTANT: Role
ROLE_TOOL: Role
TOOL_CALL_STATUS_UNSPECIFIED: ToolCallStatus
TOOL_CALL_STATUS_PENDING: ToolCallStatus
TOOL_CALL_STATUS_BEGUN: ToolCallStatus
TOOL_CALL_STATUS_DONE: ToolCallStatus
TOOL_CALL_STATUS_FAILED: ToolCallStatus
TOOL_CALL_STATUS_CANCELLED: ToolCallStatus

class Goal(_message.Message):
    __slots__ = ("text", "constraints", "create_time")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINTS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    text: str
    constraints: _containers.RepeatedScalarFieldContainer[str]
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, text: _Optional[str] = ..., constraints: _Optional[_Iterable[str]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Summary(_message.Message):
    __slots__ = ("text", "messages_before_index", "create_time")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    MESSAGES_BEFORE_INDEX_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    text: str
    messages_before_index: int
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, text: _Optional[str] = ..., messages_before_index: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ModelParameters(_message.Message):
    __slots__ = ("name", "version", "temperature", "top_p", "seed", "max_tokens", "extra")
    class ExtraEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_FIELD_NUMBER: _ClassVar[int]
    TOP_P_FIELD_NUMBER: _ClassVar[int]
    SEED_FIELD_NUMBER: _ClassVar[int]
    MAX_TOKENS_FIELD_NUMBER: _ClassVar[int]
    EXTRA_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: str
    temperature: float
    top_p: float
    seed: int
    max_tokens: int
    extra: _containers.ScalarMap[str, str]
    def __init__(self, name: _Optional[str] = ..., version: _Optional[str] = ..., temperature: _Optional[float] = ..., top_p: _Optional[float] = ..., seed: _Optional[int] = ..., max_tokens: _Optional[int] = ..., extra: _Optional[_Mapping[str, str]] = ...) -> None: ...

class ItemOrder(_message.Message):
    __slots__ = ("ids",)
    IDS_FIELD_NUMBER: _ClassVar[int]
    ids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, ids: _Optional[_Iterable[str]] = ...) -> None: ...

class PlanStep(_message.Message):
    __slots__ = ("id", "text", "status", "depends_on", "note")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    DEPENDS_ON_FIELD_NUMBER: _ClassVar[int]
    NOTE_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    status: StepStatus
    depends_on: _containers.RepeatedScalarFieldContainer[str]
    note: str
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., status: _Optional[_Union[StepStatus, str]] = ..., depends_on: _Optional[_Iterable[str]] = ..., note: _Optional[str] = ...) -> None: ...

class Todo(_message.Message):
    __slots__ = ("id", "text", "create_time", "due_time")
    ID_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    DUE_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    text: str
    create_time: _timestamp_pb2.Timestamp
    due_time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., text: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., due_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ContentPart(_message.Message):
    __slots__ = ("text", "json", "slot")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    JSON_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    text: str
    json: str
    slot: str
    def __init__(self, text: _Optional[str] = ..., json: _Optional[str] = ..., slot: _Optional[str] = ...) -> None: ...

class Message(_message.Message):
    __slots__ = ("role", "parts", "tool_call_ids", "tool_call_id", "name", "create_time")
    ROLE_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_IDS_FIELD_NUMBER: _ClassVar[int]
    TOOL_CALL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    role: Role
    parts: _containers.RepeatedCompositeFieldContainer[ContentPart]
    tool_call_ids: _containers.RepeatedScalarFieldContainer[str]
    tool_call_id: str
    name: str
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, role: _Optional[_Union[Role, str]] = ..., parts: _Optional[_Iterable[_Union[ContentPart, _Mapping]]] = ..., tool_call_ids: _Optional[_Iterable[str]] = ..., tool_call_id: _Optional[str] = ..., name: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ToolResult(_message.Message):
    __slots__ = ("inline", "slot", "error", "create_time")
    INLINE_FIELD_NUMBER: _ClassVar[int]
    SLOT_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    inline: _state_pb2.Value
    slot: str
    error: str
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, inline: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., slot: _Optional[str] = ..., error: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class ToolCall(_message.Message):
    __slots__ = ("id", "name", "arguments_json", "idempotency_key", "status", "result", "begin_time")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_JSON_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIME_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    arguments_json: str
    idempotency_key: str
    status: ToolCallStatus
    result: ToolResult
    begin_time: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., arguments_json: _Optional[str] = ..., idempotency_key: _Optional[str] = ..., status: _Optional[_Union[ToolCallStatus, str]] = ..., result: _Optional[_Union[ToolResult, _Mapping]] = ..., begin_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Decision(_message.Message):
    __slots__ = ("text", "reason", "alternatives", "create_time")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    ALTERNATIVES_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    text: str
    reason: str
    alternatives: _containers.RepeatedCompositeFieldContainer[Alternative]
    create_time: _timestamp_pb2.Timestamp
    def __init__(self, text: _Optional[str] = ..., reason: _Optional[str] = ..., alternatives: _Optional[_Iterable[_Union[Alternative, _Mapping]]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Alternative(_message.Message):
    __slots__ = ("text", "reason")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    text: str
    reason: str
    def __init__(self, text: _Optional[str] = ..., reason: _Optional[str] = ...) -> None: ...

class Fact(_message.Message):
    __slots__ = ("text", "source", "create_time", "confidence")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    CONFIDENCE_FIELD_NUMBER: _ClassVar[int]
    text: str
    source: str
    create_time: _timestamp_pb2.Timestamp
    confidence: float
    def __init__(self, text: _Optional[str] = ..., source: _Optional[str] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., confidence: _Optional[float] = ...) -> None: ...
