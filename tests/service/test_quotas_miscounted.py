"""The danger: what a namespace takes is counted wrong, so that its limit holds too early, too late or never."""

from __future__ import annotations

import itertools
import re
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.daemon.store import opened, save, settle, write
from tests.messages import to_write

from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest, PruneThreadRequest
from stateward_sidecar.service.admission.limits import parse_limits, parse_namespaces
from stateward_sidecar.store.clean import tally
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.usage import NamespaceLimit, Usage, fits

KEYS = st.sampled_from(["calls", "streams", "saves_per_second", "name", "bytes", "threads", "x"])
EVERY = (NamespaceLimit("*", bytes=1 << 50, threads=1 << 30),)


def really(store: Store) -> dict[str, tuple[int, int]]:
    """Bytes and threads of each namespace, by their heads."""
    found: dict[str, tuple[int, int]] = {}
    with store.context.engine.read() as txn:
        for number in range(store.context.next_thread):
            thread = store.threads.stored_head(txn, number)
            if thread is not None:
                size, count = found.get(thread.identity.namespace, (0, 0))
                found[thread.identity.namespace] = size + thread.head.stored_bytes, count + 1
    return found


def counted(store: Store) -> dict[str, tuple[int, int]]:
    """The same, as the limits see it."""
    assert store.context.usage.is_counted
    return {name: (taken.bytes, taken.threads) for name, taken in store.context.usage._taken.items()}


def delete(store: Store, thread: str, namespace: str) -> None:
    request = to_write(DeleteThreadRequest, namespace=namespace, thread=thread)
    write(store, store.deleter.delete(request), frees_space=True)


Step = tuple[str, str, str]
steps = st.lists(
    st.tuples(
        st.sampled_from(["save", "save", "save", "large", "delete", "prune", "fork"]), st.sampled_from("abc"),
        st.sampled_from(["one", "two"]),
    ),
    max_size=25,
)  # fmt: skip


@settings(max_examples=30, deadline=None)
@given(before=steps, after=steps)
def test_the_sums_are_those_of_the_heads(
    tmp_path_factory: pytest.TempPathFactory, before: list[Step], after: list[Step]
) -> None:
    """Whatever was done before the count and after it, and after a restart."""
    directory = tmp_path_factory.mktemp("sums")
    with opened(directory) as store:
        do(store, before)
        store.limit_namespaces(EVERY)
        do(store, after)
        settle(store)
        assert counted(store) == really(store)
    with opened(directory) as store:
        store.limit_namespaces(EVERY)
        settle(store)
        assert counted(store) == really(store)


numbers = itertools.count()


def do(store: Store, steps: list[Step]) -> None:
    for what, name, namespace in steps:
        with store.context.engine.read() as txn:
            thread = store.threads.find(txn, namespace, name)
        number = next(numbers)
        if what in ("save", "large"):
            save(store, f"{number} " + "x" * (9 if what == "save" else 40_000), name, namespace=namespace)
        elif thread is None:
            continue
        elif what == "delete":
            delete(store, name, namespace)
        elif what == "prune":
            request = to_write(PruneThreadRequest, namespace=namespace, thread=name, request_id=f"r{number}")
            request.keep_latest_per_branch = 1
            store.pruner.prune(request)
        else:
            request = to_write(ForkThreadRequest, namespace=namespace, thread=name, request_id=f"r{number}")
            request.new_thread, request.all_versions = f"{name}{number}", True
            store.forker.fork(request)


def test_a_count_beside_writes_counts_each_thread_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads are made, changed and deleted while they are counted, a few in each transaction."""
    monkeypatch.setattr(tally, "NUMBERS", 2)
    with opened(tmp_path) as store:
        for number in range(30):
            save(store, "x", f"t{number}")
        is_over = threading.Event()

        def disturb() -> None:
            number = 0
            while not is_over.is_set():
                number += 1
                save(store, f"y{number}", f"t{number % 30}")
                save(store, f"z{number}", f"new{number}")
                delete(store, f"new{number - 3}", "default") if number > 3 else None
                delete(store, f"t{(number * 7) % 30}", "default")

        other = threading.Thread(target=disturb)
        other.start()
        try:
            for _ in range(20):
                store.limit_namespaces(EVERY)
                assert store.counting is not None
                store.counting.result(30)
                assert store.context.usage.is_counted
                store.limit_namespaces(())
            store.limit_namespaces(EVERY)
            store.counting.result(30)
        finally:
            is_over.set()
            other.join()
        settle(store)
        assert counted(store) == really(store)


def test_a_commit_between_look_and_word_is_counted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save is about to be committed when the count has begun its transaction, and has not said so yet."""
    with opened(tmp_path) as store:
        save(store, "x")
        usage, others = store.context.usage, list[threading.Thread]()
        count_to = usage.count_to

        def say(count: int, number: int) -> bool:
            others.append(threading.Thread(target=save, args=(store, "y" * len(others), f"new{len(others)}")))
            others[-1].start()
            others[-1].join(0.3)
            return count_to(count, number)

        monkeypatch.setattr(Usage, "count_to", lambda _, count, number: say(count, number))
        store.limit_namespaces(EVERY)
        settle(store)
        for other in others:
            other.join()
        settle(store)
        assert counted(store) == really(store)


@given(pattern=st.text("ab*", min_size=1, max_size=8), name=st.text("ab", max_size=8))
def test_a_star_is_any_text(pattern: str, name: str) -> None:
    """A pattern matches as a regular expression would."""
    wanted = re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), name) is not None
    assert fits(pattern, name) == wanted


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9) | st.sampled_from(["1KiB", "9 GiB"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
)


@given(told=VALUES)
def test_whatever_the_file_says_is_a_limit_or_an_error(told: object) -> None:
    """Limits are positive and bounded, or the error says what is wrong."""
    with suppress(ValueError):
        found = parse_limits(told)
        assert all(0 <= each <= 1_000_000 for each in (found.calls, found.streams, found.saves_per_second))
    with suppress(ValueError):
        for limit in parse_namespaces(told):
            assert limit.pattern
            assert 0 < max(limit.bytes, limit.threads) <= 1 << 60


def test_the_first_pattern_counts() -> None:
    """Of several that match; and a namespace that none matches has no limit."""
    usage = Usage()
    assert usage.limit([NamespaceLimit("team-a", threads=1), NamespaceLimit("team-*", threads=2)])
    found = [usage.limit_of(name) for name in ("team-a", "team-b", "other")]
    assert [limit.threads if limit is not None else None for limit in found] == [1, 2, None]
    assert not usage.limit([NamespaceLimit("*", threads=3)])
    limit = usage.limit_of("other")
    assert limit is not None
    assert limit.threads == 3


def test_a_thread_that_is_deleted_while_it_is_counted_is_no_less(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its key goes with it, so that the count could not read what it sees any more."""
    with opened(tmp_path) as store:
        save(store, "x")
        others, count_to = list[threading.Thread](), Usage.count_to

        def count_and_delete(usage: Usage, count: int, number: int) -> bool:
            is_on = count_to(usage, count, number)
            if not others:
                others.append(threading.Thread(target=delete, args=(store, "t", "default")))
                others[0].start()
                others[0].join(0.3)
            return is_on

        monkeypatch.setattr(Usage, "count_to", count_and_delete)
        store.limit_namespaces(EVERY)
        settle(store)
        others[0].join()
        settle(store)
        assert counted(store) == really(store) == {}
