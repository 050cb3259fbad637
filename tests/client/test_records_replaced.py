"""The danger: two agents that keep small values overwrite each other, or find values that are over."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest

from stateward import Check, Delete, Put, RecordConflict, ThreadNotFound


@pytest.fixture
def client(real_daemon: Any, open_client: Callable[..., Any], request: pytest.FixtureRequest) -> Any:
    """The fake server keeps no records."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    return open_client(real_daemon.target, namespace=f"ns{abs(hash(request.node.nodeid)) % 10**9}")


def test_a_record_is_compared_and_swapped(client: Any) -> None:
    """The loser gets the present revision, and nothing of its call is written."""
    users = client.records("store/users")
    assert users.get("ana") is None
    first = users.put("ana", {"likes": "pizza"}, expected=0)
    assert users.put("ana", {"likes": "pasta"}, expected=first) > first
    with pytest.raises(RecordConflict) as caught:
        users.write([Put("ben", 1), Check("ana", first)])
    record = users.get("ana")
    assert (caught.value.key, caught.value.current_revision) == ("ana", record.revision)
    assert caught.value.expected_revision == first
    assert record.value == {"likes": "pasta"}
    assert users.get("ben") is None
    written = users.write([Delete("ana", record.revision), Put("ben", b"bytes"), Delete("nobody")])
    assert (written.written, written.deleted) == (1, 1)
    assert not users.delete("ana")
    assert users.delete("ben")


def test_lists_select(client: Any) -> None:
    """By prefix and attributes, in order or the newest first; prefixes are counted, and deleted."""
    store = client.records("store/many")
    store.write([Put(f"a/{number:04}", number, attributes={"n": number, "odd": number % 2 == 1})
                 for number in range(700)])  # fmt: skip
    store.write([Put(f"b/{number}/x", "text") for number in range(900)])
    assert [each.value for each in store.list("a/", where={"odd": True})] == list(range(1, 700, 2))
    conditions = [("n", ">=", 690), ("odd", "!=", True)]
    assert [each.value for each in store.list(where=conditions, page_size=2)] == [690, 692, 694, 696, 698]
    newest = store.list(newest_first=True, values=False, page_size=5)
    record = next(newest)
    assert (record.key, record.value, record.value_bytes) == ("b/0/x", None, 6)
    assert {each.prefix: each.records for each in store.prefixes(max_depth=1)} == {"a/": 700, "b/": 900}
    assert len(store.get_many(f"a/{number:04}" for number in range(1500))) == 700
    assert store.delete_prefix("") == 1600
    assert list(store.list()) == []
    with pytest.raises(ThreadNotFound):
        client.records("store/none").delete_prefix("x")


def test_a_record_expires(client: Any) -> None:
    """A timedelta or seconds; the record says when, and a refresh that is not due changes nothing."""
    cache = client.thread("cache").records
    cache.put("k", 1, ttl=timedelta(minutes=5))
    record = cache.get("k", refresh=True)
    assert record.ttl == timedelta(minutes=5)
    assert timedelta(seconds=290) < record.expire_time - record.update_time <= timedelta(minutes=5)
    cache.put("k", 2)
    assert cache.get("k").ttl is None


def test_wrong_arguments_are_refused(client: Any) -> None:
    """With what is wrong, before anything is sent."""
    store = client.records("store/wrong")
    for call, message in (
        (lambda: store.put("k", 1, ttl=-1), "ttl"),
        (lambda: store.put("k", 1, attributes={"a": object()}), "attribute 'a'"),
        (lambda: list(store.list(where=[("a", "~", 1)])), "no operator"),
        (lambda: list(store.list(where=["a"])), "condition"),
        (lambda: store.get_many("keys"), "list of keys"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            call()
