from stateward.v1 import access_pb2 as _access_pb2
from stateward.v1 import checkpoint_pb2 as _checkpoint_pb2
from stateward.v1 import workspace_pb2 as _workspace_pb2
from stateward.v1 import write_pb2 as _write_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class FindMissingRequest(_message.Message):
    __slots__ = ("namespace", "thread", "directories", "chunks")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    directories: _containers.RepeatedScalarFieldContainer[bytes]
    chunks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., directories: _Optional[_Iterable[bytes]] = ..., chunks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FindMissingResponse(_message.Message):
    __slots__ = ("uid", "missing_directories", "missing_chunks")
    UID_FIELD_NUMBER: _ClassVar[int]
    MISSING_DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    MISSING_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    uid: str
    missing_directories: bytes
    missing_chunks: bytes
    def __init__(self, uid: _Optional[str] = ..., missing_directories: _Optional[bytes] = ..., missing_chunks: _Optional[bytes] = ...) -> None: ...

class WriteObjectsRequest(_message.Message):
    __slots__ = ("begin", "objects")
    BEGIN_FIELD_NUMBER: _ClassVar[int]
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    begin: ObjectsBegin
    objects: _workspace_pb2.TreeObjects
    def __init__(self, begin: _Optional[_Union[ObjectsBegin, _Mapping]] = ..., objects: _Optional[_Union[_workspace_pb2.TreeObjects, _Mapping]] = ...) -> None: ...

class ObjectsBegin(_message.Message):
    __slots__ = ("namespace", "thread", "options")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    OPTIONS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    options: _write_pb2.WriteOptions
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., options: _Optional[_Union[_write_pb2.WriteOptions, _Mapping]] = ...) -> None: ...

class WriteObjectsResponse(_message.Message):
    __slots__ = ("receipt", "written", "existed", "size_bytes", "stored_bytes")
    RECEIPT_FIELD_NUMBER: _ClassVar[int]
    WRITTEN_FIELD_NUMBER: _ClassVar[int]
    EXISTED_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    receipt: _write_pb2.Receipt
    written: int
    existed: int
    size_bytes: int
    stored_bytes: int
    def __init__(self, receipt: _Optional[_Union[_write_pb2.Receipt, _Mapping]] = ..., written: _Optional[int] = ..., existed: _Optional[int] = ..., size_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ...) -> None: ...

class ReadTreeRequest(_message.Message):
    __slots__ = ("namespace", "thread", "branch", "version", "tree", "path", "depth", "max_bytes", "page_token")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DEPTH_FIELD_NUMBER: _ClassVar[int]
    MAX_BYTES_FIELD_NUMBER: _ClassVar[int]
    PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    branch: str
    version: _checkpoint_pb2.VersionRef
    tree: bytes
    path: bytes
    depth: int
    max_bytes: int
    page_token: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., branch: _Optional[str] = ..., version: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., tree: _Optional[bytes] = ..., path: _Optional[bytes] = ..., depth: _Optional[int] = ..., max_bytes: _Optional[int] = ..., page_token: _Optional[str] = ...) -> None: ...

class ReadTreeResponse(_message.Message):
    __slots__ = ("tree", "version", "nodes", "next_page_token")
    TREE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    NEXT_PAGE_TOKEN_FIELD_NUMBER: _ClassVar[int]
    tree: _workspace_pb2.TreeRef
    version: int
    nodes: _containers.RepeatedCompositeFieldContainer[_workspace_pb2.TreeNode]
    next_page_token: str
    def __init__(self, tree: _Optional[_Union[_workspace_pb2.TreeRef, _Mapping]] = ..., version: _Optional[int] = ..., nodes: _Optional[_Iterable[_Union[_workspace_pb2.TreeNode, _Mapping]]] = ..., next_page_token: _Optional[str] = ...) -> None: ...

class ReadObjectsRequest(_message.Message):
    __slots__ = ("namespace", "thread", "directories", "chunks")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    directories: _containers.RepeatedScalarFieldContainer[bytes]
    chunks: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., directories: _Optional[_Iterable[bytes]] = ..., chunks: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ReadObjectsResponse(_message.Message):
    __slots__ = ("objects", "rest_bytes")
    OBJECTS_FIELD_NUMBER: _ClassVar[int]
    REST_BYTES_FIELD_NUMBER: _ClassVar[int]
    objects: _containers.RepeatedCompositeFieldContainer[_workspace_pb2.TreeObject]
    rest_bytes: int
    def __init__(self, objects: _Optional[_Iterable[_Union[_workspace_pb2.TreeObject, _Mapping]]] = ..., rest_bytes: _Optional[int] = ...) -> None: ...

class DiffTreesRequest(_message.Message):
    __slots__ = ("namespace", "thread", "branch", "base", "target", "base_tree", "target_tree")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    BRANCH_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    BASE_TREE_FIELD_NUMBER: _ClassVar[int]
    TARGET_TREE_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    branch: str
    base: _checkpoint_pb2.VersionRef
    target: _checkpoint_pb2.VersionRef
    base_tree: bytes
    target_tree: bytes
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ..., branch: _Optional[str] = ..., base: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., target: _Optional[_Union[_checkpoint_pb2.VersionRef, _Mapping]] = ..., base_tree: _Optional[bytes] = ..., target_tree: _Optional[bytes] = ...) -> None: ...

class DiffTreesResponse(_message.Message):
    __slots__ = ("base", "target", "changes")
    BASE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    base: _workspace_pb2.TreeRef
    target: _workspace_pb2.TreeRef
    changes: _containers.RepeatedCompositeFieldContainer[_workspace_pb2.TreeChange]
    def __init__(self, base: _Optional[_Union[_workspace_pb2.TreeRef, _Mapping]] = ..., target: _Optional[_Union[_workspace_pb2.TreeRef, _Mapping]] = ..., changes: _Optional[_Iterable[_Union[_workspace_pb2.TreeChange, _Mapping]]] = ...) -> None: ...

class StatWorkspaceRequest(_message.Message):
    __slots__ = ("namespace", "thread")
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    namespace: str
    thread: str
    def __init__(self, namespace: _Optional[str] = ..., thread: _Optional[str] = ...) -> None: ...

class StatWorkspaceResponse(_message.Message):
    __slots__ = ("directories", "chunks", "size_bytes", "stored_bytes", "packs", "trees", "tree_bytes")
    DIRECTORIES_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    STORED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PACKS_FIELD_NUMBER: _ClassVar[int]
    TREES_FIELD_NUMBER: _ClassVar[int]
    TREE_BYTES_FIELD_NUMBER: _ClassVar[int]
    directories: int
    chunks: int
    size_bytes: int
    stored_bytes: int
    packs: int
    trees: int
    tree_bytes: int
    def __init__(self, directories: _Optional[int] = ..., chunks: _Optional[int] = ..., size_bytes: _Optional[int] = ..., stored_bytes: _Optional[int] = ..., packs: _Optional[int] = ..., trees: _Optional[int] = ..., tree_bytes: _Optional[int] = ...) -> None: ...
