"""SignalService."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from functools import partial

import grpc.aio

from stateward.storage.v1.head_pb2 import SignalRow
from stateward.v1.signal_service_pb2 import (
    ListSignalsRequest,
    ListSignalsResponse,
    SendSignalRequest,
    SendSignalResponse,
)
from stateward_sidecar.service.calls.calls import Calls
from stateward_sidecar.service.checks import check, checkparts
from stateward_sidecar.store.items.signals import acknowledged_by, list_signals
from stateward_sidecar.store.journal.finding import resolve
from stateward_sidecar.store.thread.paging import bare, page_bytes
from stateward_sidecar.store.thread.thread import MAIN

# Approximate space of an entry and its row, with the pages that they touch.
ENTRY_BYTES = 16384

_SEQUENCE = struct.Struct(">Q")


class SignalService:
    """Messages to threads."""

    def __init__(self, calls: Calls) -> None:
        self._calls = calls
        self._store = calls.store

    async def send_signal(self, request: SendSignalRequest, context: grpc.aio.ServicerContext) -> SendSignalResponse:
        check.check_write(request)
        checkparts.check_signal(request)
        check.check_expected_sequence(request)

        size = ENTRY_BYTES + request.ByteSize()
        write = partial(self._calls.write, self._store.signals.send(request), context, size_bytes=size)
        return await self._calls.ownership.write_one(request, write, context)

    async def list_signals(self, request: ListSignalsRequest, context: grpc.aio.ServicerContext) -> ListSignalsResponse:
        check.check_place(request)
        if request.HasField("acknowledged_by"):
            check.check_ref(request.acknowledged_by, "acknowledged_by")
        request.page_size = check.check_page(request.page_size)
        tokens = self._store.context.tokens

        def read() -> ListSignalsResponse:
            binding = bare(request, "page_size")
            after = _SEQUENCE.unpack(tokens.unpack(binding, request.page_token))[0] if request.page_token else 0
            with self._store.context.engine.read() as txn:
                thread = self._store.threads.get(txn, request.namespace, request.thread)
                found: Mapping[int, SignalRow] = thread.signals
                if request.HasField("acknowledged_by"):
                    version = resolve(txn, thread, request.acknowledged_by, MAIN, "acknowledged_by")
                    found = acknowledged_by(txn, thread, version)
            shown, has_more = list_signals(found, after, page_bytes(), request.page_size or check.PAGE_SIZE_MAX)
            token = tokens.pack(binding, _SEQUENCE.pack(shown[-1].sequence)) if has_more else ""
            return ListSignalsResponse(signals=shown, next_page_token=token)

        return await self._calls.ownership.read(request.namespace, request.thread, lambda: self._calls.read(read))
