"""The danger: what is being made takes more than its namespace may, or what it took is never given back."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.daemon.store import opened, save, settle, write
from tests.messages import to_write

from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin, ThreadPart
from stateward.v1.blob_service_pb2 import BlobBegin
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest
from stateward_sidecar.codec.blob import SEGMENT_BYTES
from stateward_sidecar.errors import InvalidField, QuotaExceeded, ThreadExists, ThreadNotFound
from stateward_sidecar.store.copies.hidden import Hidden
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.usage import ALL_NUMBERS, NamespaceLimit, Reserved, Usage

NAME = "default"


def limit(store: Store, size_bytes: int) -> None:
    store.limit_namespaces((NamespaceLimit("*", bytes=size_bytes),))
    if store.counting is not None:
        store.counting.result(30)


def used(store: Store) -> int:
    """The bytes that count for the limit."""
    return next(each.used for each in store.context.usage.of(NAME) if each.limit == "bytes")


def kept(store: Store) -> int:
    """The bytes of the threads, by their heads."""
    found = 0
    with store.context.engine.read() as txn:
        for number in range(store.context.next_thread):
            thread = store.threads.stored_head(txn, number)
            found += thread.head.stored_bytes if thread is not None else 0
    return found


def fork(store: Store, name: str, *, everything: bool = True, of: str = "t") -> Any:
    request = to_write(ForkThreadRequest, namespace=NAME, thread=of, request_id=f"fork {name}")
    request.new_thread, request.all_versions = name, everything
    return store.forker.fork(request)


def filled(store: Store, saves: int = 8, size: int = 100_000) -> int:
    """A thread of a few commits. Returns its bytes."""
    for number in range(saves):
        save(store, f"{number} " + os.urandom(size // 2).hex())
    settle(store)
    return kept(store)


class Held:
    """Copies that are complete, and have no name yet."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self._may_go = threading.Semaphore(0), threading.Event()
        reveal = Hidden.reveal

        def held(hidden: Hidden, *arguments: Any) -> Any:
            self.count.release()
            assert self._may_go.wait(60)
            return reveal(hidden, *arguments)

        monkeypatch.setattr(Hidden, "reveal", held)

    def wait(self, count: int) -> None:
        for _ in range(count):
            assert self.count.acquire(timeout=60)

    def let_go(self) -> None:
        self._may_go.set()


@contextmanager
def crowd(count: int) -> Iterator[Callable[..., Future[Any]]]:
    with ThreadPoolExecutor(count) as pool:
        yield pool.submit


@pytest.mark.parametrize("everything", [True, False], ids=["all versions", "one version"])
def test_copies_that_are_made_at_once_take_no_more_than_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, everything: bool
) -> None:
    """Those that fit are made, and the others are refused while they are made. Before a copy has its name, its bytes
    are gone for others."""
    with opened(tmp_path) as store:
        size = filled(store)
        if not everything:
            fork(store, "measured", everything=False)
            size, before = kept(store) - size, kept(store)
        else:
            before = size
        limit(store, before + 2 * size + size // 3)
        held = Held(monkeypatch)
        with crowd(6) as begin:
            made = [begin(fork, store, f"c{number}", everything=everything) for number in range(6)]
            try:
                held.wait(2)
                refused = [each for each in made if _error_of(each, {QuotaExceeded}, 4, made)]
                assert not held.count.acquire(blocking=False)
                assert used(store) >= before + 2 * size * 0.9
                with pytest.raises(QuotaExceeded) as error:
                    save(store, os.urandom(size // 2).hex())
                assert error.value.metadata["limit"] == "bytes"
            finally:
                held.let_go()
        assert len(refused) == 4
        assert used(store) == kept(store) <= before + 2 * size + size // 3
        assert not store.context.usage._reserved
        save(store, "small")


def _error_of(one: Future[Any], kinds: set[type[Exception]], count: int, every: list[Future[Any]]) -> bool:
    """Waits until so many have failed. Returns whether this one has."""
    for _ in range(600):
        failed = [each for each in every if each.done() and type(each.exception()) in kinds]
        if len(failed) >= count:
            return one in failed
        threading.Event().wait(0.05)
    raise AssertionError("they do not fail")


def test_a_copy_that_fails_gives_back_what_it_took(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Because its source is deleted, its name is taken, the limit is reached, or the disk fails."""
    with opened(tmp_path) as store:
        size = filled(store)
        limit(store, 10 * size)

        def before_the_end(act: Callable[[], Any]) -> None:
            reveal = Hidden.reveal

            def acted(hidden: Hidden, *arguments: Any) -> Any:
                monkeypatch.setattr(Hidden, "reveal", reveal)
                assert used(store) >= kept(store) + size // 2
                act()
                return reveal(hidden, *arguments)

            monkeypatch.setattr(Hidden, "reveal", acted)

        def fails(kind: type[BaseException]) -> None:
            with pytest.raises(kind):
                fork(store, "c")
            settle(store)
            assert used(store) == kept(store)
            assert not store.context.usage._reserved

        before_the_end(lambda: save(store, "x", "c"))
        fails(ThreadExists)
        write(store, store.deleter.delete(to_write(DeleteThreadRequest, namespace=NAME, thread="c")), frees_space=True)
        before_the_end(lambda: limit(store, size + 100))
        fails(QuotaExceeded)
        limit(store, 10 * size)

        def breaks() -> None:
            raise OSError

        before_the_end(breaks)
        fails(OSError)
        limit(store, 3 * size // 2)
        fails(QuotaExceeded)
        limit(store, 10 * size)
        effects = type(store.forker)._copy_effects

        def deleted(*arguments: Any) -> None:
            request = to_write(DeleteThreadRequest, namespace=NAME, thread="t")
            write(store, store.deleter.delete(request), frees_space=True)
            effects(*arguments)

        monkeypatch.setattr(type(store.forker), "_copy_effects", deleted)
        fails(ThreadNotFound)
        assert used(store) == 0


def parts_of(store: Store) -> list[ThreadPart]:
    request = ExportThreadRequest(namespace=NAME, thread="t")
    return [part for answer in store.exporter.open(request) for part in answer.parts]


def put_blob(store: Store, size: int, thread: str = "t") -> Any:
    """An upload whose bytes have come, and which is not committed."""
    with store.context.engine.read() as txn:
        found = store.threads.get(txn, NAME, thread)
    made = store.blobs.begin_write(found, BlobBegin(namespace=NAME, thread=thread))
    try:
        for _ in range(size // SEGMENT_BYTES):
            made.add(os.urandom(SEGMENT_BYTES))
    except BaseException:
        made.discard()
        raise
    return made


def test_an_import_counts_as_it_comes(tmp_path: Path) -> None:
    """Its versions, and also a blob of which a half has come. However it ends, its bytes are given back."""
    with opened(tmp_path) as store:
        filled(store, saves=3)
        blob = put_blob(store, 4 * SEGMENT_BYTES)
        blob.finish(b"")
        write(store, lambda txn, batch: blob.commit(store.threads, txn, batch))
        settle(store)
        parts, size = parts_of(store), kept(store)
        limit(store, 10 * size)
        half = next(number for number, part in enumerate(parts) if part.HasField("blob_data")) + len(
            [part for part in parts if part.HasField("blob_data")]
        ) // 2  # fmt: skip

        def begun() -> Any:
            return store.importer.begin(ImportBegin(namespace=NAME, thread="c"))

        for cut in (1, half, len(parts) - 1):
            made = begun()
            made.take(parts[:cut])
            assert used(store) > kept(store)
            if cut == half:
                assert used(store) >= kept(store) + SEGMENT_BYTES
            made.discard()
            assert used(store) == kept(store)
        made = begun()
        with pytest.raises(InvalidField):
            made.take([*parts[:half], parts[0]])
        made.discard()
        assert used(store) == kept(store)
        limit(store, size + 3 * SEGMENT_BYTES)
        made = begun()
        with pytest.raises(QuotaExceeded):
            made.take(parts)
        made.discard()
        assert used(store) == kept(store) == size
        limit(store, 3 * size)
        made = begun()
        made.take(parts)
        made.finish()
        settle(store)
        assert used(store) == kept(store) > 3 * size // 2
        assert not store.context.usage._reserved


def test_uploads_at_once_take_no_more_than_is_left(tmp_path: Path) -> None:
    """Each would fit alone. A blob that is written, known already or given up is given back; one that is committed
    counts once."""
    with opened(tmp_path) as store:
        save(store, "x")
        limit(store, kept(store) + 5 * SEGMENT_BYTES)
        before = kept(store)
        first = put_blob(store, 4 * SEGMENT_BYTES)
        assert used(store) >= before + 2 * SEGMENT_BYTES
        with pytest.raises(QuotaExceeded):
            put_blob(store, 4 * SEGMENT_BYTES)
        first.discard()
        with suppress(Exception):
            first.add(os.urandom(SEGMENT_BYTES))
        assert used(store) == before
        second = put_blob(store, 4 * SEGMENT_BYTES)
        second.finish(b"")
        write(store, lambda txn, batch: second.commit(store.threads, txn, batch))
        settle(store)
        assert used(store) == kept(store) >= before + 4 * SEGMENT_BYTES
        assert not store.context.usage._reserved


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), st.sampled_from(["take", "take", "expect", "end", "thread"]),
                          st.integers(0, 60)), max_size=40))  # fmt: skip
def test_what_is_reserved_is_the_sum_of_what_is_made(steps: list[tuple[int, str, int]]) -> None:
    """In any order of beginnings, growth, refusals and ends. Nothing goes beyond the limit, and nothing that fits is
    refused."""
    usage = Usage()
    usage.limit((NamespaceLimit("*", bytes=100),))
    usage.count_to(usage.count, ALL_NUMBERS)
    made = [Reserved(usage, NAME) for _ in range(4)]
    sizes, least, threads = [0] * 4, [0] * 4, 0
    for at, what, size in steps:
        others = threads + sum(max(pair) for pair in zip(sizes, least, strict=True)) - max(sizes[at], least[at])
        if what == "take":
            fits = others + max(size, 1) <= 100
            try:
                made[at].take(size)
                assert fits
                sizes[at] = size
            except QuotaExceeded:
                assert not fits
        elif what == "expect" and not sizes[at] and not least[at]:
            made[at].expect(size)
            if others + size <= 100:
                least[at] = size
        elif what == "end":
            made[at].end()
            made[at].take(size) if others + max(size, 1) <= 100 else None  # a late step of what was given up
            made[at], sizes[at], least[at] = Reserved(usage, NAME), 0, 0
        elif what == "thread":
            usage.note(1, NAME, size - threads, 0)
            threads = size
        total = threads + sum(max(pair) for pair in zip(sizes, least, strict=True))
        assert usage.of(NAME)[0].used == total
    for each in made:
        each.end()
        each.end()
    assert not usage._reserved
