from stateward.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Effect(_message.Message):
    __slots__ = ("anchor", "key", "sort_key", "name", "on_conflict", "value")
    class ConflictRule(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        CONFLICT_RULE_UNSPECIFIED: _ClassVar[Effect.ConflictRule]
        CONFLICT_RULE_KEEP: _ClassVar[Effect.ConflictRule]
        CONFLICT_RULE_REPLACE: _ClassVar[Effect.ConflictRule]
    CONFLICT_RULE_UNSPECIFIED: Effect.ConflictRule
    CONFLICT_RULE_KEEP: Effect.ConflictRule
    CONFLICT_RULE_REPLACE: Effect.ConflictRule
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SORT_KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ON_CONFLICT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    anchor: str
    key: str
    sort_key: bytes
    name: str
    on_conflict: Effect.ConflictRule
    value: _state_pb2.Value
    def __init__(self, anchor: _Optional[str] = ..., key: _Optional[str] = ..., sort_key: _Optional[bytes] = ..., name: _Optional[str] = ..., on_conflict: _Optional[_Union[Effect.ConflictRule, str]] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ...) -> None: ...
