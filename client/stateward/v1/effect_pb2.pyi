import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import lease_pb2 as _lease_pb2
from stateward.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EffectState(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    EFFECT_STATE_UNSPECIFIED: _ClassVar[EffectState]
    EFFECT_STATE_NEW: _ClassVar[EffectState]
    EFFECT_STATE_IN_PROGRESS: _ClassVar[EffectState]
    EFFECT_STATE_UNCERTAIN: _ClassVar[EffectState]
    EFFECT_STATE_DONE: _ClassVar[EffectState]
    EFFECT_STATE_FAILED: _ClassVar[EffectState]
EFFECT_STATE_UNSPECIFIED: EffectState
EFFECT_STATE_NEW: EffectState
EFFECT_STATE_IN_PROGRESS: EffectState
EFFECT_STATE_UNCERTAIN: EffectState
EFFECT_STATE_DONE: EffectState
EFFECT_STATE_FAILED: EffectState

class Effect(_message.Message):
    __slots__ = ("anchor", "key", "sort_key", "name", "on_conflict", "value", "keep_when_pruned")
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
    KEEP_WHEN_PRUNED_FIELD_NUMBER: _ClassVar[int]
    anchor: str
    key: str
    sort_key: bytes
    name: str
    on_conflict: Effect.ConflictRule
    value: _state_pb2.Value
    keep_when_pruned: bool
    def __init__(self, anchor: _Optional[str] = ..., key: _Optional[str] = ..., sort_key: _Optional[bytes] = ..., name: _Optional[str] = ..., on_conflict: _Optional[_Union[Effect.ConflictRule, str]] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., keep_when_pruned: bool = ...) -> None: ...

class RecordedEffect(_message.Message):
    __slots__ = ("effect", "state", "holder", "claim_token", "begin_time", "end_time", "sequence", "detail", "attempts")
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIME_FIELD_NUMBER: _ClassVar[int]
    END_TIME_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    effect: Effect
    state: EffectState
    holder: _lease_pb2.Holder
    claim_token: int
    begin_time: _timestamp_pb2.Timestamp
    end_time: _timestamp_pb2.Timestamp
    sequence: int
    detail: str
    attempts: int
    def __init__(self, effect: _Optional[_Union[Effect, _Mapping]] = ..., state: _Optional[_Union[EffectState, str]] = ..., holder: _Optional[_Union[_lease_pb2.Holder, _Mapping]] = ..., claim_token: _Optional[int] = ..., begin_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., sequence: _Optional[int] = ..., detail: _Optional[str] = ..., attempts: _Optional[int] = ...) -> None: ...

class EffectsDeleted(_message.Message):
    __slots__ = ("anchor", "count")
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    anchor: str
    count: int
    def __init__(self, anchor: _Optional[str] = ..., count: _Optional[int] = ...) -> None: ...
