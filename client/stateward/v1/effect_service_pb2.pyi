import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import empty_pb2 as _empty_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import effect_pb2 as _effect_pb2
from stateward.v1 import lease_pb2 as _lease_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import state_pb2 as _state_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from stateward.v1 import write_pb2 as _write_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginEffectRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "anchor", "key", "name", "sort_key", "holder", "term", "max_age", "retry_failed", "keep_when_pruned")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SORT_KEY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FAILED_FIELD_NUMBER: _ClassVar[int]
    KEEP_WHEN_PRUNED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    anchor: str
    key: str
    name: str
    sort_key: bytes
    holder: _lease_pb2.Holder
    term: _duration_pb2.Duration
    max_age: _duration_pb2.Duration
    retry_failed: bool
    keep_when_pruned: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., anchor: _Optional[str] = ..., key: _Optional[str] = ..., name: _Optional[str] = ..., sort_key: _Optional[bytes] = ..., holder: _Optional[_Union[_lease_pb2.Holder, _Mapping]] = ..., term: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., retry_failed: bool = ..., keep_when_pruned: bool = ...) -> None: ...

class BeginEffectResponse(_message.Message):
    __slots__ = ("receipt", "state", "claim_token", "effect", "retry_after", "idempotency_key", "required_durability")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_DURABILITY_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    state: _effect_pb2.EffectState
    claim_token: int
    effect: _effect_pb2.RecordedEffect
    retry_after: _duration_pb2.Duration
    idempotency_key: str
    required_durability: _checkpoint_pb2.Durability
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., state: _Optional[_Union[_effect_pb2.EffectState, str]] = ..., claim_token: _Optional[int] = ..., effect: _Optional[_Union[_effect_pb2.RecordedEffect, _Mapping]] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., idempotency_key: _Optional[str] = ..., required_durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ...) -> None: ...

class CompleteEffectRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "anchor", "key", "claim_token", "state", "value", "detail")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    anchor: str
    key: str
    claim_token: int
    state: _effect_pb2.EffectState
    value: _state_pb2.Value
    detail: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., anchor: _Optional[str] = ..., key: _Optional[str] = ..., claim_token: _Optional[int] = ..., state: _Optional[_Union[_effect_pb2.EffectState, str]] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., detail: _Optional[str] = ...) -> None: ...

class CompleteEffectResponse(_message.Message):
    __slots__ = ("receipt", "effect")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    effect: _effect_pb2.RecordedEffect
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., effect: _Optional[_Union[_effect_pb2.RecordedEffect, _Mapping]] = ...) -> None: ...

class RenewEffectRequest(_message.Message):
    __slots__ = ("namespace", "thread", "anchor", "key", "claim_token", "expected_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    anchor: str
    key: str
    claim_token: int
    expected_uid: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., anchor: _Optional[str] = ..., key: _Optional[str] = ..., claim_token: _Optional[int] = ..., expected_uid: _Optional[str] = ...) -> None: ...

class RenewEffectResponse(_message.Message):
    __slots__ = ("effect", "uid")
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    effect: _effect_pb2.RecordedEffect
    uid: str
    def __init__(self, effect: _Optional[_Union[_effect_pb2.RecordedEffect, _Mapping]] = ..., uid: _Optional[str] = ...) -> None: ...

class PutEffectsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "effects", "status", "status_detail", "wait_id", "question", "asker", "ack_signals")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ASKER_FIELD_NUMBER: _ClassVar[int]
    ACK_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    effects: _containers.RepeatedCompositeFieldContainer[_effect_pb2.Effect]
    status: _checkpoint_pb2.WorkStatus
    status_detail: str
    wait_id: str
    question: _signal_pb2.Question
    asker: str
    ack_signals: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., effects: _Optional[_Iterable[_Union[_effect_pb2.Effect, _Mapping]]] = ..., status: _Optional[_Union[_checkpoint_pb2.WorkStatus, str]] = ..., status_detail: _Optional[str] = ..., wait_id: _Optional[str] = ..., question: _Optional[_Union[_signal_pb2.Question, _Mapping]] = ..., asker: _Optional[str] = ..., ack_signals: _Optional[_Iterable[str]] = ...) -> None: ...

class PutEffectsResponse(_message.Message):
    __slots__ = ("receipt", "written")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    written: int
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., written: _Optional[int] = ...) -> None: ...

class ListEffectsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "anchor", "names", "key", "without_values", "page_size", "page_token", "skip_unreadable")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_VALUES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SKIP_UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    anchor: str
    names: _containers.RepeatedScalarFieldContainer[str]
    key: str
    without_values: bool
    page_size: int
    page_token: str
    skip_unreadable: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., anchor: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., key: _Optional[str] = ..., without_values: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., skip_unreadable: bool = ...) -> None: ...

class ListEffectsResponse(_message.Message):
    __slots__ = ("effects", "next_page_token", "unreadable_parts")
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_PARTS_FIELD_NUMBER: _ClassVar[int]
    effects: _containers.RepeatedCompositeFieldContainer[_effect_pb2.RecordedEffect]
    next_page_token: str
    unreadable_parts: _containers.RepeatedCompositeFieldContainer[_thread_pb2.UnreadablePart]
    def __init__(self, effects: _Optional[_Iterable[_Union[_effect_pb2.RecordedEffect, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., unreadable_parts: _Optional[_Iterable[_Union[_thread_pb2.UnreadablePart, _Mapping]]] = ...) -> None: ...

class DeleteEffectsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "anchor", "keys", "all")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    anchor: str
    keys: EffectKeys
    all: _empty_pb2.Empty
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., anchor: _Optional[str] = ..., keys: _Optional[_Union[EffectKeys, _Mapping]] = ..., all: _Optional[_Union[_empty_pb2.Empty, _Mapping]] = ...) -> None: ...

class EffectKeys(_message.Message):
    __slots__ = ("keys",)
    KEYS_FIELD_NUMBER: _ClassVar[int]
    keys: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, keys: _Optional[_Iterable[str]] = ...) -> None: ...

class DeleteEffectsResponse(_message.Message):
    __slots__ = ("receipt", "deleted")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    deleted: int
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., deleted: _Optional[int] = ...) -> None: ...
