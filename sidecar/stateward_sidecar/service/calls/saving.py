"""Checks and prepares saves, for calls and for streams."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward_sidecar.codec.edits import Named
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.calls.method import ASIDE_BYTES, message_bytes
from stateward_sidecar.service.checks import check
from stateward_sidecar.store.versions.save import SaveWrite

# Saves up to this size are prepared on the event loop: to hand them to a worker would cost more.
INLINE_BYTES_MAX = 64 << 10
# How long a save waits at most until entries before it have left memory, and how often it looks.
CROWDED_WAIT_S, CROWDED_LOOK_S = 2.0, 0.005


class Saving:
    """The steps of every save before and after the writer."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._store = calls.store

    async def check(self, request: SaveRequest) -> Sequence[Named]:
        """Checks a request. Returns the blobs that it names. Raises InvalidField."""
        if message_bytes.get() > INLINE_BYTES_MAX:
            return await self._calls.read(check.check_save, request)
        namespace = request.namespace or check.DEFAULT_NAMESPACE
        return check.check_save(request, is_known=self._store.threads.cached(namespace, request.thread) is not None)

    def prepare_hot(self, request: SaveRequest, named: Sequence[Named], ahead: int = 0) -> SaveWrite | None:
        """Returns the prepared save if it is small and everything that it needs is in memory; else None."""
        if not self._is_inline(request):
            return None
        known = self._store.threads.cached(request.namespace, request.thread)
        if known is None or known.is_crowded:
            return None
        save = SaveWrite(self._store.context, self._store.threads, request, named, ahead=ahead)
        return save if save.prepare_hot(known) else None

    def begin_late(self, request: SaveRequest, named: Sequence[Named]) -> SaveWrite | None:
        """Returns a small save that is prepared with its batch (``SaveWrite.prepare_late``), if everything that it
        needs is in memory; else None."""
        if message_bytes.get() > INLINE_BYTES_MAX:
            return None
        known = self._store.threads.cached(request.namespace, request.thread)
        if known is None or known.is_crowded:
            return None
        save = SaveWrite(self._store.context, self._store.threads, request, named)
        return save if save.is_hot(known) else None

    async def prepare(self, request: SaveRequest, named: Sequence[Named], ahead: int = 0) -> SaveWrite:
        """Returns the save, prepared as far as possible outside the writer. Raises errors that are certain already.

        ``ahead``: the number of saves of the same thread before it in its batch.
        """
        await self._wait_for_room(request)
        save = self.prepare_hot(request, named, ahead)
        if save is None:
            is_large = message_bytes.get() > ASIDE_BYTES
            store = self._store
            save = SaveWrite(store.context, store.threads, request, named, is_large=is_large, ahead=ahead)
            await self._calls.read(self._prepare_now, save)
        return save

    async def _wait_for_room(self, request: SaveRequest) -> None:
        """Waits for the segments of a log that grows faster than they are made."""
        left_s = CROWDED_WAIT_S
        while left_s > 0:
            known = self._store.threads.cached(request.namespace, request.thread)
            if known is None or not known.is_crowded:
                return
            await asyncio.sleep(CROWDED_LOOK_S)
            left_s -= CROWDED_LOOK_S

    @staticmethod
    def _is_inline(request: SaveRequest) -> bool:
        """Whether a save is small, on its own or as a part of a message that is not very large."""
        size_bytes = message_bytes.get()
        return size_bytes <= INLINE_BYTES_MAX or (size_bytes <= ASIDE_BYTES and request.ByteSize() <= INLINE_BYTES_MAX)

    def _prepare_now(self, save: SaveWrite) -> None:
        with self._store.context.engine.read() as txn:
            save.prepare(txn, self._store.threads.find(txn, save.namespace, save.request.thread))

    def after(self, save: SaveWrite) -> None:
        """Starts a snapshot if one is due. Called after the commit."""
        if save.draft is not None:
            self._store.snapshots.consider(save.draft.thread, save.branch, save.saved)
