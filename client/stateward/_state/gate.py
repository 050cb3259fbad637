"""What all parts of one state share."""

from __future__ import annotations

from stateward.blobs import StateBlobs


class Gate:
    """Refuses changes while a save is under way: they would change what the save has already read."""

    closed = False
    blobs: StateBlobs | None = None
    """How the blobs of the state's thread are read; None = the state has no thread yet."""

    def require_open(self) -> None:
        """Raises RuntimeError while a save is under way."""
        if self.closed:
            raise RuntimeError(
                "this state is being saved; until the save ends, only reads, appends and new slot values are allowed"
            )
