import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import diff_pb2 as _diff_pb2
from stateward.v1 import effect_pb2 as _effect_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import state_pb2 as _state_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from stateward.v1 import workspace_pb2 as _workspace_pb2
from stateward.v1 import write_pb2 as _write_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class OnMismatch(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ON_MISMATCH_UNSPECIFIED: _ClassVar[OnMismatch]
    ON_MISMATCH_FAIL: _ClassVar[OnMismatch]
    ON_MISMATCH_FORK: _ClassVar[OnMismatch]

class ReadOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    READ_ORDER_UNSPECIFIED: _ClassVar[ReadOrder]
    READ_ORDER_OLDEST_FIRST: _ClassVar[ReadOrder]
    READ_ORDER_NEWEST_FIRST: _ClassVar[ReadOrder]
ON_MISMATCH_UNSPECIFIED: OnMismatch
ON_MISMATCH_FAIL: OnMismatch
ON_MISMATCH_FORK: OnMismatch
READ_ORDER_UNSPECIFIED: ReadOrder
READ_ORDER_OLDEST_FIRST: ReadOrder
READ_ORDER_NEWEST_FIRST: ReadOrder

class LeaseGuard(_message.Message):
    __slots__ = ("thread", "token", "expected_uid")
    THREAD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    thread: str
    token: int
    expected_uid: str
    def __init__(self, thread: _Optional[str] = ..., token: _Optional[int] = ..., expected_uid: _Optional[str] = ...) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "branch", "checkpoint_id", "parent", "overwrite", "state", "diff", "status", "status_detail", "step", "schema_version", "labels", "metadata", "metrics", "effects", "ack_signals", "wait_id", "question", "on_mismatch", "guard", "fork_branch", "attributes", "workspace", "objects")
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
    class AttributesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: _checkpoint_pb2.AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[_checkpoint_pb2.AttributeValue, _Mapping]] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    OVERWRITE_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    ACK_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    ON_MISMATCH_FIELD_NUMBER: _ClassVar[int]
    GUARD_FIELD_NUMBER: _ClassVar[int]
    FORK_BRANCH_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    branch: str
    checkpoint_id: str
    parent: _checkpoint_pb2.VersionRef
    overwrite: bool
    state: _state_pb2.State
    diff: _diff_pb2.Diff
    status: _checkpoint_pb2.WorkStatus
    status_detail: str
    step: int
    schema_version: int
    labels: _containers.ScalarMap[str, str]
    metadata: _state_pb2.Value
    metrics: _containers.ScalarMap[str, float]
    effects: _containers.RepeatedCompositeFieldContainer[_effect_pb2.Effect]
    ack_signals: _containers.RepeatedScalarFieldContainer[str]
    wait_id: str
    question: _signal_pb2.Question
    on_mismatch: OnMismatch
    guard: LeaseGuard
    fork_branch: str
    attributes: _containers.MessageMap[str, _checkpoint_pb2.AttributeValue]
    workspace: _workspace_pb2.TreeRef
    objects: _containers.RepeatedCompositeFieldContainer[_workspace_pb2.TreeObject]
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., branch: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., parent: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., overwrite: bool = ..., state: _Optional[_Union[_state_pb2.State, _Mapping]] = ..., diff: _Optional[_Union[_diff_pb2.Diff, _Mapping]] = ..., status: _Optional[_Union[_checkpoint_pb2.WorkStatus, str]] = ..., status_detail: _Optional[str] = ..., step: _Optional[int] = ..., schema_version: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., metadata: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., effects: _Optional[_Iterable[_Union[_effect_pb2.Effect, _Mapping]]] = ..., ack_signals: _Optional[_Iterable[str]] = ..., wait_id: _Optional[str] = ..., question: _Optional[_Union[_signal_pb2.Question, _Mapping]] = ..., on_mismatch: _Optional[_Union[OnMismatch, str]] = ..., guard: _Optional[_Union[LeaseGuard, _Mapping]] = ..., fork_branch: _Optional[str] = ..., attributes: _Optional[_Mapping[str, _checkpoint_pb2.AttributeValue]] = ..., workspace: _Optional[_Union[_workspace_pb2.TreeRef, _Mapping]] = ..., objects: _Optional[_Iterable[_Union[_workspace_pb2.TreeObject, _Mapping]]] = ...) -> None: ...

class SaveResponse(_message.Message):
    __slots__ = ("receipt", "version", "parent_version", "create_time", "stored_bytes", "status", "wait_id", "schema_version", "numbers", "branch", "parent_checkpoint_id")
    class NumbersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    PARENT_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    version: int
    parent_version: int
    create_time: _timestamp_pb2.Timestamp
    stored_bytes: int
    status: _checkpoint_pb2.WorkStatus
    wait_id: str
    schema_version: int
    numbers: _containers.ScalarMap[str, int]
    branch: str
    parent_checkpoint_id: str
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., version: _Optional[int] = ..., parent_version: _Optional[int] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., stored_bytes: _Optional[int] = ..., status: _Optional[_Union[_checkpoint_pb2.WorkStatus, str]] = ..., wait_id: _Optional[str] = ..., schema_version: _Optional[int] = ..., numbers: _Optional[_Mapping[str, int]] = ..., branch: _Optional[str] = ..., parent_checkpoint_id: _Optional[str] = ...) -> None: ...

class BatchSaveRequest(_message.Message):
    __slots__ = ("saves",)
    SAVES_FIELD_NUMBER: _ClassVar[int]
    saves: _containers.RepeatedCompositeFieldContainer[SaveRequest]
    def __init__(self, saves: _Optional[_Iterable[_Union[SaveRequest, _Mapping]]] = ...) -> None: ...

class BatchSaveResponse(_message.Message):
    __slots__ = ("saves",)
    SAVES_FIELD_NUMBER: _ClassVar[int]
    saves: _containers.RepeatedCompositeFieldContainer[SaveResponse]
    def __init__(self, saves: _Optional[_Iterable[_Union[SaveResponse, _Mapping]]] = ...) -> None: ...

class Projection(_message.Message):
    __slots__ = ("slots", "logs")
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    LOGS_FIELD_NUMBER: _ClassVar[int]
    slots: _containers.RepeatedScalarFieldContainer[str]
    logs: _containers.RepeatedCompositeFieldContainer[LogSelection]
    def __init__(self, slots: _Optional[_Iterable[str]] = ..., logs: _Optional[_Iterable[_Union[LogSelection, _Mapping]]] = ...) -> None: ...

class LogSelection(_message.Message):
    __slots__ = ("log", "last")
    LOG_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    log: str
    last: int
    def __init__(self, log: _Optional[str] = ..., last: _Optional[int] = ...) -> None: ...

class HydrateRequest(_message.Message):
    __slots__ = ("namespace", "thread", "branch", "version", "projection", "max_bytes", "page_token", "include_signals", "known_version", "known_digest", "include_effects")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    KNOWN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    branch: str
    version: _checkpoint_pb2.VersionRef
    projection: Projection
    max_bytes: int
    page_token: str
    include_signals: bool
    known_version: int
    known_digest: bytes
    include_effects: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., branch: _Optional[str] = ..., version: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., projection: _Optional[_Union[Projection, _Mapping]] = ..., max_bytes: _Optional[int] = ..., page_token: _Optional[str] = ..., include_signals: bool = ..., known_version: _Optional[int] = ..., known_digest: _Optional[bytes] = ..., include_effects: bool = ...) -> None: ...

class HydrateResponse(_message.Message):
    __slots__ = ("checkpoint", "state", "chunk", "next_page_token", "archived_sequence", "owner_id", "signals", "base_version", "removed_slots", "removed_logs", "effects")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    BASE_VERSION_FIELD_NUMBER: _ClassVar[int]
    REMOVED_SLOTS_FIELD_NUMBER: _ClassVar[int]
    REMOVED_LOGS_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    state: _state_pb2.State
    chunk: ValueChunk
    next_page_token: str
    archived_sequence: int
    owner_id: str
    signals: _containers.RepeatedCompositeFieldContainer[_signal_pb2.Signal]
    base_version: int
    removed_slots: _containers.RepeatedScalarFieldContainer[str]
    removed_logs: _containers.RepeatedScalarFieldContainer[str]
    effects: _containers.RepeatedCompositeFieldContainer[_effect_pb2.RecordedEffect]
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ..., state: _Optional[_Union[_state_pb2.State, _Mapping]] = ..., chunk: _Optional[_Union[ValueChunk, _Mapping]] = ..., next_page_token: _Optional[str] = ..., archived_sequence: _Optional[int] = ..., owner_id: _Optional[str] = ..., signals: _Optional[_Iterable[_Union[_signal_pb2.Signal, _Mapping]]] = ..., base_version: _Optional[int] = ..., removed_slots: _Optional[_Iterable[str]] = ..., removed_logs: _Optional[_Iterable[str]] = ..., effects: _Optional[_Iterable[_Union[_effect_pb2.RecordedEffect, _Mapping]]] = ...) -> None: ...

class ValueChunk(_message.Message):
    __slots__ = ("slot", "log", "media_type", "index", "offset", "size_bytes", "data")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    slot: str
    log: str
    media_type: str
    index: int
    offset: int
    size_bytes: int
    data: bytes
    def __init__(self, slot: _Optional[str] = ..., log: _Optional[str] = ..., media_type: _Optional[str] = ..., index: _Optional[int] = ..., offset: _Optional[int] = ..., size_bytes: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class GetCheckpointRequest(_message.Message):
    __slots__ = ("namespace", "thread", "branch", "version")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    branch: str
    version: _checkpoint_pb2.VersionRef
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., branch: _Optional[str] = ..., version: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ...) -> None: ...

class GetCheckpointResponse(_message.Message):
    __slots__ = ("checkpoint",)
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ...) -> None: ...

class ListCheckpointsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "branch", "labels", "statuses", "before", "page_size", "page_token", "projection", "include_effects", "filters", "include_states", "skip_unreadable")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    STATUSES_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_STATES_FIELD_NUMBER: _ClassVar[int]
    SKIP_UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    branch: str
    labels: _containers.ScalarMap[str, str]
    statuses: _containers.RepeatedScalarFieldContainer[_checkpoint_pb2.WorkStatus]
    before: _checkpoint_pb2.VersionRef
    page_size: int
    page_token: str
    projection: Projection
    include_effects: bool
    filters: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.AttributeFilter]
    include_states: bool
    skip_unreadable: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., branch: _Optional[str] = ..., labels: _Optional[_Mapping[str, str]] = ..., statuses: _Optional[_Iterable[_Union[_checkpoint_pb2.WorkStatus, str]]] = ..., before: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., projection: _Optional[_Union[Projection, _Mapping]] = ..., include_effects: bool = ..., filters: _Optional[_Iterable[_Union[_checkpoint_pb2.AttributeFilter, _Mapping]]] = ..., include_states: bool = ..., skip_unreadable: bool = ...) -> None: ...

class ListCheckpointsResponse(_message.Message):
    __slots__ = ("checkpoints", "next_page_token", "contents", "unreadable", "unreadable_parts")
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    CONTENTS_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_PARTS_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.Checkpoint]
    next_page_token: str
    contents: _containers.RepeatedCompositeFieldContainer[CheckpointContent]
    unreadable: _containers.RepeatedCompositeFieldContainer[_thread_pb2.UnreadableThread]
    unreadable_parts: _containers.RepeatedCompositeFieldContainer[_thread_pb2.UnreadablePart]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[_checkpoint_pb2.Checkpoint, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., contents: _Optional[_Iterable[_Union[CheckpointContent, _Mapping]]] = ..., unreadable: _Optional[_Iterable[_Union[_thread_pb2.UnreadableThread, _Mapping]]] = ..., unreadable_parts: _Optional[_Iterable[_Union[_thread_pb2.UnreadablePart, _Mapping]]] = ...) -> None: ...

class CheckpointContent(_message.Message):
    __slots__ = ("state", "diff", "rewritten_versions", "state_omitted", "effects", "effects_omitted", "retired_logs")
    class RewrittenVersionsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    class RetiredLogsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    REWRITTEN_VERSIONS_FIELD_NUMBER: _ClassVar[int]
    STATE_OMITTED_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_OMITTED_FIELD_NUMBER: _ClassVar[int]
    RETIRED_LOGS_FIELD_NUMBER: _ClassVar[int]
    state: _state_pb2.State
    diff: _diff_pb2.Diff
    rewritten_versions: _containers.ScalarMap[str, int]
    state_omitted: bool
    effects: _containers.RepeatedCompositeFieldContainer[_effect_pb2.RecordedEffect]
    effects_omitted: bool
    retired_logs: _containers.ScalarMap[str, int]
    def __init__(self, state: _Optional[_Union[_state_pb2.State, _Mapping]] = ..., diff: _Optional[_Union[_diff_pb2.Diff, _Mapping]] = ..., rewritten_versions: _Optional[_Mapping[str, int]] = ..., state_omitted: bool = ..., effects: _Optional[_Iterable[_Union[_effect_pb2.RecordedEffect, _Mapping]]] = ..., effects_omitted: bool = ..., retired_logs: _Optional[_Mapping[str, int]] = ...) -> None: ...

class ReadHistoryRequest(_message.Message):
    __slots__ = ("namespace", "thread", "branch", "version", "oldest", "order", "projection", "include_effects")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OLDEST_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    PROJECTION_FIELD_NUMBER: _ClassVar[int]
    INCLUDE_EFFECTS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    branch: str
    version: _checkpoint_pb2.VersionRef
    oldest: _checkpoint_pb2.VersionRef
    order: ReadOrder
    projection: Projection
    include_effects: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., branch: _Optional[str] = ..., version: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., oldest: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., order: _Optional[_Union[ReadOrder, str]] = ..., projection: _Optional[_Union[Projection, _Mapping]] = ..., include_effects: bool = ...) -> None: ...

class ReadHistoryResponse(_message.Message):
    __slots__ = ("checkpoint", "state", "diff", "state_omitted", "effects", "effects_omitted")
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    STATE_OMITTED_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_OMITTED_FIELD_NUMBER: _ClassVar[int]
    checkpoint: _checkpoint_pb2.Checkpoint
    state: _state_pb2.State
    diff: _diff_pb2.Diff
    state_omitted: bool
    effects: _containers.RepeatedCompositeFieldContainer[_effect_pb2.RecordedEffect]
    effects_omitted: bool
    def __init__(self, checkpoint: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ..., state: _Optional[_Union[_state_pb2.State, _Mapping]] = ..., diff: _Optional[_Union[_diff_pb2.Diff, _Mapping]] = ..., state_omitted: bool = ..., effects: _Optional[_Iterable[_Union[_effect_pb2.RecordedEffect, _Mapping]]] = ..., effects_omitted: bool = ...) -> None: ...

class DiffCheckpointsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "branch", "base", "target", "max_bytes", "page_token")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    branch: str
    base: _checkpoint_pb2.VersionRef
    target: _checkpoint_pb2.VersionRef
    max_bytes: int
    page_token: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., branch: _Optional[str] = ..., base: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., target: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., max_bytes: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class DiffCheckpointsResponse(_message.Message):
    __slots__ = ("base", "target", "diff", "next_page_token")
    BASE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    DIFF_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    base: _checkpoint_pb2.Checkpoint
    target: _checkpoint_pb2.Checkpoint
    diff: _diff_pb2.Diff
    next_page_token: str
    def __init__(self, base: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ..., target: _Optional[_Union[_checkpoint_pb2.Checkpoint, _Mapping]] = ..., diff: _Optional[_Union[_diff_pb2.Diff, _Mapping]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ReadLogRequest(_message.Message):
    __slots__ = ("namespace", "thread", "branch", "version", "log", "from_index", "page_size", "max_bytes", "wait", "expected_uid", "known_version", "known_digest")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    LOG_FIELD_NUMBER: _ClassVar[int]
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_UID_FIELD_NUMBER: _ClassVar[int]
    KNOWN_VERSION_FIELD_NUMBER: _ClassVar[int]
    KNOWN_DIGEST_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    branch: str
    version: _checkpoint_pb2.VersionRef
    log: str
    from_index: int
    page_size: int
    max_bytes: int
    wait: _duration_pb2.Duration
    expected_uid: str
    known_version: int
    known_digest: bytes
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., branch: _Optional[str] = ..., version: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., log: _Optional[str] = ..., from_index: _Optional[int] = ..., page_size: _Optional[int] = ..., max_bytes: _Optional[int] = ..., wait: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., expected_uid: _Optional[str] = ..., known_version: _Optional[int] = ..., known_digest: _Optional[bytes] = ...) -> None: ...

class ReadLogResponse(_message.Message):
    __slots__ = ("first_index", "entries", "next_index", "end_index", "rewritten_version", "version", "uid", "version_digest", "known_missing")
    FIRST_INDEX_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    NEXT_INDEX_FIELD_NUMBER: _ClassVar[int]
    END_INDEX_FIELD_NUMBER: _ClassVar[int]
    REWRITTEN_VERSION_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    VERSION_DIGEST_FIELD_NUMBER: _ClassVar[int]
    KNOWN_MISSING_FIELD_NUMBER: _ClassVar[int]
    first_index: int
    entries: _containers.RepeatedCompositeFieldContainer[_state_pb2.Value]
    next_index: int
    end_index: int
    rewritten_version: int
    version: int
    uid: str
    version_digest: bytes
    known_missing: bool
    def __init__(self, first_index: _Optional[int] = ..., entries: _Optional[_Iterable[_Union[_state_pb2.Value, _Mapping]]] = ..., next_index: _Optional[int] = ..., end_index: _Optional[int] = ..., rewritten_version: _Optional[int] = ..., version: _Optional[int] = ..., uid: _Optional[str] = ..., version_digest: _Optional[bytes] = ..., known_missing: bool = ...) -> None: ...
