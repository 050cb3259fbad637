"""Which versions a writer's frames will become: all branches of a thread share the numbers of its versions."""

from __future__ import annotations

from dataclasses import dataclass

from stateward.v1 import writer_service_pb2 as writers


@dataclass(slots=True)
class Numbering:
    """What the writer knows about the thread's versions. Only the writer saves while it holds the lease."""

    is_known: bool = False
    """Whether versions can be told in advance: other calls under the lease may have saved, too."""
    last: int = 0
    """The highest version on any branch that the daemon reported."""
    calls: int = 0
    """Number of other calls under the lease when versions were last told in advance."""

    def start(self, last_version: int) -> None:
        """Takes the version that the daemon reports when it opens the stream or resets."""
        self.is_known, self.last = True, last_version

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
    last_version: int = 0
    """The thread's highest version after all earlier frames."""

    def end(self, message: writers.WriterOpened | writers.WriterReset) -> None:
        """Takes the answer to the reset, or the opening answer of a later stream."""
        self.is_done, self.last_version = True, message.last_version
