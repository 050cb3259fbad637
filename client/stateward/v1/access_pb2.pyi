from google.protobuf import descriptor_pb2 as _descriptor_pb2
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Verb(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    VERB_UNSPECIFIED: _ClassVar[Verb]
    VERB_ANY: _ClassVar[Verb]
    VERB_READ: _ClassVar[Verb]
    VERB_WRITE: _ClassVar[Verb]
    VERB_SIGNAL: _ClassVar[Verb]
    VERB_DELETE: _ClassVar[Verb]
    VERB_ADMIN: _ClassVar[Verb]
VERB_UNSPECIFIED: Verb
VERB_ANY: Verb
VERB_READ: Verb
VERB_WRITE: Verb
VERB_SIGNAL: Verb
VERB_DELETE: Verb
VERB_ADMIN: Verb
ACCESS_FIELD_NUMBER: _ClassVar[int]
access: _descriptor.FieldDescriptor

class Access(_message.Message):
    __slots__ = ("verb", "thread", "lists", "when")
    VERB_FIELD_NUMBER: _ClassVar[int]
    THREAD_FIELD_NUMBER: _ClassVar[int]
    LISTS_FIELD_NUMBER: _ClassVar[int]
    WHEN_FIELD_NUMBER: _ClassVar[int]
    verb: Verb
    thread: str
    lists: bool
    when: str
    def __init__(self, verb: _Optional[_Union[Verb, str]] = ..., thread: _Optional[str] = ..., lists: bool = ..., when: _Optional[str] = ...) -> None: ...
