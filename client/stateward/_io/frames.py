"""Tracebacks of the client's errors: they end at the user's code, because the frames below it tell a user nothing."""

from __future__ import annotations

import re
from types import FrameType

_INNER = re.compile(r"(stateward|grpc|asyncio|concurrent|contextlib)(\.|$)")


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


def _is_inner(frame: FrameType) -> bool:
    return _INNER.match(str(frame.f_globals.get("__name__", ""))) is not None
