"""The parts of writers that both clients share."""

from __future__ import annotations

import os
from typing import Any

from stateward._io.session import SessionBase
from stateward._operations.frames import Frame
from stateward._operations.leases import TERM_S, Claim
from stateward._operations.steps import ThreadRef
from stateward._operations.writer import Writing
from stateward.durations import Duration
from stateward.errors import StatewardError
from stateward.models import Checkpoint
from stateward.options import ThreadOptions


class WriterShell:
    """A writer of one branch, in one process."""

    def __init__(
        self,
        session: SessionBase[Any],
        ref: ThreadRef,
        *,
        term: Duration = TERM_S,
        wait: Duration = 0.0,
        take_over: bool = False,
        create: ThreadOptions | None = None,
    ) -> None:
        self._session: Any = session
        self._claim = Claim.of(session.holder, term, wait, take_over, create)
        settings = session.settings
        self._writing = Writing(ref, self._claim, session.patience_s, settings.call_timeout_s, settings.take_over)
        self._pid = os.getpid()
        self._is_closed = False

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._writing.ref.thread!r}, version={self.version})"

    @property
    def token(self) -> int:
        """The fencing token of the writer's lease. Others can refuse what an older holder still sends."""
        return self._writing.token

    def _note_call(self) -> None:
        """Notes a save of another handle under the writer's lease: it may have taken the number of the next version."""
        self._writing.ref.held.for_call()

    @property
    def version(self) -> int:
        """The newest version that was answered; 0 = none yet."""
        return self._writing.head[0]

    @property
    def is_ours(self) -> bool:
        """Whether this process made the writer. A forked child must not use its parent's stream."""
        return self._pid == os.getpid()

    def _require_ours(self) -> None:
        if not self.is_ours:
            raise RuntimeError("this writer is the parent process's; open one of your own")
        if self._is_closed or not self._writing.token:
            raise RuntimeError("this writer is not open; use it with `with`")


class HandleShell:
    """A version that a writer has sent."""

    def __init__(self, writer: Any, frame: Frame) -> None:
        self._writer = writer
        self._frame = frame

    def __repr__(self) -> str:
        return f"{type(self).__name__}(version={self.version}, done={self.done})"

    @property
    def version(self) -> int:
        """The number of the version: the expected one until the daemon has answered."""
        known = self._frame.checkpoint or self._frame.expected
        assert known is not None  # a handle is of a frame that was sent ahead
        return known.version

    @property
    def done(self) -> bool:
        """Whether the answer was read. `result`, `flush` and `save` read answers, and `send` if too many are
        outstanding."""
        return self._frame.is_done

    @property
    def error(self) -> StatewardError | None:
        """The error that refused the version; None = none is known."""
        return self._frame.error

    @property
    def checkpoint(self) -> Checkpoint | None:
        """The saved version; None = not known yet."""
        return self._frame.checkpoint
