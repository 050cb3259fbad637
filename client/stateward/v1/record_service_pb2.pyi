from google.protobuf import empty_pb2 as _empty_pb2
from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import record_pb2 as _record_pb2
from stateward.v1 import thread_pb2 as _thread_pb2
from stateward.v1 import write_pb2 as _write_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class RecordOrder(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    RECORD_ORDER_UNSPECIFIED: _ClassVar[RecordOrder]
    RECORD_ORDER_KEY: _ClassVar[RecordOrder]
    RECORD_ORDER_NEWEST: _ClassVar[RecordOrder]
RECORD_ORDER_UNSPECIFIED: RecordOrder
RECORD_ORDER_KEY: RecordOrder
RECORD_ORDER_NEWEST: RecordOrder

class PutRecordsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "writes")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    WRITES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    writes: _containers.RepeatedCompositeFieldContainer[_record_pb2.RecordWrite]
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., writes: _Optional[_Iterable[_Union[_record_pb2.RecordWrite, _Mapping]]] = ...) -> None: ...

class PutRecordsResponse(_message.Message):
    __slots__ = ("receipt", "revision", "written", "deleted")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    revision: int
    written: int
    deleted: int
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., revision: _Optional[int] = ..., written: _Optional[int] = ..., deleted: _Optional[int] = ...) -> None: ...

class GetRecordsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "keys", "refresh_ttl", "without_values")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    KEYS_FIELD_NUMBER: _ClassVar[int]
    REFRESH_TTL_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_VALUES_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    keys: _containers.RepeatedScalarFieldContainer[str]
    refresh_ttl: bool
    without_values: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., keys: _Optional[_Iterable[str]] = ..., refresh_ttl: bool = ..., without_values: bool = ...) -> None: ...

class GetRecordsResponse(_message.Message):
    __slots__ = ("records", "rest")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    REST_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[_record_pb2.StoredRecord]
    rest: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, records: _Optional[_Iterable[_Union[_record_pb2.StoredRecord, _Mapping]]] = ..., rest: _Optional[_Iterable[str]] = ...) -> None: ...

class ListRecordsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "prefix", "filters", "order", "skip", "without_values", "refresh_ttl", "page_size", "page_token", "skip_unreadable")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    FILTERS_FIELD_NUMBER: _ClassVar[int]
    ORDER_FIELD_NUMBER: _ClassVar[int]
    SKIP_FIELD_NUMBER: _ClassVar[int]
    WITHOUT_VALUES_FIELD_NUMBER: _ClassVar[int]
    REFRESH_TTL_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SKIP_UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    prefix: str
    filters: _containers.RepeatedCompositeFieldContainer[_checkpoint_pb2.AttributeFilter]
    order: RecordOrder
    skip: int
    without_values: bool
    refresh_ttl: bool
    page_size: int
    page_token: str
    skip_unreadable: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., prefix: _Optional[str] = ..., filters: _Optional[_Iterable[_Union[_checkpoint_pb2.AttributeFilter, _Mapping]]] = ..., order: _Optional[_Union[RecordOrder, str]] = ..., skip: _Optional[int] = ..., without_values: bool = ..., refresh_ttl: bool = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., skip_unreadable: bool = ...) -> None: ...

class ListRecordsResponse(_message.Message):
    __slots__ = ("records", "next_page_token", "unreadable_parts")
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_PARTS_FIELD_NUMBER: _ClassVar[int]
    records: _containers.RepeatedCompositeFieldContainer[_record_pb2.StoredRecord]
    next_page_token: str
    unreadable_parts: _containers.RepeatedCompositeFieldContainer[_thread_pb2.UnreadablePart]
    def __init__(self, records: _Optional[_Iterable[_Union[_record_pb2.StoredRecord, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., unreadable_parts: _Optional[_Iterable[_Union[_thread_pb2.UnreadablePart, _Mapping]]] = ...) -> None: ...

class ListRecordPrefixesRequest(_message.Message):
    __slots__ = ("namespace", "thread", "prefix", "delimiter", "max_depth", "page_size", "page_token", "skip_unreadable")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    DELIMITER_FIELD_NUMBER: _ClassVar[int]
    MAX_DEPTH_FIELD_NUMBER: _ClassVar[int]
    PAGE_SIZE_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    SKIP_UNREADABLE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    prefix: str
    delimiter: str
    max_depth: int
    page_size: int
    page_token: str
    skip_unreadable: bool
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., prefix: _Optional[str] = ..., delimiter: _Optional[str] = ..., max_depth: _Optional[int] = ..., page_size: _Optional[int] = ..., page_token: _Optional[str] = ..., skip_unreadable: bool = ...) -> None: ...

class ListRecordPrefixesResponse(_message.Message):
    __slots__ = ("prefixes", "next_page_token", "unreadable_parts")
    PREFIXES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    UNREADABLE_PARTS_FIELD_NUMBER: _ClassVar[int]
    prefixes: _containers.RepeatedCompositeFieldContainer[_record_pb2.RecordPrefix]
    next_page_token: str
    unreadable_parts: _containers.RepeatedCompositeFieldContainer[_thread_pb2.UnreadablePart]
    def __init__(self, prefixes: _Optional[_Iterable[_Union[_record_pb2.RecordPrefix, _Mapping]]] = ..., next_page_token: _Optional[str] = ..., unreadable_parts: _Optional[_Iterable[_Union[_thread_pb2.UnreadablePart, _Mapping]]] = ...) -> None: ...

class DeleteRecordsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "options", "prefix", "all", "max_revision")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    PREFIX_FIELD_NUMBER: _ClassVar[int]
    ALL_FIELD_NUMBER: _ClassVar[int]
    MAX_REVISION_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    prefix: str
    all: _empty_pb2.Empty
    max_revision: int
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ..., prefix: _Optional[str] = ..., all: _Optional[_Union[_empty_pb2.Empty, _Mapping]] = ..., max_revision: _Optional[int] = ...) -> None: ...

class DeleteRecordsResponse(_message.Message):
    __slots__ = ("receipt", "deleted", "has_more")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    DELETED_FIELD_NUMBER: _ClassVar[int]
    HAS_MORE_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    deleted: int
    has_more: bool
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., deleted: _Optional[int] = ..., has_more: bool = ...) -> None: ...
