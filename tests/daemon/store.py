"""A store in the test's own process, without a service: for what must happen between two of its writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import lmdb
from tests.daemon.wire import appends
from tests.messages import to_write

from stateward.v1.admin_service_pb2 import VerifyFinding, VerifyRequest
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse, SaveRequest, SaveResponse
from stateward.v1.diff_pb2 import Diff
from stateward_sidecar.clock import Clock
from stateward_sidecar.codec.edits import Named
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.storage.writer import Writer
from stateward_sidecar.store.store import BACKGROUND_WORKERS, Store, StoreOptions
from stateward_sidecar.store.thread.context import Limits
from stateward_sidecar.store.thread.thread import Thread
from stateward_sidecar.store.versions.save import SaveWrite

if TYPE_CHECKING:  # `make bench` runs without it
    import pytest

WAIT_S = 10.0
KEY = b"k" * 32


def _fail(error: BaseException) -> None:
    raise error


def apply_together(writer: Writer, writes: list[Write]) -> None:
    """Runs writes as one batch on this thread, once the writer is free; their commit is its own."""
    free = threading.Event()
    for write in writes:
        write._done = threading.Event()
    while not writer.apply(writes):
        assert writer.call_when_free(free.set)
        assert free.wait(WAIT_S)
        free.clear()


def make_store(
    directory: Path, clock: Clock | None = None, *, map_bytes: int = 1 << 30, root: bytes = b"", key: bytes = KEY
) -> Store:
    """Opens a directory; its writer has not started yet."""
    options = StoreOptions(directory, key, map_bytes, 64 << 20, Limits(), root)
    return Store(options, lambda writes: None, _fail, clock)


@contextmanager
def opened(directory: Path, clock: Clock | None = None, *, settles: bool = True, **how: Any) -> Iterator[Store]:
    """A running store, whose background work is over when it was closed, unless it is said not to settle.

    ``how``: as of ``make_store``.
    """
    store = make_store(directory, clock, **how)
    store.start()
    try:
        yield store
    finally:
        if settles:
            settle(store)
        store.close()


@contextmanager
def between(store: Store, monkeypatch: pytest.MonkeyPatch, act: Callable[[], None]) -> Iterator[None]:
    """Does something whenever a read transaction of this thread has just begun."""
    engine, me, is_acting = store.context.engine, threading.get_ident(), False
    begin = engine.read

    @contextmanager
    def read() -> Iterator[lmdb.Transaction]:
        nonlocal is_acting
        with begin() as txn:
            if threading.get_ident() == me and not is_acting:
                is_acting = True
                act()
                is_acting = False
            yield txn

    with monkeypatch.context() as patch:
        patch.setattr(engine, "read", read)
        yield


def rest(store: Store) -> None:
    """Waits until every thread of the background has nothing else to do."""
    meeting = threading.Barrier(BACKGROUND_WORKERS)
    list(store.background.map(lambda _: meeting.wait(30), range(BACKGROUND_WORKERS)))


def settle(store: Store) -> None:
    """Waits for what runs in the background, and for the writes that it leaves."""
    rest(store)
    write(store, lambda txn, batch: None, background=True)


def write(store: Store, run: Callable[..., Any], **fields: Any) -> Any:
    """One write, committed when this returns."""
    return store.context.writer.submit(Write(run=run, **fields), wait=True).wait()


def save(store: Store, text: str, thread: str = "t", diff: Diff | None = None, **fields: Any) -> SaveResponse:
    """One save, as the service makes it; no snapshot follows."""
    given = {"namespace": "default", "thread": thread, "diff": diff or appends(text), "request_id": text, **fields}
    return save_request(store, to_write(SaveRequest, **given))


def save_request(store: Store, request: SaveRequest, *named: Named) -> SaveResponse:
    """One save of a request; ``named``: the blobs that it names."""
    answer: SaveResponse = write(store, prepared(store, request, *named).run)
    return answer


def prepared(store: Store, request: SaveRequest, *named: Named) -> SaveWrite:
    """A save that was made ready and is not written yet."""
    made = SaveWrite(store.context, store.threads, request, named)
    with store.context.engine.read() as txn:
        made.prepare(txn, store.threads.find(txn, request.namespace, request.thread))
    return made


def save_many(store: Store, requests: Iterable[SaveRequest]) -> list[SaveResponse]:
    """Many saves in few commits, each made from the one before it."""
    writes = []
    for request in requests:
        request.namespace, request.thread = "default", request.thread or "t"
        write = Write(run=SaveWrite(store.context, store.threads, request).run)
        writes.append(store.context.writer.submit(write, wait=True))
    return [write.wait() for write in writes]


def get(store: Store, name: str = "t") -> Thread:
    """A thread. Raises ThreadNotFound."""
    with store.context.engine.read() as txn:
        return store.threads.get(txn, "default", name)


def hydrate(store: Store, name: str = "t", version: int = 0) -> HydrateResponse:
    """A state, as it is read."""
    request = HydrateRequest(namespace="default", thread=name, max_bytes=64 << 20)
    if version:
        request.version.version = version
    return HydrateResponse.FromString(store.read(store.reader.hydrate, request))


def findings(store: Store) -> list[VerifyFinding]:
    """What Verify finds in the whole store."""
    return [each.finding for each in store.verifier.verify(VerifyRequest()) if each.HasField("finding")]
