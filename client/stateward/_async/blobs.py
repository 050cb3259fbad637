"""`thread.blobs`: bytes that are too large for the state."""

from __future__ import annotations

from typing import Any

from stateward import values
from stateward._frames import ends_at_the_caller
from stateward._io.aio.session import AsyncSession, AsyncThreadBlobs
from stateward._operations import uploads
from stateward._operations.steps import ThreadRef
from stateward.blobs import Blob, Content
from stateward.options import ThreadOptions


@ends_at_the_caller
class AsyncBlobs:
    """The blobs of a thread."""

    def __init__(self, session: AsyncSession, ref: ThreadRef) -> None:
        self._session = session
        self._ref = ref

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._ref.thread!r})"

    async def write(self, source: Any, *, media_type: str = values.OCTETS) -> Blob:
        """Writes bytes that are too large for the state, and returns the Blob that names them.

        Put the Blob into a slot or a log. `source` is bytes, a path, a file opened for reading bytes, or an iterator of
        bytes. Creates the thread if it does not exist. The daemon keeps equal bytes once, and removes bytes that no
        saved version names after a day.
        """
        content, uid = Content.of(source), self._ref.held.uid
        return await self._session.run(uploads.write_blob(self._ref, content, media_type, ThreadOptions(), uid))

    async def read(self, blob: Blob | bytes, offset: int = 0, length: int | None = None) -> bytes:
        """Returns `length` bytes of a blob from `offset` on; None = up to its end. `blob` is a Blob or its SHA-256."""
        return await AsyncThreadBlobs(self._session, self._ref.thread).read(uploads.digest_of(blob), offset, length)
