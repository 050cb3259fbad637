import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import effect_pb2 as _effect_pb2
from stateward.v1 import lease_pb2 as _lease_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import state_pb2 as _state_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class BeginEffectRequest(_message.Message):
    __slots__ = ("namespace", "thread", "anchor", "key", "name", "sort_key", "holder", "term", "max_age", "retry_failed", "lease_token", "request_id", "create", "durability", "stays", "expected_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SORT_KEY_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    MAX_AGE_FIELD_NUMBER: _ClassVar[int]
    RETRY_FAILED_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    anchor: str
    key: str
    name: str
    sort_key: bytes
    holder: _lease_pb2.Holder
    term: _duration_pb2.Duration
    max_age: _duration_pb2.Duration
    retry_failed: bool
    lease_token: int
    request_id: str
    create: _thread_pb2.ThreadOptions
    durability: _checkpoint_pb2.Durability
    stays: bool
    expected_uid: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., anchor: _Optional[str] = ..., key: _Optional[str] = ..., name: _Optional[str] = ..., sort_key: _Optional[bytes] = ..., holder: _Optional[_Union[_lease_pb2.Holder, _Mapping]] = ..., term: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., max_age: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., retry_failed: bool = ..., lease_token: _Optional[int] = ..., request_id: _Optional[str] = ..., create: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., stays: bool = ..., expected_uid: _Optional[str] = ...) -> None: ...

class BeginEffectResponse(_message.Message):
    __slots__ = ("state", "claim_token", "effect", "retry_after", "idempotency_key", "durability", "required_durability", "uid", "digest")
    STATE_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    RETRY_AFTER_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    REQUIRED_DURABILITY_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    state: _effect_pb2.EffectState
    claim_token: int
    effect: _effect_pb2.RecordedEffect
    retry_after: _duration_pb2.Duration
    idempotency_key: str
    durability: _checkpoint_pb2.Durability
    required_durability: _checkpoint_pb2.Durability
    uid: str
    digest: bytes
    def __init__(self, state: _Optional[_Union[_effect_pb2.EffectState, str]] = ..., claim_token: _Optional[int] = ..., effect: _Optional[_Union[_effect_pb2.RecordedEffect, _Mapping]] = ..., retry_after: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., idempotency_key: _Optional[str] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., required_durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., uid: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class CompleteEffectRequest(_message.Message):
    __slots__ = ("namespace", "thread", "anchor", "key", "claim_token", "state", "value", "detail", "lease_token", "durability", "expected_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    anchor: str
    key: str
    claim_token: int
    state: _effect_pb2.EffectState
    value: _state_pb2.Value
    detail: str
    lease_token: int
    durability: _checkpoint_pb2.Durability
    expected_uid: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., anchor: _Optional[str] = ..., key: _Optional[str] = ..., claim_token: _Optional[int] = ..., state: _Optional[_Union[_effect_pb2.EffectState, str]] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., detail: _Optional[str] = ..., lease_token: _Optional[int] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., expected_uid: _Optional[str] = ...) -> None: ...

class CompleteEffectResponse(_message.Message):
    __slots__ = ("effect", "durability", "archived_sequence", "uid", "digest")
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    effect: _effect_pb2.RecordedEffect
    durability: _checkpoint_pb2.Durability
    archived_sequence: int
    uid: str
    digest: bytes
    def __init__(self, effect: _Optional[_Union[_effect_pb2.RecordedEffect, _Mapping]] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., archived_sequence: _Optional[int] = ..., uid: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

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
    __slots__ = ("namespace", "thread", "effects", "request_id", "durability", "create", "lease_token", "expected_uid", "status", "status_detail", "wait_id", "question", "asker", "ack_signals")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    CREATE_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ASKER_FIELD_NUMBER: _ClassVar[int]
    ACK_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    effects: _containers.RepeatedCompositeFieldContainer[_effect_pb2.Effect]
    request_id: str
    durability: _checkpoint_pb2.Durability
    create: _thread_pb2.ThreadOptions
    lease_token: int
    expected_uid: str
    status: _checkpoint_pb2.Status
    status_detail: str
    wait_id: str
    question: _signal_pb2.Question
    asker: str
    ack_signals: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., effects: _Optional[_Iterable[_Union[_effect_pb2.Effect, _Mapping]]] = ..., request_id: _Optional[str] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., create: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., lease_token: _Optional[int] = ..., expected_uid: _Optional[str] = ..., status: _Optional[_Union[_checkpoint_pb2.Status, str]] = ..., status_detail: _Optional[str] = ..., wait_id: _Optional[str] = ..., question: _Optional[_Union[_signal_pb2.Question, _Mapping]] = ..., asker: _Optional[str] = ..., ack_signals: _Optional[_Iterable[str]] = ...) -> None: ...

class PutEffectsResponse(_message.Message):
    __slots__ = ("written", "sequence", "durability", "archived_sequence", "uid", "digest")
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    written: int
    sequence: int
    durability: _checkpoint_pb2.Durability
    archived_sequence: int
    uid: str
    digest: bytes
    def __init__(self, written: _Optional[int] = ..., sequence: _Optional[int] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., archived_sequence: _Optional[int] = ..., uid: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class ListEffectsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "anchor", "all_anchors", "names", "key", "without_values", "page_size", "page_token", "skip_unreadable")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    ALL_ANCHORS_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_VALUES_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SKIP_UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    anchor: str
    all_anchors: bool
    names: _containers.RepeatedScalarFieldContainer[str]
    key: str
    without_values: bool
    page_size: int
    page_token: str
    skip_unreadable: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., anchor: _Optional[str] = ..., all_anchors: bool = ..., names: _Optional[_Iterable[str]] = ..., key: _Optional[str] = ..., without_values: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., skip_unreadable: bool = ...) -> None: ...

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
    __slots__ = ("namespace", "thread", "anchor", "keys", "request_id", "lease_token", "durability", "all", "expected_uid")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    anchor: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    request_id: str
    lease_token: int
    durability: _checkpoint_pb2.Durability
    all: bool
    expected_uid: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., anchor: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., request_id: _Optional[str] = ..., lease_token: _Optional[int] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., all: bool = ..., expected_uid: _Optional[str] = ...) -> None: ...

class DeleteEffectsResponse(_message.Message):
    __slots__ = ("deleted", "sequence", "durability", "archived_sequence", "uid", "digest")
    DELETED_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    deleted: int
    sequence: int
    durability: _checkpoint_pb2.Durability
    archived_sequence: int
    uid: str
    digest: bytes
    def __init__(self, deleted: _Optional[int] = ..., sequence: _Optional[int] = ..., durability: _Optional[_Union[_checkpoint_pb2.Durability, str]] = ..., archived_sequence: _Optional[int] = ..., uid: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...
