"""Tracebacks of the client's errors: they end at the user's code, because the frames below it tell a user nothing."""

from __future__ import annotations

import dis
import re
from types import FrameType, TracebackType

_INNER = re.compile(r"(stateward|grpc|asyncio|concurrent|contextlib)(\.|$)")
_OF_ARGUMENTS = (TypeError, ValueError, RuntimeError, AttributeError)
"""What the client raises, besides its own errors, for wrong arguments and values and for wrong use."""

_MARK = "_is_stateward"


def hide_frames(error: BaseException) -> None:
    """Cuts the frames of this library off the end of an error's traceback.

    The first frame stays, and so does each function of the user that the library called.
    """
    last = each = error.__traceback__
    while each is not None:
        if not _is_inner(each.tb_frame):
            last = each
        each = each.tb_next
    if last is not None:
        last.tb_next = None


def hide_own_frames(error: Exception) -> None:
    """Does the same for an error about an argument or a value that this library raised on purpose. Any other error may
    be a fault of the library, which its frames explain."""
    if not isinstance(error, _OF_ARGUMENTS) or error.__traceback__ is None:
        return
    if _MARK in error.__dict__ or _is_raised_here(error.__traceback__):
        error.__dict__[_MARK] = True  # its origin is cut off now, and an outer function of this library asks again
        hide_frames(error)


def _is_raised_here(traceback: TracebackType) -> bool:
    """Whether a `raise` of this library is the origin, and no operation that failed."""
    while traceback.tb_next is not None:
        traceback = traceback.tb_next
    frame = traceback.tb_frame
    raised = dis.opname[frame.f_code.co_code[traceback.tb_lasti]].startswith("RAISE")
    return raised and _is_inner(frame)


def _is_inner(frame: FrameType) -> bool:
    return _INNER.match(str(frame.f_globals.get("__name__", ""))) is not None
