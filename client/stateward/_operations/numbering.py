"""Which versions a writer's frames will become: all branches of a thread share the numbers of its versions."""

from __future__ import annotations

from dataclasses import dataclass

from stateward.v1 import writer_service_pb2 as writers


@dataclass(slots=True)
class Numbering:
    """What the writer knows about the thread's versions. Only the writer saves while it holds the lease."""

    is_known: bool = False
    """Whether versions can be told in advance. An older daemon reports the version only with an answer."""
    last: int = 0
    """The highest version on any branch that the daemon reported."""
    calls: int = 0
    """Number of other calls under the lease when versions were last told in advance."""

    def start(self, last_version: int | None) -> None:
        """Takes the version that the daemon reports when it opens the stream or resets; None = it reports none."""
        self.is_known, self.last = last_version is not None, last_version or 0

    def saw(self, version: int) -> None:
        """Takes the version of an answered frame."""
        self.is_known, self.last = True, max(self.last, version)

    def look(self, calls: int) -> None:
        """Before the first of several frames: other calls under the lease may have saved, on any branch."""
        if calls != self.calls:
            self.calls, self.is_known = calls, False


@dataclass(slots=True)
class Resetting:
    """A reset that was sent."""

    is_done: bool = False
    last_version: int | None = None
    """The thread's highest version after all earlier frames. None = the daemon did not report it."""

    def end(self, message: writers.WriterOpened | writers.WriterReset) -> None:
        """Takes the answer to the reset, or the opening answer of a later stream."""
        self.is_done, self.last_version = True, last_version(message)


def last_version(message: writers.WriterOpened | writers.WriterReset) -> int | None:
    """Returns the thread's highest version as the daemon reports it. None = it does not."""
    return message.last_version if message.HasField("last_version") else None
