"""Making a save ready and queueing it, for calls and for streams."""

from __future__ import annotations

from collections.abc import Sequence

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward_sidecar.codec.edits import Named
from stateward_sidecar.service import check
from stateward_sidecar.service.calls import Calls
from stateward_sidecar.service.method import ASIDE_BYTES, message_bytes
from stateward_sidecar.store.save import SaveWrite

# A smaller save is prepared on the event loop: handing it to a worker would cost more.
INLINE_BYTES_MAX = 64 << 10


class Saving:
    """What every save passes through before and after the writer."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._store = calls.store

    async def check(self, request: SaveRequest) -> Sequence[Named]:
        """Checks a request; returns the blobs it names. Raises InvalidField."""
        if message_bytes.get() > INLINE_BYTES_MAX:
            return await self._calls.read(check.check_save, request)
        namespace = request.namespace or check.DEFAULT_NAMESPACE
        return check.check_save(request, is_known=self._store.threads.cached(namespace, request.thread) is not None)

    def prepare_hot(self, request: SaveRequest, named: Sequence[Named]) -> SaveWrite | None:
        """The save, where memory holds what it takes and nothing is large; else None."""
        if not self._is_inline(request):
            return None
        known = self._store.threads.cached(request.namespace, request.thread)
        save = SaveWrite(self._store.context, self._store.threads, request, named)
        return save if known is not None and save.prepare_hot(known) else None

    async def prepare(self, request: SaveRequest, named: Sequence[Named]) -> SaveWrite:
        """The save, made ready as far as it can be outside the writer. Raises what it would raise, where it is sure."""
        save = self.prepare_hot(request, named)
        if save is None:
            is_large = message_bytes.get() > ASIDE_BYTES
            save = SaveWrite(self._store.context, self._store.threads, request, named, is_large=is_large)
            await self._calls.read(self._prepare_now, save)
        return save

    @staticmethod
    def _is_inline(request: SaveRequest) -> bool:
        """Small, alone or as a part of a message that is not very large."""
        size_bytes = message_bytes.get()
        return size_bytes <= INLINE_BYTES_MAX or (size_bytes <= ASIDE_BYTES and request.ByteSize() <= INLINE_BYTES_MAX)

    def _prepare_now(self, save: SaveWrite) -> None:
        with self._store.context.engine.read() as txn:
            save.prepare(txn, self._store.threads.find(txn, save.namespace, save.request.thread))

    def after(self, save: SaveWrite) -> None:
        """After the commit: perhaps it is time for a snapshot."""
        if save.draft is not None:
            self._store.snapshots.consider(save.draft.thread, save.branch)
