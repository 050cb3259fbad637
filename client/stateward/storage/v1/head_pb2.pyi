from stateward.storage.v1 import journal_pb2 as _journal_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ThreadHead(_message.Message):
    __slots__ = ("namespace", "thread", "epoch", "tip_sequence", "tip_digest", "last_version", "create_time_us", "update_time_us", "save_time_us", "options", "forked_from", "status", "status_detail", "step", "metrics", "wait_id", "stored_bytes", "retained_versions", "version_offset", "row_sum", "forks", "main_version", "main_digest", "lease", "question", "effects", "pending_signals", "effect_sum", "token_floor", "main", "deleted_version", "records", "record_sum", "record_bytes", "record_stored_bytes", "record_entry_bytes", "record_expire_second", "clock_steps", "loose_entries", "told", "early", "object_bytes")
    class MetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    TIP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIP_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    SAVE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    FORKED_FROM_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RETAINED_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ROW_SUM_FIELD_NUMBER: _ClassVar[int]
    FORKS_FIELD_NUMBER: _ClassVar[int]
    MAIN_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAIN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LEASE_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    PENDING_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    EFFECT_SUM_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FLOOR_FIELD_NUMBER: _ClassVar[int]
    MAIN_FIELD_NUMBER: _ClassVar[int]
    DELETED_VERSION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RECORD_SUM_FIELD_NUMBER: _ClassVar[int]
    RECORD_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORD_STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORD_ENTRY_BYTES_FIELD_NUMBER: _ClassVar[int]
    RECORD_EXPIRE_SECOND_FIELD_NUMBER: _ClassVar[int]
    CLOCK_STEPS_FIELD_NUMBER: _ClassVar[int]
    LOOSE_ENTRIES_FIELD_NUMBER: _ClassVar[int]
    TOLD_FIELD_NUMBER: _ClassVar[int]
    EARLY_FIELD_NUMBER: _ClassVar[int]
    OBJECT_BYTES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    epoch: int
    tip_sequence: int
    tip_digest: bytes
    last_version: int
    create_time_us: int
    update_time_us: int
    save_time_us: int
    options: _thread_pb2.ThreadOptions
    forked_from: _thread_pb2.ForkSource
    status: _checkpoint_pb2.WorkStatus
    status_detail: str
    step: int
    metrics: _containers.ScalarMap[str, float]
    wait_id: str
    stored_bytes: int
    retained_versions: int
    version_offset: int
    row_sum: bytes
    forks: int
    main_version: int
    main_digest: bytes
    lease: _journal_pb2.LeaseRecord
    question: _signal_pb2.Question
    effects: int
    pending_signals: int
    effect_sum: bytes
    token_floor: int
    main: BranchHead
    deleted_version: int
    records: int
    record_sum: bytes
    record_bytes: int
    record_stored_bytes: int
    record_entry_bytes: int
    record_expire_second: int
    clock_steps: _containers.RepeatedCompositeFieldContainer[ClockStep]
    loose_entries: int
    told: ToldStatus
    early: EarlyStatus
    object_bytes: int
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., epoch: _Optional[int] = ..., tip_sequence: _Optional[int] = ..., tip_digest: _Optional[bytes] = ..., last_version: _Optional[int] = ..., create_time_us: _Optional[int] = ..., update_time_us: _Optional[int] = ..., save_time_us: _Optional[int] = ..., options: _Optional[_Union[_thread_pb2.ThreadOptions, _Mapping]] = ..., forked_from: _Optional[_Union[_thread_pb2.ForkSource, _Mapping]] = ..., status: _Optional[_Union[_checkpoint_pb2.WorkStatus, str]] = ..., status_detail: _Optional[str] = ..., step: _Optional[int] = ..., metrics: _Optional[_Mapping[str, float]] = ..., wait_id: _Optional[str] = ..., stored_bytes: _Optional[int] = ..., retained_versions: _Optional[int] = ..., version_offset: _Optional[int] = ..., row_sum: _Optional[bytes] = ..., forks: _Optional[int] = ..., main_version: _Optional[int] = ..., main_digest: _Optional[bytes] = ..., lease: _Optional[_Union[_journal_pb2.LeaseRecord, _Mapping]] = ..., question: _Optional[_Union[_signal_pb2.Question, _Mapping]] = ..., effects: _Optional[int] = ..., pending_signals: _Optional[int] = ..., effect_sum: _Optional[bytes] = ..., token_floor: _Optional[int] = ..., main: _Optional[_Union[BranchHead, _Mapping]] = ..., deleted_version: _Optional[int] = ..., records: _Optional[int] = ..., record_sum: _Optional[bytes] = ..., record_bytes: _Optional[int] = ..., record_stored_bytes: _Optional[int] = ..., record_entry_bytes: _Optional[int] = ..., record_expire_second: _Optional[int] = ..., clock_steps: _Optional[_Iterable[_Union[ClockStep, _Mapping]]] = ..., loose_entries: _Optional[int] = ..., told: _Optional[_Union[ToldStatus, _Mapping]] = ..., early: _Optional[_Union[EarlyStatus, _Mapping]] = ..., object_bytes: _Optional[int] = ...) -> None: ...

class ToldStatus(_message.Message):
    __slots__ = ("version", "sequence", "time_us")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    version: int
    sequence: int
    time_us: int
    def __init__(self, version: _Optional[int] = ..., sequence: _Optional[int] = ..., time_us: _Optional[int] = ...) -> None: ...

class EarlyStatus(_message.Message):
    __slots__ = ("checkpoint_id", "status", "status_detail", "wait_id", "question", "sequence")
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    checkpoint_id: str
    status: _checkpoint_pb2.WorkStatus
    status_detail: str
    wait_id: str
    question: _signal_pb2.Question
    sequence: int
    def __init__(self, checkpoint_id: _Optional[str] = ..., status: _Optional[_Union[_checkpoint_pb2.WorkStatus, str]] = ..., status_detail: _Optional[str] = ..., wait_id: _Optional[str] = ..., question: _Optional[_Union[_signal_pb2.Question, _Mapping]] = ..., sequence: _Optional[int] = ...) -> None: ...

class ClockStep(_message.Message):
    __slots__ = ("sequence", "before_us", "after_us")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_US_FIELD_NUMBER: _ClassVar[int]
    AFTER_US_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    before_us: int
    after_us: int
    def __init__(self, sequence: _Optional[int] = ..., before_us: _Optional[int] = ..., after_us: _Optional[int] = ...) -> None: ...

class BranchHead(_message.Message):
    __slots__ = ("name", "version", "digest", "base_version", "snapshot_version", "snapshot_stored_bytes", "weight", "save_time_us", "schema_version", "moved_version", "first_version", "newest_version")
    NAME_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    SAVE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    MOVED_VERSION_FIELD_NUMBER: _ClassVar[int]
    FIRST_VERSION_FIELD_NUMBER: _ClassVar[int]
    NEWEST_VERSION_FIELD_NUMBER: _ClassVar[int]
    name: str
    version: int
    digest: bytes
    base_version: int
    snapshot_version: int
    snapshot_stored_bytes: int
    weight: int
    save_time_us: int
    schema_version: int
    moved_version: int
    first_version: int
    newest_version: int
    def __init__(self, name: _Optional[str] = ..., version: _Optional[int] = ..., digest: _Optional[bytes] = ..., base_version: _Optional[int] = ..., snapshot_version: _Optional[int] = ..., snapshot_stored_bytes: _Optional[int] = ..., weight: _Optional[int] = ..., save_time_us: _Optional[int] = ..., schema_version: _Optional[int] = ..., moved_version: _Optional[int] = ..., first_version: _Optional[int] = ..., newest_version: _Optional[int] = ...) -> None: ...

class BlobRow(_message.Message):
    __slots__ = ("record", "sequence", "write_time_us", "write_sequence")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    WRITE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    WRITE_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    record: _journal_pb2.BlobRecord
    sequence: int
    write_time_us: int
    write_sequence: int
    def __init__(self, record: _Optional[_Union[_journal_pb2.BlobRecord, _Mapping]] = ..., sequence: _Optional[int] = ..., write_time_us: _Optional[int] = ..., write_sequence: _Optional[int] = ...) -> None: ...

class EffectRow(_message.Message):
    __slots__ = ("record", "sequence")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    record: _journal_pb2.EffectRecord
    sequence: int
    def __init__(self, record: _Optional[_Union[_journal_pb2.EffectRecord, _Mapping]] = ..., sequence: _Optional[int] = ...) -> None: ...

class RecordRow(_message.Message):
    __slots__ = ("facts", "sequence", "stored_bytes")
    FACTS_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    facts: _journal_pb2.RecordFacts
    sequence: int
    stored_bytes: int
    def __init__(self, facts: _Optional[_Union[_journal_pb2.RecordFacts, _Mapping]] = ..., sequence: _Optional[int] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class SignalRow(_message.Message):
    __slots__ = ("record", "sequence", "create_time_us", "is_used")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    IS_USED_FIELD_NUMBER: _ClassVar[int]
    record: _journal_pb2.SignalRecord
    sequence: int
    create_time_us: int
    is_used: bool
    def __init__(self, record: _Optional[_Union[_journal_pb2.SignalRecord, _Mapping]] = ..., sequence: _Optional[int] = ..., create_time_us: _Optional[int] = ..., is_used: bool = ...) -> None: ...

class DeletionRecord(_message.Message):
    __slots__ = ("namespace", "thread", "uid", "time_us", "cause", "sequence")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    CAUSE_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    uid: bytes
    time_us: int
    cause: str
    sequence: int
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., uid: _Optional[bytes] = ..., time_us: _Optional[int] = ..., cause: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class StoreFormat(_message.Message):
    __slots__ = ("format", "min_reader", "min_writer", "store_id", "create_time_us")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MIN_READER_FIELD_NUMBER: _ClassVar[int]
    MIN_WRITER_FIELD_NUMBER: _ClassVar[int]
    STORE_ID_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    format: int
    min_reader: int
    min_writer: int
    store_id: bytes
    create_time_us: int
    def __init__(self, format: _Optional[int] = ..., min_reader: _Optional[int] = ..., min_writer: _Optional[int] = ..., store_id: _Optional[bytes] = ..., create_time_us: _Optional[int] = ...) -> None: ...
