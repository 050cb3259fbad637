from stateward.v1 import state_pb2 as _state_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Diff(_message.Message):
    __slots__ = ("edits",)
    EDITS_FIELD_NUMBER: _ClassVar[int]
    edits: _containers.RepeatedCompositeFieldContainer[Edit]
    def __init__(self, edits: _Optional[_Iterable[_Union[Edit, _Mapping]]] = ...) -> None: ...

class Edit(_message.Message):
    __slots__ = ("set_slot", "delete_slot", "splice_slot", "append", "replace_entry", "trim_log", "delete_log", "add_number")
    SET_SLOT_FIELD_NUMBER: _ClassVar[int]
    DELETE_SLOT_FIELD_NUMBER: _ClassVar[int]
    SPLICE_SLOT_FIELD_NUMBER: _ClassVar[int]
    APPEND_FIELD_NUMBER: _ClassVar[int]
    REPLACE_ENTRY_FIELD_NUMBER: _ClassVar[int]
    TRIM_LOG_FIELD_NUMBER: _ClassVar[int]
    DELETE_LOG_FIELD_NUMBER: _ClassVar[int]
    ADD_NUMBER_FIELD_NUMBER: _ClassVar[int]
    set_slot: SetSlot
    delete_slot: DeleteSlot
    splice_slot: SpliceSlot
    append: Append
    replace_entry: ReplaceEntry
    trim_log: TrimLog
    delete_log: DeleteLog
    add_number: AddNumber
    def __init__(self, set_slot: _Optional[_Union[SetSlot, _Mapping]] = ..., delete_slot: _Optional[_Union[DeleteSlot, _Mapping]] = ..., splice_slot: _Optional[_Union[SpliceSlot, _Mapping]] = ..., append: _Optional[_Union[Append, _Mapping]] = ..., replace_entry: _Optional[_Union[ReplaceEntry, _Mapping]] = ..., trim_log: _Optional[_Union[TrimLog, _Mapping]] = ..., delete_log: _Optional[_Union[DeleteLog, _Mapping]] = ..., add_number: _Optional[_Union[AddNumber, _Mapping]] = ...) -> None: ...

class SetSlot(_message.Message):
    __slots__ = ("slot", "value", "expected_sha256")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_SHA256_FIELD_NUMBER: _ClassVar[int]
    slot: str
    value: _state_pb2.Value
    expected_sha256: bytes
    def __init__(self, slot: _Optional[str] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ..., expected_sha256: _Optional[bytes] = ...) -> None: ...

class AddNumber(_message.Message):
    __slots__ = ("slot", "delta")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    DELTA_FIELD_NUMBER: _ClassVar[int]
    slot: str
    delta: int
    def __init__(self, slot: _Optional[str] = ..., delta: _Optional[int] = ...) -> None: ...

class DeleteSlot(_message.Message):
    __slots__ = ("slot",)
    SLOT_FIELD_NUMBER: _ClassVar[int]
    slot: str
    def __init__(self, slot: _Optional[str] = ...) -> None: ...

class SpliceSlot(_message.Message):
    __slots__ = ("slot", "base_sha256", "splices")
    SLOT_FIELD_NUMBER: _ClassVar[int]
    BASE_SHA256_FIELD_NUMBER: _ClassVar[int]
    SPLICES_FIELD_NUMBER: _ClassVar[int]
    slot: str
    base_sha256: bytes
    splices: _containers.RepeatedCompositeFieldContainer[Splice]
    def __init__(self, slot: _Optional[str] = ..., base_sha256: _Optional[bytes] = ..., splices: _Optional[_Iterable[_Union[Splice, _Mapping]]] = ...) -> None: ...

class Splice(_message.Message):
    __slots__ = ("offset", "delete", "insert")
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    DELETE_FIELD_NUMBER: _ClassVar[int]
    INSERT_FIELD_NUMBER: _ClassVar[int]
    offset: int
    delete: int
    insert: bytes
    def __init__(self, offset: _Optional[int] = ..., delete: _Optional[int] = ..., insert: _Optional[bytes] = ...) -> None: ...

class Append(_message.Message):
    __slots__ = ("log", "entries", "at_index")
    LOG_FIELD_NUMBER: _ClassVar[int]
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    AT_INDEX_FIELD_NUMBER: _ClassVar[int]
    log: str
    entries: _containers.RepeatedCompositeFieldContainer[_state_pb2.Value]
    at_index: int
    def __init__(self, log: _Optional[str] = ..., entries: _Optional[_Iterable[_Union[_state_pb2.Value, _Mapping]]] = ..., at_index: _Optional[int] = ...) -> None: ...

class ReplaceEntry(_message.Message):
    __slots__ = ("log", "index", "value")
    LOG_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    log: str
    index: int
    value: _state_pb2.Value
    def __init__(self, log: _Optional[str] = ..., index: _Optional[int] = ..., value: _Optional[_Union[_state_pb2.Value, _Mapping]] = ...) -> None: ...

class TrimLog(_message.Message):
    __slots__ = ("log", "keep_last", "before_index", "from_index")
    LOG_FIELD_NUMBER: _ClassVar[int]
    KEEP_LAST_FIELD_NUMBER: _ClassVar[int]
    BEFORE_INDEX_FIELD_NUMBER: _ClassVar[int]
    FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    log: str
    keep_last: int
    before_index: int
    from_index: int
    def __init__(self, log: _Optional[str] = ..., keep_last: _Optional[int] = ..., before_index: _Optional[int] = ..., from_index: _Optional[int] = ...) -> None: ...

class DeleteLog(_message.Message):
    __slots__ = ("log",)
    LOG_FIELD_NUMBER: _ClassVar[int]
    log: str
    def __init__(self, log: _Optional[str] = ...) -> None: ...
