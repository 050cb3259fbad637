"""What a log may say of an exception. Its message may quote a name or a value, and a log is at rest as well.

``told`` is one line: the class, and the message if it is known to have nothing of a user. ``trace`` is the traceback
with such lines. Its frames are file, line and code of this program, without the values of variables.
"""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator

from stateward_sidecar.errors import ArchiveUnavailable, StartError, StatewardError

# The facts of an error that a log may contain. Names that users chose are not among them.
LOGGED_FACTS = ("uid", "namespace_id", "version", "sequence")
# Their messages are about the operator's own things: the bucket, files, addresses.
_OF_OPERATORS = (ArchiveUnavailable, StartError)
# The packages of errors that quote nothing that is stored.
_PLAIN = ("lmdb",)
_QUOTED = re.compile(r"'(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\"", re.DOTALL)
# The most exceptions of a chain, or of groups in groups, that are shown.
SHOWN_MAX = 20


def told(error: BaseException) -> str:
    """Returns a line about an error."""
    kind = type(error).__qualname__
    if isinstance(error, _OF_OPERATORS):
        return _QUOTED.sub("…", error.message)  # an error of the archive may name a thread
    if isinstance(error, StatewardError):
        facts = (f" {key}={error.metadata[key]}" for key in LOGGED_FACTS if key in error.metadata)
        return f"{kind} {error.reason}{''.join(facts)}"
    if isinstance(error, OSError) and error.strerror:
        return f"{kind}: [Errno {error.errno}] {error.strerror}"
    if type(error).__module__.partition(".")[0] in _PLAIN:
        return f"{kind}: {error}"
    return kind


def trace(error: BaseException) -> str:
    """Returns the traceback of an error, with those that led to it."""
    parts = [part for _, part in zip(range(SHOWN_MAX), _parts(error, set()), strict=False)]
    return "\n\n".join(reversed(parts))


def _parts(error: BaseException, seen: set[int]) -> Iterator[str]:
    """Yields the last one first. A chain may be a circle."""
    following = ""
    now: BaseException | None = error
    while now is not None and id(now) not in seen:
        seen.add(id(now))
        frames = "".join(traceback.format_list(traceback.extract_tb(now.__traceback__)))
        yield f"Traceback (most recent call last):\n{frames}{told(now)}{following}"
        for each in now.exceptions if isinstance(now, BaseExceptionGroup) else ():
            yield from _parts(each, seen)
        following = "\n\nThis led to:"
        now = now.__cause__ or (None if now.__suppress_context__ else now.__context__)
