"""Which types the values of a checkpoint may have.

LangGraph's serializer stores an object as the names of its module and class, and imports and calls what they name. So
whoever may write to a thread could run code in every agent that reads it. Guarded makes objects of the types that are
in LangGraph's own list, and of those that the program allows. Any other type is an error, at the write and at the read:
LangGraph would return the object's bare data instead, and say so in a log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import ormsgpack
from langgraph.checkpoint.serde import _msgpack as listed
from langgraph.checkpoint.serde import jsonplus
from langgraph.checkpoint.serde.base import SerializerProtocol

AllowedType = type | tuple[str, str]
"""A class, or the names of its module and of the class."""

_METHODS = listed.SAFE_MSGPACK_METHODS
_PLAIN_KINDS = {"null", "bytes", "bytearray"}
_CONSTRUCTORS = {
    jsonplus.EXT_CONSTRUCTOR_SINGLE_ARG,
    jsonplus.EXT_CONSTRUCTOR_POS_ARGS,
    jsonplus.EXT_CONSTRUCTOR_KW_ARGS,
    jsonplus.EXT_PYDANTIC_V1,
    jsonplus.EXT_PYDANTIC_V2,
}
_LOOKED_INTO = {*_CONSTRUCTORS, jsonplus.EXT_METHOD_SINGLE_ARG, jsonplus.EXT_DELTA_SNAPSHOT}


class TypeNotAllowed(ValueError):
    """Raised for a value of types that StatewardSaver may not load. Nothing was written, or loaded.

    Add the types to `allowed_types` if you trust them, or keep the value in the graph's state as plain data.
    """

    def __init__(self, types: Sequence[tuple[str, str]], place: str = "") -> None:
        names = ", ".join(f"{module}.{name}" for module, name in types)
        super().__init__(
            f"{place or 'a value of the graph'} has the type {names}, which is not allowed; if you trust it, give "
            f"StatewardSaver(allowed_types={list(types)!r}), or the class itself"
        )
        self.types = tuple(types)
        """The names of modules and classes, those inside of others first."""


class Guarded(jsonplus.JsonPlusSerializer):
    """LangGraph's serializer, which makes objects of allowed types only."""

    def __init__(self, allowed: Iterable[AllowedType] = ()) -> None:
        self.allowed = frozenset(map(_names, allowed))
        # LangGraph checks too, and takes an empty list for none.
        super().__init__(allowed_msgpack_modules=sorted(self.allowed) or None)

    def with_msgpack_allowlist(self, extra_allowlist: Iterable[tuple[str, ...] | type]) -> Guarded:
        """Allows further types: LangGraph names those of a graph if LANGGRAPH_STRICT_MSGPACK is set."""
        extra = {(each.__module__, each.__name__) if isinstance(each, type) else each for each in extra_allowlist}
        return Guarded({*self.allowed, *(each for each in extra if len(each) == 2)})  # three names are of a method

    def dumps_checked(self, obj: Any) -> tuple[str, bytes]:
        """As `dumps_typed`. Raises TypeNotAllowed for what `loads_typed` would not load."""
        if obj is None or isinstance(obj, bytes | bytearray):
            return self.dumps_typed(obj)
        refused = list[tuple[str, str]]()

        def pack(value: Any) -> Any:
            made = jsonplus._msgpack_default(value)
            if isinstance(made, ormsgpack.Ext):
                ormsgpack.unpackb(ormsgpack.packb(made), ext_hook=self._look(refused))
            return None if refused else made

        data = ormsgpack.packb(obj, default=pack, option=jsonplus._option)
        _refuse(refused)
        return "msgpack", data

    def loads_typed(self, data: tuple[str, bytes]) -> Any:
        """Raises TypeNotAllowed, before anything is made of the object."""
        kind, content = data
        if kind in _PLAIN_KINDS:
            return super().loads_typed(data)
        if kind != "msgpack":
            raise ValueError(f"a value was stored as {kind!r}, which StatewardSaver loads with another serde= only")
        refused = list[tuple[str, str]]()
        look = self._look(refused)

        def make(code: int, packed: bytes) -> Any:
            look(code, packed)
            return None if refused else self._unpack_ext_hook(code, packed)

        made = ormsgpack.unpackb(content, ext_hook=make, option=ormsgpack.OPT_NON_STR_KEYS)
        _refuse(refused)
        return made

    def _look(self, refused: list[tuple[str, str]]) -> Callable[[int, bytes], None]:
        """Returns a function that looks through an object and the objects in it, and adds the types to refuse.

        It does not raise, because ormsgpack does not say what a hook raised.
        """

        def look(code: int, packed: bytes) -> None:
            pending, outer_first = [(code, packed)], list[tuple[str, str]]()
            while pending:
                code, packed = pending.pop()
                if code not in _LOOKED_INTO:
                    continue  # an array of numpy, whose data has no names
                found = ormsgpack.unpackb(
                    packed, ext_hook=lambda *inner: pending.append(inner), option=ormsgpack.OPT_NON_STR_KEYS
                )
                if code in _CONSTRUCTORS and not self._is_allowed(found):
                    outer_first.append((str(found[0]), str(found[1])))
                elif code == jsonplus.EXT_METHOD_SINGLE_ARG and tuple(found[i] for i in (0, 1, 3)) not in _METHODS:
                    outer_first.append((str(found[0]), f"{found[1]}.{found[3]}"))
            refused.extend(reversed(outer_first))

        return look

    def _is_allowed(self, found: Sequence[Any]) -> bool:
        names = (str(found[0]), str(found[1]))
        return names in listed.SAFE_MSGPACK_TYPES or names in self.allowed


def dump(serde: SerializerProtocol, value: Any) -> tuple[str, bytes]:
    """Serializes a value that is sent. Raises TypeNotAllowed for a value that could not be loaded again."""
    return serde.dumps_checked(value) if isinstance(serde, Guarded) else serde.dumps_typed(value)


class Placed:
    """Names thread and place in errors about a value that cannot be serialized."""

    __slots__ = ("_thread_id", "_what")

    def __init__(self, thread_id: str, what: str) -> None:
        self._thread_id, self._what = thread_id, what

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if not isinstance(error, (TypeError, ValueError)):
            return
        place = f"{self._what} of thread {self._thread_id!r}"
        if isinstance(error, TypeNotAllowed):
            raise TypeNotAllowed(error.types, f"a value in {place}") from None
        if type(error) in (TypeError, ValueError):
            raise type(error)(f"{place}: {error}") from error
        error.add_note(place)


def _names(allowed: AllowedType) -> tuple[str, str]:
    if isinstance(allowed, type):
        return allowed.__module__, allowed.__name__
    given: object = allowed  # from a program without type checks
    if isinstance(given, tuple) and len(given) == 2 and all(isinstance(each, str) and each for each in given):
        return given
    raise TypeError(f"allowed_types has classes, and tuples of the names of a module and a class, not {allowed!r}")


def _refuse(refused: Sequence[tuple[str, str]]) -> None:
    if refused:
        raise TypeNotAllowed(list(dict.fromkeys(refused)))
