"""Tracebacks of the client's errors: they end at the user's code, because the frames below it tell a user nothing.

A traceback need not have a frame for every function that an error passes: a function that catches an error and raises
it again with a bare `raise` adds nothing to the traceback that it left. So the functions here leave none of ours.

A decorator costs a tenth of a microsecond for each call. Where that counts, a function does the same itself, which
costs nothing until there is an error:

    try:
        ...
    except Exception as error:
        hide_frames(error)
        raise
"""

from __future__ import annotations

import dis
import functools
import inspect
import re
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any, TypeVar, cast

C = TypeVar("C", bound=type)
F = TypeVar("F", bound=Callable[..., Any])

_INNER = re.compile(r"(stateward|grpc|asyncio|concurrent|contextlib)(\.|$)")
_OF_ARGUMENTS = (TypeError, ValueError, RuntimeError, AttributeError)
"""What the client raises, besides its own errors, for wrong arguments and values and for wrong use."""

_CALLED_BY_PYTHON = {
    "__init__", "__enter__", "__exit__", "__next__", "__aenter__", "__aexit__", "__anext__", "__setattr__",
    "__delattr__",
}  # fmt: skip
OF_STATEWARD = "_is_stateward"
"""An attribute of errors that this library raised on purpose, and that no user's function raised."""


def ends_at_the_caller(kind: C) -> C:
    """Decorates a class: an error that a public method or property raises ends at the line of the user
    that called it.

    Generators are left out. They do the same with `AT_THE_CALLER`. The dataclasses that keep whatever they are given
    decorate their methods instead, because the `__init__` of a dataclass is quick.
    """
    for name, method in list(vars(kind).items()):
        if name.startswith("_") and name not in _CALLED_BY_PYTHON:
            continue
        if isinstance(method, property) and method.fget is not None:
            setattr(kind, name, method.getter(at_the_caller(method.fget)))
        elif inspect.isfunction(method) and not _is_generator(method):
            setattr(kind, name, at_the_caller(method))
    return kind


def at_the_caller(function: F) -> F:
    """Decorates one function, plain or a coroutine function, in the same way."""
    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def awaited(*arguments: Any, **options: Any) -> Any:
            try:
                return await function(*arguments, **options)
            except Exception as error:
                _leave_out(error)
                raise

        return cast("F", awaited)

    @functools.wraps(function)
    def called(*arguments: Any, **options: Any) -> Any:
        try:
            return function(*arguments, **options)
        except Exception as error:
            _leave_out(error)
            raise

    return cast("F", called)


class _AtTheCaller:
    """The body of a `with` statement whose errors end at the caller of its function."""

    __slots__ = ()

    def __enter__(self) -> None:
        pass

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, Exception):
            hide_frames(error)


AT_THE_CALLER = _AtTheCaller()


def hide_frames(error: Exception) -> None:
    """Cuts the frames of this library off the end of an error's traceback, if the error is one of Stateward's own, or
    is about an argument or a value and was raised here on purpose. Each function of the user that the library called
    stays. Any other error may be a fault of the library, which its frames explain."""
    if getattr(error, OF_STATEWARD, False):
        error.__traceback__ = _without_inner(error.__traceback__)
    elif isinstance(error, _OF_ARGUMENTS) and _is_raised_here(error.__traceback__):
        error.__dict__[OF_STATEWARD] = True  # its origin is cut off now, and an outer function asks again
        error.__traceback__ = _without_inner(error.__traceback__)
    elif isinstance(error, LookupError) and _is_raised_here(error.__traceback__):
        # Who reads what is not there is at fault. That may be this library, so its own line stays if it is the reader.
        error.__traceback__ = _without_inner(error.__traceback__)


def _leave_out(error: Exception) -> None:
    """Hides the frame of the decorator, whatever the error is, and the others as `hide_frames` does."""
    if error.__traceback__ is not None:
        error.__traceback__ = error.__traceback__.tb_next
    hide_frames(error)


def _without_inner(traceback: TracebackType | None) -> TracebackType | None:
    """Returns the traceback up to the last function that is not of this library; None if there is no such function."""
    last, each = None, traceback
    while each is not None:
        if not _is_inner(each.tb_frame):
            last = each
        each = each.tb_next
    if last is None:
        return None
    last.tb_next = None
    return traceback


def _is_raised_here(traceback: TracebackType | None) -> bool:
    """Whether a `raise` of this library is the origin, and no operation that failed."""
    if traceback is None:
        return False
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame = traceback.tb_frame
    raised = dis.opname[frame.f_code.co_code[traceback.tb_lasti]].startswith("RAISE")
    return raised and _is_inner(frame)


def _is_inner(frame: FrameType) -> bool:
    return _INNER.match(str(frame.f_globals.get("__name__", ""))) is not None


def _is_generator(function: Callable[..., Any]) -> bool:
    return inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function)
