from stateward.storage.v1 import head_pb2 as _head_pb2
from stateward.storage.v1 import journal_pb2 as _journal_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ObjectKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OBJECT_KIND_UNSPECIFIED: _ClassVar[ObjectKind]
    OBJECT_KIND_PACK: _ClassVar[ObjectKind]
    OBJECT_KIND_SNAPSHOT: _ClassVar[ObjectKind]
    OBJECT_KIND_INDEX: _ClassVar[ObjectKind]
    OBJECT_KIND_IMAGE: _ClassVar[ObjectKind]
OBJECT_KIND_UNSPECIFIED: ObjectKind
OBJECT_KIND_PACK: ObjectKind
OBJECT_KIND_SNAPSHOT: ObjectKind
OBJECT_KIND_INDEX: ObjectKind
OBJECT_KIND_IMAGE: ObjectKind

class ArchiveHead(_message.Message):
    __slots__ = ("min_reader", "min_writer", "uid", "created_epoch", "epoch", "boot_id", "owner_id", "write_id", "previous_write_ids", "lineage", "detached", "deleted", "tip_sequence", "tip_digest", "last_version", "update_time_us", "status", "expire_second", "packed_sequence", "objects", "index", "image", "snapshot_version", "snapshot_pieces", "tail", "garbage", "cleared", "image_parts", "image_part_bytes", "settled_counter", "unused_epochs", "trimmed_sequence", "rekeyed_from")
    MIN_READER_FIELD_NUMBER: _ClassVar[int]
    MIN_WRITER_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    CREATED_EPOCH_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    OWNER_ID_FIELD_NUMBER: _ClassVar[int]
    WRITE_ID_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_WRITE_IDS_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    DETACHED_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    TIP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIP_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    UPDATE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXPIRE_SECOND_FIELD_NUMBER: _ClassVar[int]
    PACKED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_PIECES_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    GARBAGE_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    IMAGE_PARTS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_PART_BYTES_FIELD_NUMBER: _ClassVar[int]
    SETTLED_COUNTER_FIELD_NUMBER: _ClassVar[int]
    UNUSED_EPOCHS_FIELD_NUMBER: _ClassVar[int]
    TRIMMED_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    REKEYED_FROM_FIELD_NUMBER: _ClassVar[int]
    min_reader: int
    min_writer: int
    uid: bytes
    created_epoch: int
    epoch: int
    boot_id: bytes
    owner_id: str
    write_id: bytes
    previous_write_ids: _containers.RepeatedScalarFieldContainer[bytes]
    lineage: _containers.RepeatedCompositeFieldContainer[EpochStart]
    detached: bool
    deleted: bool
    tip_sequence: int
    tip_digest: bytes
    last_version: int
    update_time_us: int
    status: _checkpoint_pb2.WorkStatus
    expire_second: int
    packed_sequence: int
    objects: _containers.RepeatedCompositeFieldContainer[ObjectRef]
    index: ObjectRef
    image: bytes
    snapshot_version: int
    snapshot_pieces: _containers.RepeatedScalarFieldContainer[bytes]
    tail: _containers.RepeatedScalarFieldContainer[bytes]
    garbage: _containers.RepeatedCompositeFieldContainer[Garbage]
    cleared: bool
    image_parts: _containers.RepeatedCompositeFieldContainer[ImagePart]
    image_part_bytes: int
    settled_counter: int
    unused_epochs: _containers.RepeatedCompositeFieldContainer[EpochRange]
    trimmed_sequence: int
    rekeyed_from: _containers.RepeatedCompositeFieldContainer[RekeyedFrom]
    def __init__(self, min_reader: _Optional[int] = ..., min_writer: _Optional[int] = ..., uid: _Optional[bytes] = ..., created_epoch: _Optional[int] = ..., epoch: _Optional[int] = ..., boot_id: _Optional[bytes] = ..., owner_id: _Optional[str] = ..., write_id: _Optional[bytes] = ..., previous_write_ids: _Optional[_Iterable[bytes]] = ..., lineage: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ..., detached: bool = ..., deleted: bool = ..., tip_sequence: _Optional[int] = ..., tip_digest: _Optional[bytes] = ..., last_version: _Optional[int] = ..., update_time_us: _Optional[int] = ..., status: _Optional[_Union[_checkpoint_pb2.WorkStatus, str]] = ..., expire_second: _Optional[int] = ..., packed_sequence: _Optional[int] = ..., objects: _Optional[_Iterable[_Union[ObjectRef, _Mapping]]] = ..., index: _Optional[_Union[ObjectRef, _Mapping]] = ..., image: _Optional[bytes] = ..., snapshot_version: _Optional[int] = ..., snapshot_pieces: _Optional[_Iterable[bytes]] = ..., tail: _Optional[_Iterable[bytes]] = ..., garbage: _Optional[_Iterable[_Union[Garbage, _Mapping]]] = ..., cleared: bool = ..., image_parts: _Optional[_Iterable[_Union[ImagePart, _Mapping]]] = ..., image_part_bytes: _Optional[int] = ..., settled_counter: _Optional[int] = ..., unused_epochs: _Optional[_Iterable[_Union[EpochRange, _Mapping]]] = ..., trimmed_sequence: _Optional[int] = ..., rekeyed_from: _Optional[_Iterable[_Union[RekeyedFrom, _Mapping]]] = ...) -> None: ...

class RekeyedFrom(_message.Message):
    __slots__ = ("uid", "epoch", "boot_id", "tip_sequence", "tip_digest", "lineage")
    UID_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    TIP_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TIP_DIGEST_FIELD_NUMBER: _ClassVar[int]
    LINEAGE_FIELD_NUMBER: _ClassVar[int]
    uid: bytes
    epoch: int
    boot_id: bytes
    tip_sequence: int
    tip_digest: bytes
    lineage: _containers.RepeatedCompositeFieldContainer[EpochStart]
    def __init__(self, uid: _Optional[bytes] = ..., epoch: _Optional[int] = ..., boot_id: _Optional[bytes] = ..., tip_sequence: _Optional[int] = ..., tip_digest: _Optional[bytes] = ..., lineage: _Optional[_Iterable[_Union[EpochStart, _Mapping]]] = ...) -> None: ...

class ImagePart(_message.Message):
    __slots__ = ("object", "digest")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    object: ObjectRef
    digest: bytes
    def __init__(self, object: _Optional[_Union[ObjectRef, _Mapping]] = ..., digest: _Optional[bytes] = ...) -> None: ...

class EpochRange(_message.Message):
    __slots__ = ("first", "last")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    first: int
    last: int
    def __init__(self, first: _Optional[int] = ..., last: _Optional[int] = ...) -> None: ...

class EpochStart(_message.Message):
    __slots__ = ("epoch", "sequence", "digest", "boot")
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    epoch: int
    sequence: int
    digest: bytes
    boot: int
    def __init__(self, epoch: _Optional[int] = ..., sequence: _Optional[int] = ..., digest: _Optional[bytes] = ..., boot: _Optional[int] = ...) -> None: ...

class ObjectRef(_message.Message):
    __slots__ = ("kind", "epoch", "boot", "counter", "size_bytes", "sha256", "first_sequence", "last_sequence", "first_version", "last_version", "snapshots", "cleared")
    KIND_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    BOOT_FIELD_NUMBER: _ClassVar[int]
    COUNTER_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FIRST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    LAST_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FIRST_VERSION_FIELD_NUMBER: _ClassVar[int]
    LAST_VERSION_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOTS_FIELD_NUMBER: _ClassVar[int]
    CLEARED_FIELD_NUMBER: _ClassVar[int]
    kind: ObjectKind
    epoch: int
    boot: int
    counter: int
    size_bytes: int
    sha256: bytes
    first_sequence: int
    last_sequence: int
    first_version: int
    last_version: int
    snapshots: _containers.RepeatedScalarFieldContainer[int]
    cleared: bool
    def __init__(self, kind: _Optional[_Union[ObjectKind, str]] = ..., epoch: _Optional[int] = ..., boot: _Optional[int] = ..., counter: _Optional[int] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ..., first_sequence: _Optional[int] = ..., last_sequence: _Optional[int] = ..., first_version: _Optional[int] = ..., last_version: _Optional[int] = ..., snapshots: _Optional[_Iterable[int]] = ..., cleared: bool = ...) -> None: ...

class Garbage(_message.Message):
    __slots__ = ("object", "time_us")
    OBJECT_FIELD_NUMBER: _ClassVar[int]
    TIME_US_FIELD_NUMBER: _ClassVar[int]
    object: ObjectRef
    time_us: int
    def __init__(self, object: _Optional[_Union[ObjectRef, _Mapping]] = ..., time_us: _Optional[int] = ...) -> None: ...

class ThreadImage(_message.Message):
    __slots__ = ("head", "branches", "tags", "pruned", "blobs", "signals")
    HEAD_FIELD_NUMBER: _ClassVar[int]
    BRANCHES_FIELD_NUMBER: _ClassVar[int]
    TAGS_FIELD_NUMBER: _ClassVar[int]
    PRUNED_FIELD_NUMBER: _ClassVar[int]
    BLOBS_FIELD_NUMBER: _ClassVar[int]
    SIGNALS_FIELD_NUMBER: _ClassVar[int]
    head: _head_pb2.ThreadHead
    branches: _containers.RepeatedCompositeFieldContainer[_head_pb2.BranchHead]
    tags: _containers.RepeatedCompositeFieldContainer[_thread_pb2.Tag]
    pruned: _journal_pb2.PrunedVersions
    blobs: _containers.RepeatedCompositeFieldContainer[_head_pb2.BlobRow]
    signals: _containers.RepeatedCompositeFieldContainer[_head_pb2.SignalRow]
    def __init__(self, head: _Optional[_Union[_head_pb2.ThreadHead, _Mapping]] = ..., branches: _Optional[_Iterable[_Union[_head_pb2.BranchHead, _Mapping]]] = ..., tags: _Optional[_Iterable[_Union[_thread_pb2.Tag, _Mapping]]] = ..., pruned: _Optional[_Union[_journal_pb2.PrunedVersions, _Mapping]] = ..., blobs: _Optional[_Iterable[_Union[_head_pb2.BlobRow, _Mapping]]] = ..., signals: _Optional[_Iterable[_Union[_head_pb2.SignalRow, _Mapping]]] = ...) -> None: ...

class ArchivePack(_message.Message):
    __slots__ = ("rows",)
    ROWS_FIELD_NUMBER: _ClassVar[int]
    rows: _containers.RepeatedCompositeFieldContainer[PackedRow]
    def __init__(self, rows: _Optional[_Iterable[_Union[PackedRow, _Mapping]]] = ...) -> None: ...

class PackedRow(_message.Message):
    __slots__ = ("sequence", "parts_id", "snapshot_version", "index", "record")
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    PARTS_ID_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_VERSION_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    parts_id: int
    snapshot_version: int
    index: int
    record: bytes
    def __init__(self, sequence: _Optional[int] = ..., parts_id: _Optional[int] = ..., snapshot_version: _Optional[int] = ..., index: _Optional[int] = ..., record: _Optional[bytes] = ...) -> None: ...

class ArchiveIndex(_message.Message):
    __slots__ = ("objects", "previous")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    PREVIOUS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[ObjectRef]
    previous: ObjectRef
    def __init__(self, objects: _Optional[_Iterable[_Union[ObjectRef, _Mapping]]] = ..., previous: _Optional[_Union[ObjectRef, _Mapping]] = ...) -> None: ...

class ArchiveRow(_message.Message):
    __slots__ = ("access", "head", "floor_sequence", "floor_version", "rolled_back", "orphan_of", "common_sequence", "rolled_back_to", "newer_format", "records_gone", "effects_gone")
    ACCESS_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    FLOOR_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    FLOOR_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_FIELD_NUMBER: _ClassVar[int]
    ORPHAN_OF_FIELD_NUMBER: _ClassVar[int]
    COMMON_SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    ROLLED_BACK_TO_FIELD_NUMBER: _ClassVar[int]
    NEWER_FORMAT_FIELD_NUMBER: _ClassVar[int]
    RECORDS_GONE_FIELD_NUMBER: _ClassVar[int]
    EFFECTS_GONE_FIELD_NUMBER: _ClassVar[int]
    access: _thread_pb2.ThreadAccess
    head: ArchiveHead
    floor_sequence: int
    floor_version: int
    rolled_back: bool
    orphan_of: str
    common_sequence: int
    rolled_back_to: int
    newer_format: int
    records_gone: bool
    effects_gone: bool
    def __init__(self, access: _Optional[_Union[_thread_pb2.ThreadAccess, str]] = ..., head: _Optional[_Union[ArchiveHead, _Mapping]] = ..., floor_sequence: _Optional[int] = ..., floor_version: _Optional[int] = ..., rolled_back: bool = ..., orphan_of: _Optional[str] = ..., common_sequence: _Optional[int] = ..., rolled_back_to: _Optional[int] = ..., newer_format: _Optional[int] = ..., records_gone: bool = ..., effects_gone: bool = ...) -> None: ...

class KeyObject(_message.Message):
    __slots__ = ("wraps",)
    WRAPS_FIELD_NUMBER: _ClassVar[int]
    wraps: _containers.RepeatedCompositeFieldContainer[KeyWrap]
    def __init__(self, wraps: _Optional[_Iterable[_Union[KeyWrap, _Mapping]]] = ...) -> None: ...

class KeyUser(_message.Message):
    __slots__ = ("wrapping_id", "start_time_us", "owner", "root_generation", "stop_time_us", "unarchived_threads")
    WRAPPING_ID_FIELD_NUMBER: _ClassVar[int]
    START_TIME_US_FIELD_NUMBER: _ClassVar[int]
    OWNER_FIELD_NUMBER: _ClassVar[int]
    ROOT_GENERATION_FIELD_NUMBER: _ClassVar[int]
    STOP_TIME_US_FIELD_NUMBER: _ClassVar[int]
    UNARCHIVED_THREADS_FIELD_NUMBER: _ClassVar[int]
    wrapping_id: bytes
    start_time_us: int
    owner: bytes
    root_generation: int
    stop_time_us: int
    unarchived_threads: int
    def __init__(self, wrapping_id: _Optional[bytes] = ..., start_time_us: _Optional[int] = ..., owner: _Optional[bytes] = ..., root_generation: _Optional[int] = ..., stop_time_us: _Optional[int] = ..., unarchived_threads: _Optional[int] = ...) -> None: ...

class KeyWrap(_message.Message):
    __slots__ = ("wrapping_id", "wrapped", "add_time_us")
    WRAPPING_ID_FIELD_NUMBER: _ClassVar[int]
    WRAPPED_FIELD_NUMBER: _ClassVar[int]
    ADD_TIME_US_FIELD_NUMBER: _ClassVar[int]
    wrapping_id: bytes
    wrapped: bytes
    add_time_us: int
    def __init__(self, wrapping_id: _Optional[bytes] = ..., wrapped: _Optional[bytes] = ..., add_time_us: _Optional[int] = ...) -> None: ...

class ArchiveFormat(_message.Message):
    __slots__ = ("format", "min_reader", "min_writer", "create_time_us", "archive_id", "seal")
    FORMAT_FIELD_NUMBER: _ClassVar[int]
    MIN_READER_FIELD_NUMBER: _ClassVar[int]
    MIN_WRITER_FIELD_NUMBER: _ClassVar[int]
    CREATE_TIME_US_FIELD_NUMBER: _ClassVar[int]
    ARCHIVE_ID_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    format: int
    min_reader: int
    min_writer: int
    create_time_us: int
    archive_id: bytes
    seal: bytes
    def __init__(self, format: _Optional[int] = ..., min_reader: _Optional[int] = ..., min_writer: _Optional[int] = ..., create_time_us: _Optional[int] = ..., archive_id: _Optional[bytes] = ..., seal: _Optional[bytes] = ...) -> None: ...
