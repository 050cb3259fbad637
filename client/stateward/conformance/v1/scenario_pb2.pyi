import datetime

from google.protobuf import duration_pb2 as _duration_pb2
from stateward.v1 import blob_service_pb2 as _blob_service_pb2
from stateward.v1 import checkpoint_service_pb2 as _checkpoint_service_pb2
from stateward.v1 import effect_service_pb2 as _effect_service_pb2
from stateward.v1 import lease_service_pb2 as _lease_service_pb2
from stateward.v1 import record_service_pb2 as _record_service_pb2
from stateward.v1 import signal_service_pb2 as _signal_service_pb2
from stateward.v1 import state_pb2 as _state_pb2
from stateward.v1 import thread_service_pb2 as _thread_service_pb2
from stateward.v1 import workspace_pb2 as _workspace_pb2
from stateward.v1 import workspace_service_pb2 as _workspace_service_pb2
from stateward.v1 import writer_service_pb2 as _writer_service_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Scenario(_message.Message):
    __slots__ = ("proves", "state", "turns")
    PROVES_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    TURNS_FIELD_NUMBER: _ClassVar[int]
    proves: str
    state: _state_pb2.State
    turns: _containers.RepeatedCompositeFieldContainer[Turn]
    def __init__(self, proves: _Optional[str] = ..., state: _Optional[_Union[_state_pb2.State, _Mapping]] = ..., turns: _Optional[_Iterable[_Union[Turn, _Mapping]]] = ...) -> None: ...

class Turn(_message.Message):
    __slots__ = ("hydrate", "save", "watch", "write", "write_blob", "read_blob", "stat_blob", "acquire_lease", "renew_lease", "release_lease", "begin_effect", "complete_effect", "wait_durable", "send_signal", "get_records", "put_records", "list_records", "objects", "read_tree", "diff_trees", "again", "optional", "page", "saved", "events", "written", "stat", "acquired", "renewed", "released", "begun", "completed", "durable", "sent", "got", "put", "listed", "tree_page", "differences", "failure", "silence", "unknown_fields", "cut", "within")
    HYDRATE_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    WATCH_FIELD_NUMBER: _ClassVar[int]
    WRITE_FIELD_NUMBER: _ClassVar[int]
    WRITE_BLOB_FIELD_NUMBER: _ClassVar[int]
    READ_BLOB_FIELD_NUMBER: _ClassVar[int]
    STAT_BLOB_FIELD_NUMBER: _ClassVar[int]
    ACQUIRE_LEASE_FIELD_NUMBER: _ClassVar[int]
    RENEW_LEASE_FIELD_NUMBER: _ClassVar[int]
    RELEASE_LEASE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_EFFECT_FIELD_NUMBER: _ClassVar[int]
    COMPLETE_EFFECT_FIELD_NUMBER: _ClassVar[int]
    WAIT_DURABLE_FIELD_NUMBER: _ClassVar[int]
    SEND_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    GET_RECORDS_FIELD_NUMBER: _ClassVar[int]
    PUT_RECORDS_FIELD_NUMBER: _ClassVar[int]
    LIST_RECORDS_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    READ_TREE_FIELD_NUMBER: _ClassVar[int]
    DIFF_TREES_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    OPTIONAL_FIELD_NUMBER: _ClassVar[int]
    PAGE_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    EVENTS_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    STAT_FIELD_NUMBER: _ClassVar[int]
    ACQUIRED_FIELD_NUMBER: _ClassVar[int]
    RENEWED_FIELD_NUMBER: _ClassVar[int]
    RELEASED_FIELD_NUMBER: _ClassVar[int]
    BEGUN_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_FIELD_NUMBER: _ClassVar[int]
    DURABLE_FIELD_NUMBER: _ClassVar[int]
    SENT_FIELD_NUMBER: _ClassVar[int]
    GOT_FIELD_NUMBER: _ClassVar[int]
    PUT_FIELD_NUMBER: _ClassVar[int]
    LISTED_FIELD_NUMBER: _ClassVar[int]
    TREE_PAGE_FIELD_NUMBER: _ClassVar[int]
    DIFFERENCES_FIELD_NUMBER: _ClassVar[int]
    FAILURE_FIELD_NUMBER: _ClassVar[int]
    SILENCE_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_FIELDS_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    WITHIN_FIELD_NUMBER: _ClassVar[int]
    hydrate: _checkpoint_service_pb2.HydrateRequest
    save: _checkpoint_service_pb2.SaveRequest
    watch: _thread_service_pb2.WatchRequest
    write: WriterStream
    write_blob: BlobUpload
    read_blob: BlobDownload
    stat_blob: _blob_service_pb2.StatBlobRequest
    acquire_lease: _lease_service_pb2.AcquireLeaseRequest
    renew_lease: _lease_service_pb2.RenewLeaseRequest
    release_lease: _lease_service_pb2.ReleaseLeaseRequest
    begin_effect: _effect_service_pb2.BeginEffectRequest
    complete_effect: _effect_service_pb2.CompleteEffectRequest
    wait_durable: _thread_service_pb2.WaitDurableRequest
    send_signal: _signal_service_pb2.SendSignalRequest
    get_records: _record_service_pb2.GetRecordsRequest
    put_records: _record_service_pb2.PutRecordsRequest
    list_records: _record_service_pb2.ListRecordsRequest
    objects: ObjectCalls
    read_tree: _workspace_service_pb2.ReadTreeRequest
    diff_trees: _workspace_service_pb2.DiffTreesRequest
    again: bool
    optional: bool
    page: _checkpoint_service_pb2.HydrateResponse
    saved: _checkpoint_service_pb2.SaveResponse
    events: _containers.RepeatedCompositeFieldContainer[_thread_service_pb2.WatchResponse]
    written: _blob_service_pb2.WriteBlobResponse
    stat: _blob_service_pb2.StatBlobResponse
    acquired: _lease_service_pb2.AcquireLeaseResponse
    renewed: _lease_service_pb2.RenewLeaseResponse
    released: _lease_service_pb2.ReleaseLeaseResponse
    begun: _effect_service_pb2.BeginEffectResponse
    completed: _effect_service_pb2.CompleteEffectResponse
    durable: _thread_service_pb2.WaitDurableResponse
    sent: _signal_service_pb2.SendSignalResponse
    got: _record_service_pb2.GetRecordsResponse
    put: _record_service_pb2.PutRecordsResponse
    listed: _record_service_pb2.ListRecordsResponse
    tree_page: _workspace_service_pb2.ReadTreeResponse
    differences: _containers.RepeatedCompositeFieldContainer[_workspace_service_pb2.DiffTreesResponse]
    failure: Failure
    silence: bool
    unknown_fields: bytes
    cut: bool
    within: _duration_pb2.Duration
    def __init__(self, hydrate: _Optional[_Union[_checkpoint_service_pb2.HydrateRequest, _Mapping]] = ..., save: _Optional[_Union[_checkpoint_service_pb2.SaveRequest, _Mapping]] = ..., watch: _Optional[_Union[_thread_service_pb2.WatchRequest, _Mapping]] = ..., write: _Optional[_Union[WriterStream, _Mapping]] = ..., write_blob: _Optional[_Union[BlobUpload, _Mapping]] = ..., read_blob: _Optional[_Union[BlobDownload, _Mapping]] = ..., stat_blob: _Optional[_Union[_blob_service_pb2.StatBlobRequest, _Mapping]] = ..., acquire_lease: _Optional[_Union[_lease_service_pb2.AcquireLeaseRequest, _Mapping]] = ..., renew_lease: _Optional[_Union[_lease_service_pb2.RenewLeaseRequest, _Mapping]] = ..., release_lease: _Optional[_Union[_lease_service_pb2.ReleaseLeaseRequest, _Mapping]] = ..., begin_effect: _Optional[_Union[_effect_service_pb2.BeginEffectRequest, _Mapping]] = ..., complete_effect: _Optional[_Union[_effect_service_pb2.CompleteEffectRequest, _Mapping]] = ..., wait_durable: _Optional[_Union[_thread_service_pb2.WaitDurableRequest, _Mapping]] = ..., send_signal: _Optional[_Union[_signal_service_pb2.SendSignalRequest, _Mapping]] = ..., get_records: _Optional[_Union[_record_service_pb2.GetRecordsRequest, _Mapping]] = ..., put_records: _Optional[_Union[_record_service_pb2.PutRecordsRequest, _Mapping]] = ..., list_records: _Optional[_Union[_record_service_pb2.ListRecordsRequest, _Mapping]] = ..., objects: _Optional[_Union[ObjectCalls, _Mapping]] = ..., read_tree: _Optional[_Union[_workspace_service_pb2.ReadTreeRequest, _Mapping]] = ..., diff_trees: _Optional[_Union[_workspace_service_pb2.DiffTreesRequest, _Mapping]] = ..., again: bool = ..., optional: bool = ..., page: _Optional[_Union[_checkpoint_service_pb2.HydrateResponse, _Mapping]] = ..., saved: _Optional[_Union[_checkpoint_service_pb2.SaveResponse, _Mapping]] = ..., events: _Optional[_Iterable[_Union[_thread_service_pb2.WatchResponse, _Mapping]]] = ..., written: _Optional[_Union[_blob_service_pb2.WriteBlobResponse, _Mapping]] = ..., stat: _Optional[_Union[_blob_service_pb2.StatBlobResponse, _Mapping]] = ..., acquired: _Optional[_Union[_lease_service_pb2.AcquireLeaseResponse, _Mapping]] = ..., renewed: _Optional[_Union[_lease_service_pb2.RenewLeaseResponse, _Mapping]] = ..., released: _Optional[_Union[_lease_service_pb2.ReleaseLeaseResponse, _Mapping]] = ..., begun: _Optional[_Union[_effect_service_pb2.BeginEffectResponse, _Mapping]] = ..., completed: _Optional[_Union[_effect_service_pb2.CompleteEffectResponse, _Mapping]] = ..., durable: _Optional[_Union[_thread_service_pb2.WaitDurableResponse, _Mapping]] = ..., sent: _Optional[_Union[_signal_service_pb2.SendSignalResponse, _Mapping]] = ..., got: _Optional[_Union[_record_service_pb2.GetRecordsResponse, _Mapping]] = ..., put: _Optional[_Union[_record_service_pb2.PutRecordsResponse, _Mapping]] = ..., listed: _Optional[_Union[_record_service_pb2.ListRecordsResponse, _Mapping]] = ..., tree_page: _Optional[_Union[_workspace_service_pb2.ReadTreeResponse, _Mapping]] = ..., differences: _Optional[_Iterable[_Union[_workspace_service_pb2.DiffTreesResponse, _Mapping]]] = ..., failure: _Optional[_Union[Failure, _Mapping]] = ..., silence: bool = ..., unknown_fields: _Optional[bytes] = ..., cut: bool = ..., within: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...

class Failure(_message.Message):
    __slots__ = ("code", "reason", "domain", "metadata", "retry_delay", "unknown_detail")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    UNKNOWN_DETAIL_FIELD_NUMBER: _ClassVar[int]
    code: str
    reason: str
    domain: str
    metadata: _containers.ScalarMap[str, str]
    retry_delay: _duration_pb2.Duration
    unknown_detail: bool
    def __init__(self, code: _Optional[str] = ..., reason: _Optional[str] = ..., domain: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ..., retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ..., unknown_detail: bool = ...) -> None: ...

class WriterStream(_message.Message):
    __slots__ = ("open", "opened", "frames")
    OPEN_FIELD_NUMBER: _ClassVar[int]
    OPENED_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    open: _writer_service_pb2.OpenWriter
    opened: _writer_service_pb2.WriterOpened
    frames: _containers.RepeatedCompositeFieldContainer[WriterFrame]
    def __init__(self, open: _Optional[_Union[_writer_service_pb2.OpenWriter, _Mapping]] = ..., opened: _Optional[_Union[_writer_service_pb2.WriterOpened, _Mapping]] = ..., frames: _Optional[_Iterable[_Union[WriterFrame, _Mapping]]] = ...) -> None: ...

class WriterFrame(_message.Message):
    __slots__ = ("request", "answer", "again")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    AGAIN_FIELD_NUMBER: _ClassVar[int]
    request: _writer_service_pb2.WriteRequest
    answer: _writer_service_pb2.WriteResponse
    again: bool
    def __init__(self, request: _Optional[_Union[_writer_service_pb2.WriteRequest, _Mapping]] = ..., answer: _Optional[_Union[_writer_service_pb2.WriteResponse, _Mapping]] = ..., again: bool = ...) -> None: ...

class BlobUpload(_message.Message):
    __slots__ = ("sha256", "size_bytes", "broken_after_bytes")
    SHA256_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    BROKEN_AFTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    sha256: bytes
    size_bytes: int
    broken_after_bytes: int
    def __init__(self, sha256: _Optional[bytes] = ..., size_bytes: _Optional[int] = ..., broken_after_bytes: _Optional[int] = ...) -> None: ...

class BlobDownload(_message.Message):
    __slots__ = ("request", "content", "media_type", "broken_at")
    REQUEST_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    MEDIA_TYPE_FIELD_NUMBER: _ClassVar[int]
    BROKEN_AT_FIELD_NUMBER: _ClassVar[int]
    request: _blob_service_pb2.ReadBlobRequest
    content: bytes
    media_type: str
    broken_at: int
    def __init__(self, request: _Optional[_Union[_blob_service_pb2.ReadBlobRequest, _Mapping]] = ..., content: _Optional[bytes] = ..., media_type: _Optional[str] = ..., broken_at: _Optional[int] = ...) -> None: ...

class ObjectCalls(_message.Message):
    __slots__ = ("held", "is_new", "broken_after_bytes")
    HELD_FIELD_NUMBER: _ClassVar[int]
    IS_NEW_FIELD_NUMBER: _ClassVar[int]
    BROKEN_AFTER_BYTES_FIELD_NUMBER: _ClassVar[int]
    held: _containers.RepeatedCompositeFieldContainer[_workspace_pb2.TreeObject]
    is_new: bool
    broken_after_bytes: int
    def __init__(self, held: _Optional[_Iterable[_Union[_workspace_pb2.TreeObject, _Mapping]]] = ..., is_new: bool = ..., broken_after_bytes: _Optional[int] = ...) -> None: ...
