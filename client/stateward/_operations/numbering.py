"""Which versions a writer's frames will become: all branches of a thread share the numbers of its versions."""

from __future__ import annotations

from dataclasses import dataclass

from stateward.v1 import writer_service_pb2 as writers


@dataclass(slots=True)
class Numbering:
    """What is known of the thread's versions. Nobody but the writer saves while it holds the lease."""

    is_known: bool = False
    """Whether versions can be told in advance. An older daemon shows only with an answer where they are."""
    last: int = 0
    """The highest version, on any branch, as far as the daemon said it."""
    calls: int = 0
    """How many other calls were made under the lease when versions were last told in advance."""

    def start(self, last_version: int | None) -> None:
        """Takes what the daemon says when it takes frames; None = nothing."""
        self.is_known, self.last = last_version is not None, last_version or 0

    def saw(self, version: int) -> None:
        """Takes the version of a frame that was answered."""
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
    """The thread's, after all frames before it. None = the daemon did not say it."""

    def end(self, message: writers.WriterOpened | writers.WriterReset) -> None:
        """Takes its answer, or that of a stream that was opened since."""
        self.is_done, self.last_version = True, last_version(message)


def last_version(message: writers.WriterOpened | writers.WriterReset) -> int | None:
    """The thread's highest version, as the daemon says it. None = it does not."""
    return message.last_version if message.HasField("last_version") else None
