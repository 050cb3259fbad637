import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.rpc import status_pb2 as _status_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_service_pb2 as _checkpoint_service_pb2
from stateward.v1 import effect_service_pb2 as _effect_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RunCallsRequest(_message.Message):
    __slots__ = ("calls",)
    CALLS_FIELD_NUMBER: _ClassVar[int]
    calls: _containers.RepeatedCompositeFieldContainer[StreamedCall]
    def __init__(self, calls: _Optional[_Iterable[_Union[StreamedCall, _Mapping]]] = ...) -> None: ...

class StreamedCall(_message.Message):
    __slots__ = ("call", "timeout", "traceparent", "save", "put_effects")
    CALL_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_FIELD_NUMBER: _ClassVar[int]
    TRACEPARENT_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    PUT_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    call: int
    timeout: _duration_pb2.Duration
    traceparent: str
    save: _checkpoint_service_pb2.SaveRequest
    put_effects: _effect_service_pb2.PutEffectsRequest
    def __init__(self, call: _Optional[int] = ..., timeout: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., traceparent: _Optional[str] = ..., save: _Optional[_Union[_checkpoint_service_pb2.SaveRequest, _Mapping]] = ..., put_effects: _Optional[_Union[_effect_service_pb2.PutEffectsRequest, _Mapping]] = ...) -> None: ...

class RunCallsResponse(_message.Message):
    __slots__ = ("answers",)
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    answers: _containers.RepeatedCompositeFieldContainer[CallAnswer]
    def __init__(self, answers: _Optional[_Iterable[_Union[CallAnswer, _Mapping]]] = ...) -> None: ...

class CallAnswer(_message.Message):
    __slots__ = ("call", "refused", "save", "put_effects")
    CALL_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    PUT_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    call: int
    refused: _status_pb2.Status
    save: _checkpoint_service_pb2.SaveResponse
    put_effects: _effect_service_pb2.PutEffectsResponse
    def __init__(self, call: _Optional[int] = ..., refused: _Optional[_Union[_status_pb2.Status, _Mapping]] = ..., save: _Optional[_Union[_checkpoint_service_pb2.SaveResponse, _Mapping]] = ..., put_effects: _Optional[_Union[_effect_service_pb2.PutEffectsResponse, _Mapping]] = ...) -> None: ...
