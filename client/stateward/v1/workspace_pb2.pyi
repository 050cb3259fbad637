from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TreeEntryKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREE_ENTRY_KIND_UNSPECIFIED: _ClassVar[TreeEntryKind]
    TREE_ENTRY_KIND_FILE: _ClassVar[TreeEntryKind]
    TREE_ENTRY_KIND_DIRECTORY: _ClassVar[TreeEntryKind]
    TREE_ENTRY_KIND_SYMLINK: _ClassVar[TreeEntryKind]

class TreeObjectKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    TREE_OBJECT_KIND_UNSPECIFIED: _ClassVar[TreeObjectKind]
    TREE_OBJECT_KIND_CHUNK: _ClassVar[TreeObjectKind]
    TREE_OBJECT_KIND_DIRECTORY: _ClassVar[TreeObjectKind]
TREE_ENTRY_KIND_UNSPECIFIED: TreeEntryKind
TREE_ENTRY_KIND_FILE: TreeEntryKind
TREE_ENTRY_KIND_DIRECTORY: TreeEntryKind
TREE_ENTRY_KIND_SYMLINK: TreeEntryKind
TREE_OBJECT_KIND_UNSPECIFIED: TreeObjectKind
TREE_OBJECT_KIND_CHUNK: TreeObjectKind
TREE_OBJECT_KIND_DIRECTORY: TreeObjectKind

class TreeRef(_message.Message):
    __slots__ = ("digest", "files", "size_bytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    files: int
    size_bytes: int
    def __init__(self, digest: _Optional[bytes] = ..., files: _Optional[int] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class TreeDirectory(_message.Message):
    __slots__ = ("entries",)
    ENTRIES_FIELD_NUMBER: _ClassVar[int]
    entries: _containers.RepeatedCompositeFieldContainer[TreeEntry]
    def __init__(self, entries: _Optional[_Iterable[_Union[TreeEntry, _Mapping]]] = ...) -> None: ...

class TreeEntry(_message.Message):
    __slots__ = ("name", "kind", "executable", "size_bytes", "mtime_ns", "digest", "chunks", "target", "files", "directories")
    NAME_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    EXECUTABLE_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    MTIME_NS_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    name: bytes
    kind: TreeEntryKind
    executable: bool
    size_bytes: int
    mtime_ns: int
    digest: bytes
    chunks: _containers.RepeatedCompositeFieldContainer[TreeChunk]
    target: bytes
    files: int
    directories: int
    def __init__(self, name: _Optional[bytes] = ..., kind: _Optional[_Union[TreeEntryKind, str]] = ..., executable: bool = ..., size_bytes: _Optional[int] = ..., mtime_ns: _Optional[int] = ..., digest: _Optional[bytes] = ..., chunks: _Optional[_Iterable[_Union[TreeChunk, _Mapping]]] = ..., target: _Optional[bytes] = ..., files: _Optional[int] = ..., directories: _Optional[int] = ...) -> None: ...

class TreeChunk(_message.Message):
    __slots__ = ("digest", "size_bytes")
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    digest: bytes
    size_bytes: int
    def __init__(self, digest: _Optional[bytes] = ..., size_bytes: _Optional[int] = ...) -> None: ...

class TreeObject(_message.Message):
    __slots__ = ("kind", "digest", "data", "frame_of_bytes")
    KIND_FIELD_NUMBER: _ClassVar[int]
    DIGEST_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    FRAME_OF_BYTES_FIELD_NUMBER: _ClassVar[int]
    kind: TreeObjectKind
    digest: bytes
    data: bytes
    frame_of_bytes: int
    def __init__(self, kind: _Optional[_Union[TreeObjectKind, str]] = ..., digest: _Optional[bytes] = ..., data: _Optional[bytes] = ..., frame_of_bytes: _Optional[int] = ...) -> None: ...

class TreeObjects(_message.Message):
    __slots__ = ("objects",)
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[TreeObject]
    def __init__(self, objects: _Optional[_Iterable[_Union[TreeObject, _Mapping]]] = ...) -> None: ...

class TreeNode(_message.Message):
    __slots__ = ("path", "entry")
    PATH_FIELD_NUMBER: _ClassVar[int]
    ENTRY_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    entry: TreeEntry
    def __init__(self, path: _Optional[bytes] = ..., entry: _Optional[_Union[TreeEntry, _Mapping]] = ...) -> None: ...

class TreeChange(_message.Message):
    __slots__ = ("path", "before", "after")
    PATH_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    AFTER_FIELD_NUMBER: _ClassVar[int]
    path: bytes
    before: TreeEntry
    after: TreeEntry
    def __init__(self, path: _Optional[bytes] = ..., before: _Optional[_Union[TreeEntry, _Mapping]] = ..., after: _Optional[_Union[TreeEntry, _Mapping]] = ...) -> None: ...
