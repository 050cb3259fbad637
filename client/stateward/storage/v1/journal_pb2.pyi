from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import effect_pb2 as _effect_pb2
from stateward.v1 import lease_pb2 as _lease_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import state_pb2 as _state_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from stateward.v1 import workspace_pb2 as _workspace_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class EntryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ENTRY_KIND_UNSPECIFIED: _ClassVar[EntryKind]
    ENTRY_KIND_CHECKPOINT: _ClassVar[EntryKind]
    ENTRY_KIND_TAG_SET: _ClassVar[EntryKind]
    ENTRY_KIND_TAG_DELETED: _ClassVar[EntryKind]
    ENTRY_KIND_OPTIONS: _ClassVar[EntryKind]
    ENTRY_KIND_PRUNED: _ClassVar[EntryKind]
    ENTRY_KIND_EFFECT: _ClassVar[EntryKind]
    ENTRY_KIND_SIGNAL: _ClassVar[EntryKind]
    ENTRY_KIND_LEASE: _ClassVar[EntryKind]
    ENTRY_KIND_BLOB: _ClassVar[EntryKind]
    ENTRY_KIND_HEADS: _ClassVar[EntryKind]
    ENTRY_KIND_EFFECTS_DELETED: _ClassVar[EntryKind]
    ENTRY_KIND_RECORDS: _ClassVar[EntryKind]
    ENTRY_KIND_BLOB_REMOVED: _ClassVar[EntryKind]
    ENTRY_KIND_OBJECTS: _ClassVar[EntryKind]

class Compression(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    COMPRESSION_UNSPECIFIED: _ClassVar[Compression]
    COMPRESSION_ZSTD: _ClassVar[Compression]
    COMPRESSION_ZSTD_DICTIONARY: _ClassVar[Compression]
ENTRY_KIND_UNSPECIFIED: EntryKind
ENTRY_KIND_CHECKPOINT: EntryKind
ENTRY_KIND_TAG_SET: EntryKind
ENTRY_KIND_TAG_DELETED: EntryKind
ENTRY_KIND_OPTIONS: EntryKind
ENTRY_KIND_PRUNED: EntryKind
ENTRY_KIND_EFFECT: EntryKind
ENTRY_KIND_SIGNAL: EntryKind
ENTRY_KIND_LEASE: EntryKind
ENTRY_KIND_BLOB: EntryKind
ENTRY_KIND_HEADS: EntryKind
ENTRY_KIND_EFFECTS_DELETED: EntryKind
ENTRY_KIND_RECORDS: EntryKind
ENTRY_KIND_BLOB_REMOVED: EntryKind
ENTRY_KIND_OBJECTS: EntryKind
COMPRESSION_UNSPECIFIED: Compression
COMPRESSION_ZSTD: Compression
COMPRESSION_ZSTD_DICTIONARY: Compression

class EntryHeader(_message.Message):
    __slots__ = ("kind", "epoch", "sequence", "version", "parent_version", "create_time_us", "previous_digest", "digest", "metadata_bytes", "metadata_compression", "metadata_stored_bytes", "edit_bytes", "edit_compression", "dictionary_version", "parts_id", "key_generation", "edit_stored_bytes", "acked_sequences", "whole")
    KIND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_DIGEST_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    METADATA_BYTES_FIELD_NUMBER: _ClassVar[int]
    METADATA_COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    METADATA_STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    EDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    EDIT_COMPRESSION_FIELD_NUMBER: _ClassVar[int]
    DICTIONARY_VERSION_FIELD_NUMBER: _ClassVar[int]
    PARTS_ID_FIELD_NUMBER: _ClassVar[int]
    KEY_GENERATION_FIELD_NUMBER: _ClassVar[int]
    EDIT_STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    ACKED_SEQUENCES_FIELD_NUMBER: _ClassVar[int]
    WHOLE_FIELD_NUMBER: _ClassVar[int]
    kind: EntryKind
    epoch: int
    sequence: int
    version: int
    parent_version: int
    create_time_us: int
    previous_digest: bytes
    digest: bytes
    metadata_bytes: int
    metadata_compression: Compression
    metadata_stored_bytes: int
    edit_bytes: int
    edit_compression: Compression
    dictionary_version: int
    parts_id: int
    key_generation: int
    edit_stored_bytes: int
    acked_sequences: _containers.RepeatedScalarFieldContainer[int]
    whole: bool
    def __init__(self, kind: _Optional[_Union[EntryKind, str]] = ..., epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., version: _Optional[int] = ..., parent_version: _Optional[int] = ..., create_time_us: _Optional[int] = ..., previous_digest: _Optional[bytes] = ..., digest: _Optional[bytes] = ..., metadata_bytes: _Optional[int] = ..., metadata_compression: _Optional[_Union[Compression, str]] = ..., metadata_stored_bytes: _Optional[int] = ..., edit_bytes: _Optional[int] = ..., edit_compression: _Optional[_Union[Compression, str]] = ..., dictionary_version: _Optional[int] = ..., parts_id: _Optional[int] = ..., key_generation: _Optional[int] = ..., edit_stored_bytes: _Optional[int] = ..., acked_sequences: _Optional[_Iterable[int]] = ..., whole: bool = ...) -> None: ...

class EntryMetadata(_message.Message):
    __slots__ = ("request_hash", "fingerprint", "creation", "checkpoint", "tag", "options", "pruned", "blob", "effect", "signal", "lease", "removed", "heads", "records", "objects", "told", "deleted_effects")
    REQUEST_HASH_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    CREATION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PRUNED_FIELD_NUMBER: _ClassVar[int]
    BLOB_FIELD_NUMBER: _ClassVar[int]
    EFFECT_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    REMOVED_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    DELETED_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    request_hash: bytes
    fingerprint: bytes
    creation: ThreadCreation
    checkpoint: CheckpointBody
    tag: _thread_pb2.Tag
    options: _thread_pb2.ThreadOptions
    pruned: PrunedVersions
    blob: BlobRecord
    effect: EffectRecord
    signal: SignalRecord
    lease: LeaseRecord
    removed: PrunedVersions
    heads: _containers.RepeatedCompositeFieldContainer[HeadMove]
    records: RecordsBody
    objects: ObjectsBody
    told: _checkpoint_pb2.StatusTold
    deleted_effects: _effect_pb2.EffectsDeleted
    def __init__(self, request_hash: _Optional[bytes] = ..., fingerprint: _Optional[bytes] = ..., creation: _Optional[_Union[ThreadCreation, _Mapping]] = ..., checkpoint: _Optional[_Union[CheckpointBody, _Mapping]] = ..., tag: _Optional[_Union[_thread_pb2.Tag, _Mapping]] = ..., options: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., pruned: _Optional[_Union[PrunedVersions, _Mapping]] = ..., blob: _Optional[_Union[BlobRecord, _Mapping]] = ..., effect: _Optional[_Union[EffectRecord, _Mapping]] = ..., signal: _Optional[_Union[SignalRecord, _Mapping]] = ..., lease: _Optional[_Union[LeaseRecord, _Mapping]] = ..., removed: _Optional[_Union[PrunedVersions, _Mapping]] = ..., heads: _Optional[_Iterable[_Union[HeadMove, _Mapping]]] = ..., records: _Optional[_Union[RecordsBody, _Mapping]] = ..., objects: _Optional[_Union[ObjectsBody, _Mapping]] = ..., told: _Optional[_Union[_checkpoint_pb2.StatusTold, _Mapping]] = ..., deleted_effects: _Optional[_Union[_effect_pb2.EffectsDeleted, _Mapping]] = ...) -> None: ...

class HeadMove(_message.Message):
    __slots__ = ("branch", "version", "digest", "before_version", "before_digest", "first_version", "last_version")
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BEFORE_VERSION_FIELD_NUMBER: _ClassVar[int]
    BEFORE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    FIRST_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    branch: str
    version: int
    digest: bytes
    before_version: int
    before_digest: bytes
    first_version: int
    last_version: int
    def __init__(self, branch: _Optional[str] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ..., before_version: _Optional[int] = ..., before_digest: _Optional[bytes] = ..., first_version: _Optional[int] = ..., last_version: _Optional[int] = ...) -> None: ...

class EffectRecord(_message.Message):
    __slots__ = ("anchor", "key", "sort_key", "name", "state", "holder", "claim_token", "term_us", "begin_time_us", "end_time_us", "detail", "attempts", "lease_token", "has_value", "idempotency_key", "was_uncertain", "written", "previous_sequence", "stays")
    ANCHOR_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    SORT_KEY_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    CLAIM_TOKEN_FIELD_NUMBER: _ClassVar[int]
    TERM_US_FIELD_NUMBER: _ClassVar[int]
    BEGIN_TIME_US_FIELD_NUMBER: _ClassVar[int]
    END_TIME_US_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    ATTEMPTS_FIELD_NUMBER: _ClassVar[int]
    LEASE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    HAS_VALUE_FIELD_NUMBER: _ClassVar[int]
    IDEMPOTENCY_KEY_FIELD_NUMBER: _ClassVar[int]
    WAS_UNCERTAIN_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STAYS_FIELD_NUMBER: _ClassVar[int]
    anchor: str
    key: str
    sort_key: bytes
    name: str
    state: _effect_pb2.EffectState
    holder: _lease_pb2.Holder
    claim_token: int
    term_us: int
    begin_time_us: int
    end_time_us: int
    detail: str
    attempts: int
    lease_token: int
    has_value: bool
    idempotency_key: str
    was_uncertain: bool
    written: int
    previous_sequence: int
    stays: bool
    def __init__(self, anchor: _Optional[str] = ..., key: _Optional[str] = ..., sort_key: _Optional[bytes] = ..., name: _Optional[str] = ..., state: _Optional[_Union[_effect_pb2.EffectState, str]] = ..., holder: _Optional[_Union[_lease_pb2.Holder, _Mapping]] = ..., claim_token: _Optional[int] = ..., term_us: _Optional[int] = ..., begin_time_us: _Optional[int] = ..., end_time_us: _Optional[int] = ..., detail: _Optional[str] = ..., attempts: _Optional[int] = ..., lease_token: _Optional[int] = ..., has_value: bool = ..., idempotency_key: _Optional[str] = ..., was_uncertain: bool = ..., written: _Optional[int] = ..., previous_sequence: _Optional[int] = ..., stays: bool = ...) -> None: ...

class RecordsBody(_message.Message):
    __slots__ = ("written", "deleted", "has_more", "revision", "floor_sequence")
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    FLOOR_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    written: int
    deleted: int
    has_more: bool
    revision: int
    floor_sequence: int
    def __init__(self, written: _Optional[int] = ..., deleted: _Optional[int] = ..., has_more: bool = ..., revision: _Optional[int] = ..., floor_sequence: _Optional[int] = ...) -> None: ...

class RecordBatch(_message.Message):
    __slots__ = ("changes", "deleted", "expired", "moved")
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    EXPIRED_FIELD_NUMBER: _ClassVar[int]
    MOVED_FIELD_NUMBER: _ClassVar[int]
    changes: _containers.RepeatedCompositeFieldContainer[RecordChange]
    deleted: _containers.RepeatedScalarFieldContainer[str]
    expired: bool
    moved: bool
    def __init__(self, changes: _Optional[_Iterable[_Union[RecordChange, _Mapping]]] = ..., deleted: _Optional[_Iterable[str]] = ..., expired: bool = ..., moved: bool = ...) -> None: ...

class ObjectsBody(_message.Message):
    __slots__ = ("pack", "count", "size_bytes", "packed_bytes")
    PACK_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    PACKED_BYTES_FIELD_NUMBER: _ClassVar[int]
    pack: bytes
    count: int
    size_bytes: int
    packed_bytes: int
    def __init__(self, pack: _Optional[bytes] = ..., count: _Optional[int] = ..., size_bytes: _Optional[int] = ..., packed_bytes: _Optional[int] = ...) -> None: ...

class ObjectBatch(_message.Message):
    __slots__ = ("digests", "forms", "sizes", "packed_sizes", "data")
    DIGESTS_FIELD_NUMBER: _ClassVar[int]
    FORMS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    PACKED_SIZES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    digests: bytes
    forms: bytes
    sizes: _containers.RepeatedScalarFieldContainer[int]
    packed_sizes: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, digests: _Optional[bytes] = ..., forms: _Optional[bytes] = ..., sizes: _Optional[_Iterable[int]] = ..., packed_sizes: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class RecordChange(_message.Message):
    __slots__ = ("facts", "value")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    facts: RecordFacts
    value: _state_pb2.Value
    def __init__(self, facts: _Optional[_Union[RecordFacts, _Mapping]] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ...) -> None: ...

class RecordFacts(_message.Message):
    __slots__ = ("key", "attributes", "revision", "create_time_us", "update_time_us", "ttl_us", "expire_time_us", "value_bytes", "value_sequence", "value_stored_bytes")
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _checkpoint_pb2.AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_checkpoint_pb2.AttributeValue, _Mapping]] = ...) -> None: ...
    KEY_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    TTL_US_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    VALUE_BYTES_FIELD_NUMBER: _ClassVar[int]
    VALUE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VALUE_STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    key: str
    attributes: _containers.MessageMap[str, _checkpoint_pb2.AttributeValue]
    revision: int
    create_time_us: int
    update_time_us: int
    ttl_us: int
    expire_time_us: int
    value_bytes: int
    value_sequence: int
    value_stored_bytes: int
    def __init__(self, key: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _checkpoint_pb2.AttributeValue]] = ..., revision: _Optional[int] = ..., create_time_us: _Optional[int] = ..., update_time_us: _Optional[int] = ..., ttl_us: _Optional[int] = ..., expire_time_us: _Optional[int] = ..., value_bytes: _Optional[int] = ..., value_sequence: _Optional[int] = ..., value_stored_bytes: _Optional[int] = ...) -> None: ...

class SignalRecord(_message.Message):
    __slots__ = ("signal_id", "name", "payload", "sender", "wait_id", "parts")
    SIGNAL_ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    SENDER_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    signal_id: str
    name: str
    payload: _state_pb2.Value
    sender: str
    wait_id: str
    parts: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, signal_id: _Optional[str] = ..., name: _Optional[str] = ..., payload: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., sender: _Optional[str] = ..., wait_id: _Optional[str] = ..., parts: _Optional[_Iterable[str]] = ...) -> None: ...

class LeaseRecord(_message.Message):
    __slots__ = ("holder", "token", "term_us", "grant_time_us", "request_hash")
    HOLDER_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    TERM_US_FIELD_NUMBER: _ClassVar[int]
    GRANT_TIME_US_FIELD_NUMBER: _ClassVar[int]
    REQUEST_HASH_FIELD_NUMBER: _ClassVar[int]
    holder: _lease_pb2.Holder
    token: int
    term_us: int
    grant_time_us: int
    request_hash: bytes
    def __init__(self, holder: _Optional[_Union[_lease_pb2.Holder, _Mapping]] = ..., token: _Optional[int] = ..., term_us: _Optional[int] = ..., grant_time_us: _Optional[int] = ..., request_hash: _Optional[bytes] = ...) -> None: ...

class BlobRecord(_message.Message):
    __slots__ = ("blob_id", "sha256", "size_bytes", "media_type", "preview", "stored_bytes", "data_key", "is_segment", "is_pack")
    BLOB_ID_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    PREVIEW_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_KEY_FIELD_NUMBER: _ClassVar[int]
    IS_SEGMENT_FIELD_NUMBER: _ClassVar[int]
    IS_PACK_FIELD_NUMBER: _ClassVar[int]
    blob_id: bytes
    sha256: bytes
    size_bytes: int
    media_type: str
    preview: bytes
    stored_bytes: int
    data_key: bytes
    is_segment: bool
    is_pack: bool
    def __init__(self, blob_id: _Optional[bytes] = ..., sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., media_type: _Optional[str] = ..., preview: _Optional[bytes] = ..., stored_bytes: _Optional[int] = ..., data_key: _Optional[bytes] = ..., is_segment: bool = ..., is_pack: bool = ...) -> None: ...

class ThreadCreation(_message.Message):
    __slots__ = ("namespace", "thread", "options", "forked_from")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    FORKED_FROM_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _thread_pb2.ThreadOptions
    forked_from: _thread_pb2.ForkSource
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., forked_from: _Optional[_Union[_thread_pb2.ForkSource, _Mapping]] = ...) -> None: ...

class CheckpointBody(_message.Message):
    __slots__ = ("branch", "checkpoint_id", "status", "status_detail", "step", "schema_version", "labels", "metadata", "metrics", "wait_id", "sent_bytes", "source_digest", "question", "acked_signals", "numbers", "parent_checkpoint_id", "attributes", "workspace")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _checkpoint_pb2.AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_checkpoint_pb2.AttributeValue, _Mapping]] = ...) -> None: ...
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    SENT_BYTES_FIELD_NUMBER: _ClassVar[int]
    SOURCE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ACKED_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    PARENT_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    branch: str
    checkpoint_id: str
    status: _checkpoint_pb2.WorkStatus
    status_detail: str
    step: int
    schema_version: int
    labels: _containers.ScalarMap[str, str]
    metadata: _state_pb2.Value
    metrics: _containers.ScalarMap[str, float]
    wait_id: str
    sent_bytes: int
    source_digest: bytes
    question: _signal_pb2.Question
    acked_signals: _containers.RepeatedScalarFieldContainer[str]
    numbers: _containers.ScalarMap[str, int]
    parent_checkpoint_id: str
    attributes: _containers.MessageMap[str, _checkpoint_pb2.AttributeValue]
    workspace: _workspace_pb2.TreeRef
    def __init__(self, branch: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., status: _Optional[_Union[_checkpoint_pb2.WorkStatus, str]] = ..., status_detail: _Optional[str] = ..., step: _Optional[int] = ..., schema_version: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., metadata: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., wait_id: _Optional[str] = ..., sent_bytes: _Optional[int] = ..., source_digest: _Optional[bytes] = ..., question: _Optional[_Union[_signal_pb2.Question, _Mapping]] = ..., acked_signals: _Optional[_Iterable[str]] = ..., numbers: _Optional[_Mapping[str, int]] = ..., parent_checkpoint_id: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _checkpoint_pb2.AttributeValue]] = ..., workspace: _Optional[_Union[_workspace_pb2.TreeRef, _Mapping]] = ...) -> None: ...

class PrunedVersions(_message.Message):
    __slots__ = ("ranges", "effects", "records", "signals", "loose", "objects", "trees")
    RANGES_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    LOOSE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    ranges: _containers.RepeatedCompositeFieldContainer[VersionRange]
    effects: _containers.RepeatedCompositeFieldContainer[VersionRange]
    records: _containers.RepeatedCompositeFieldContainer[VersionRange]
    signals: _containers.RepeatedCompositeFieldContainer[VersionRange]
    loose: _containers.RepeatedCompositeFieldContainer[VersionRange]
    objects: _containers.RepeatedCompositeFieldContainer[VersionRange]
    trees: _containers.RepeatedCompositeFieldContainer[VersionRange]
    def __init__(self, ranges: _Optional[_Iterable[_Union[VersionRange, _Mapping]]] = ..., effects: _Optional[_Iterable[_Union[VersionRange, _Mapping]]] = ..., records: _Optional[_Iterable[_Union[VersionRange, _Mapping]]] = ..., signals: _Optional[_Iterable[_Union[VersionRange, _Mapping]]] = ..., loose: _Optional[_Iterable[_Union[VersionRange, _Mapping]]] = ..., objects: _Optional[_Iterable[_Union[VersionRange, _Mapping]]] = ..., trees: _Optional[_Iterable[_Union[VersionRange, _Mapping]]] = ...) -> None: ...

class VersionRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...
