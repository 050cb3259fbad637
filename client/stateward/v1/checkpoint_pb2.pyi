import datetime

from google.protobuf import timestamp_pb2 as _timestamp_pb2
from stateward.v1 import signal_pb2 as _signal_pb2
from stateward.v1 import state_pb2 as _state_pb2
from stateward.v1 import workspace_pb2 as _workspace_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class WorkStatus(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    WORK_STATUS_UNSPECIFIED: _ClassVar[WorkStatus]
    WORK_STATUS_RUNNING: _ClassVar[WorkStatus]
    WORK_STATUS_WAITING: _ClassVar[WorkStatus]
    WORK_STATUS_PAUSED: _ClassVar[WorkStatus]
    WORK_STATUS_COMPLETED: _ClassVar[WorkStatus]
    WORK_STATUS_FAILED: _ClassVar[WorkStatus]
    WORK_STATUS_CANCELLED: _ClassVar[WorkStatus]

class Durability(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DURABILITY_UNSPECIFIED: _ClassVar[Durability]
    DURABILITY_COMMITTED: _ClassVar[Durability]
    DURABILITY_ARCHIVED: _ClassVar[Durability]
WORK_STATUS_UNSPECIFIED: WorkStatus
WORK_STATUS_RUNNING: WorkStatus
WORK_STATUS_WAITING: WorkStatus
WORK_STATUS_PAUSED: WorkStatus
WORK_STATUS_COMPLETED: WorkStatus
WORK_STATUS_FAILED: WorkStatus
WORK_STATUS_CANCELLED: WorkStatus
DURABILITY_UNSPECIFIED: Durability
DURABILITY_COMMITTED: Durability
DURABILITY_ARCHIVED: Durability

class VersionRef(_message.Message):
    __slots__ = ("version", "checkpoint_id", "tag", "branch", "digest")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    TAG_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    version: int
    checkpoint_id: str
    tag: str
    branch: str
    digest: bytes
    def __init__(self, version: _Optional[int] = ..., checkpoint_id: _Optional[str] = ..., tag: _Optional[str] = ..., branch: _Optional[str] = ..., digest: _Optional[bytes] = ...) -> None: ...

class AttributeValue(_message.Message):
    __slots__ = ("string_value", "int_value", "double_value", "bool_value")
    STRING_VALUE_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VALUE_FIELD_NUMBER: _ClassVar[int]
    BOOL_VALUE_FIELD_NUMBER: _ClassVar[int]
    string_value: str
    int_value: int
    double_value: float
    bool_value: bool
    def __init__(self, string_value: _Optional[str] = ..., int_value: _Optional[int] = ..., double_value: _Optional[float] = ..., bool_value: bool = ...) -> None: ...

class AttributeFilter(_message.Message):
    __slots__ = ("key", "operator", "value")
    class Operator(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
        __slots__ = ()
        OPERATOR_UNSPECIFIED: _ClassVar[AttributeFilter.Operator]
        OPERATOR_EQ: _ClassVar[AttributeFilter.Operator]
        OPERATOR_NE: _ClassVar[AttributeFilter.Operator]
        OPERATOR_GT: _ClassVar[AttributeFilter.Operator]
        OPERATOR_GTE: _ClassVar[AttributeFilter.Operator]
        OPERATOR_LT: _ClassVar[AttributeFilter.Operator]
        OPERATOR_LTE: _ClassVar[AttributeFilter.Operator]
    OPERATOR_UNSPECIFIED: AttributeFilter.Operator
    OPERATOR_EQ: AttributeFilter.Operator
    OPERATOR_NE: AttributeFilter.Operator
    OPERATOR_GT: AttributeFilter.Operator
    OPERATOR_GTE: AttributeFilter.Operator
    OPERATOR_LT: AttributeFilter.Operator
    OPERATOR_LTE: AttributeFilter.Operator
    KEY_FIELD_NUMBER: _ClassVar[int]
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    operator: AttributeFilter.Operator
    value: AttributeValue
    def __init__(self, key: _Optional[str] = ..., operator: _Optional[_Union[AttributeFilter.Operator, str]] = ..., value: _Optional[_Union[AttributeValue, _Mapping]] = ...) -> None: ...

class Checkpoint(_message.Message):
    __slots__ = ("namespace", "thread", "uid", "version", "parent_version", "branch", "checkpoint_id", "digest", "status", "status_detail", "step", "schema_version", "labels", "metadata", "metrics", "create_time", "edit_bytes", "stored_bytes", "sequence", "durability", "wait_id", "question", "parent_checkpoint_id", "attributes", "acknowledged_signals", "workspace", "workspace_dropped")
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
        value: AttributeValue
        def __init__(self, key: _Optional[str] = ..., value: _Optional[_Union[AttributeValue, _Mapping]] = ...) -> None: ...
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PARENT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_VERSION_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    METRICS_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_FIELD_NUMBER: _ClassVar[int]
    EDIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DURABILITY_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    PARENT_CHECKPOINT_ID_FIELD_NUMBER: _ClassVar[int]
    ATTRIBUTES_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_SIGNALS_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_FIELD_NUMBER: _ClassVar[int]
    WORKSPACE_DROPPED_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    uid: str
    version: int
    parent_version: int
    branch: str
    checkpoint_id: str
    digest: bytes
    status: WorkStatus
    status_detail: str
    step: int
    schema_version: int
    labels: _containers.ScalarMap[str, str]
    metadata: _state_pb2.Value
    metrics: _containers.ScalarMap[str, float]
    create_time: _timestamp_pb2.Timestamp
    edit_bytes: int
    stored_bytes: int
    sequence: int
    durability: Durability
    wait_id: str
    question: _signal_pb2.Question
    parent_checkpoint_id: str
    attributes: _containers.MessageMap[str, AttributeValue]
    acknowledged_signals: int
    workspace: _workspace_pb2.TreeRef
    workspace_dropped: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., uid: _Optional[str] = ..., version: _Optional[int] = ..., parent_version: _Optional[int] = ..., branch: _Optional[str] = ..., checkpoint_id: _Optional[str] = ..., digest: _Optional[bytes] = ..., status: _Optional[_Union[WorkStatus, str]] = ..., status_detail: _Optional[str] = ..., step: _Optional[int] = ..., schema_version: _Optional[int] = ..., labels: _Optional[_Mapping[str, str]] = ..., metadata: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., metrics: _Optional[_Mapping[str, float]] = ..., create_time: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., edit_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., sequence: _Optional[int] = ..., durability: _Optional[_Union[Durability, str]] = ..., wait_id: _Optional[str] = ..., question: _Optional[_Union[_signal_pb2.Question, _Mapping]] = ..., parent_checkpoint_id: _Optional[str] = ..., attributes: _Optional[_Mapping[str, AttributeValue]] = ..., acknowledged_signals: _Optional[int] = ..., workspace: _Optional[_Union[_workspace_pb2.TreeRef, _Mapping]] = ..., workspace_dropped: bool = ...) -> None: ...

class StatusTold(_message.Message):
    __slots__ = ("version", "status", "status_detail", "wait_id", "question")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    STATUS_DETAIL_FIELD_NUMBER: _ClassVar[int]
    WAIT_ID_FIELD_NUMBER: _ClassVar[int]
    QUESTION_FIELD_NUMBER: _ClassVar[int]
    version: int
    status: WorkStatus
    status_detail: str
    wait_id: str
    question: _signal_pb2.Question
    def __init__(self, version: _Optional[int] = ..., status: _Optional[_Union[WorkStatus, str]] = ..., status_detail: _Optional[str] = ..., wait_id: _Optional[str] = ..., question: _Optional[_Union[_signal_pb2.Question, _Mapping]] = ...) -> None: ...
