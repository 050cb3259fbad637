"""The danger: an item of LangGraph's store is found under another key or namespace, in another order, or not at all."""

from __future__ import annotations

import asyncio
import datetime as dt
import itertools
import json
import math
import random
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypedDict

import pytest

from stateward import Client
from stateward._operations import records
from stateward.errors import InvalidField, ServerUnavailable
from stateward.testing import Daemon, run_daemon

pytest.importorskip("langgraph.store.base", reason="the extra langgraph is not installed")
from langgraph.graph import END, START, StateGraph
from langgraph.store.base import (
    BaseStore,
    GetOp,
    InvalidNamespaceError,
    Item,
    ListNamespacesOp,
    MatchCondition,
    Op,
    PutOp,
    SearchOp,
)
from langgraph.store.memory import InMemoryStore

from stateward.langgraph import StatewardStore
from stateward.langgraph._items import FIELDS_MAX

numbers = itertools.count()
LABELS = ["users", "user", "42", "a b", "é", "%", "v/", "x:y"]
KEYS = ["a", "a.b", "..", "%2E", "users.42", "/", "ключ", "\n"]


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("store") / "data") as daemon:
        yield daemon


@pytest.fixture
def store(daemon: Daemon) -> Iterator[StatewardStore]:
    with StatewardStore(daemon.target, scope=f"store-{next(numbers)}") as store:
        yield store


def plain(result: Any) -> Any:
    """What an operation answered, without times and without an order that LangGraph does not promise."""
    if isinstance(result, Item):
        return result.namespace, result.key, result.value
    if isinstance(result, list):
        return sorted(map(plain, result), key=repr)
    return result


class InMemory(InMemoryStore):
    """LangGraph's own store; it keeps namespaces that nothing is in, also those that were only looked into."""

    def _handle_list_namespaces(self, op: ListNamespacesOp) -> list[tuple[str, ...]]:
        for namespace, items in list(self._data.items()):
            if not items:
                del self._data[namespace]
        return super()._handle_list_namespaces(op)


class Random:
    """Random operations on few namespaces and keys, so that they meet."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def namespace(self, least: int = 1) -> tuple[str, ...]:
        return tuple(self.chance.choices(LABELS[:4], k=self.chance.randint(least, 3)))

    def value(self) -> dict[str, Any]:
        chance = self.chance
        made: dict[str, Any] = {
            "kind": chance.choice(["taste", "fact", "x" * 400]), "score": chance.choice([1, 2, 2.5, 1 << 70]),
            "nested": {"deep": chance.choice(["yes", "no"])}, "tags": chance.choice([[], ["a"], ["a", "b"]]),
        }  # fmt: skip
        if chance.random() < 0.2:
            made |= {f"field {number}": number for number in range(FIELDS_MAX)}
        return made

    def filter(self) -> dict[str, Any] | None:
        return self.chance.choice(
            [
                None, {"kind": "taste"}, {"kind": "x" * 400}, {"kind": {"$ne": "fact"}}, {"score": {"$gt": 1.5}},
                {"score": {"$lte": 2}, "kind": "fact"}, {"score": 1 << 70}, {"nested": {"deep": "yes"}},
                {"tags": ["a", "b"]}, {"missing": "x"}, {"field 1": 1}, {"score": {"$gte": 1, "$lt": 2.5}},
            ]
        )  # fmt: skip

    def condition(self) -> MatchCondition:
        path = tuple(self.chance.choices(["*", *LABELS[:4]], k=self.chance.randint(1, 2)))
        return MatchCondition(self.chance.choice(["prefix", "suffix"]), path)

    def read(self) -> Op:
        chance = self.chance
        kind = chance.random()
        if kind < 0.4:
            return GetOp(self.namespace(), chance.choice(KEYS))
        if kind < 0.8:
            return SearchOp(self.namespace(0), self.filter(), 1000, 0)
        conditions = tuple(self.condition() for _ in range(chance.randint(0, 2))) or None
        return ListNamespacesOp(conditions, chance.choice([None, None, 1, 2]), 100, chance.choice([0, 1]))

    def write(self) -> Op:
        value = None if self.chance.random() < 0.25 else self.value()
        return PutOp(self.namespace(), self.chance.choice(KEYS), value)


@pytest.mark.parametrize("seed", range(4))
async def test_it_answers_as_the_store_in_memory(store: StatewardStore, seed: int) -> None:
    """Batches of reads and writes, by both kinds of methods, have the same results."""
    made, other = Random(seed), InMemory()
    for step in range(60):
        ops: list[Op] = [made.write() if made.chance.random() < 0.5 else made.read() for _ in range(5)]
        found = await store.abatch(ops) if step % 2 else store.batch(ops)
        wanted = other.batch(ops)
        assert list(map(plain, found)) == list(map(plain, wanted)), ops


@pytest.mark.parametrize("label", LABELS)
def test_no_label_and_no_key_means_another(store: StatewardStore, label: str) -> None:
    """What is put comes back from its own namespace, under its own key, and from nowhere else."""
    for key in KEYS:
        store.put((label, "in"), key, {"x": 1})
        item = store.get((label, "in"), key)
        assert item is not None
        assert (item.namespace, item.key, item.value) == ((label, "in"), key, {"x": 1})
        assert [found.key for found in store.search((label,))] == [key]
        assert store.search((label, "i")) == []
        assert store.list_namespaces() == [(label, "in")]
        assert store.get((label,), key) is None
        store.delete((label, "in"), key)
        assert store.list_namespaces() == []


def test_search_has_the_last_written_first_and_pages(store: StatewardStore) -> None:
    """Limit and offset count matching items, with a filter and without."""
    for number in range(30):
        store.put(("a",), str(number), {"even": number % 2 == 0, "number": number})
    assert [item.key for item in store.search(("a",), limit=3, offset=2)] == ["27", "26", "25"]
    found = store.search(("a",), filter={"even": True}, limit=3, offset=2)
    assert [item.key for item in found] == ["24", "22", "20"]
    assert len(store.search(("a",), limit=1000)) == 30


def test_bad_operations_are_refused_before_anything_is_written(store: StatewardStore) -> None:
    """A batch with one wrong operation writes nothing, and the error names what is wrong."""
    good = PutOp(("a",), "k", {"x": 1})
    wrong: list[tuple[Op | Any, type[Exception], str]] = [
        (PutOp(("a.b",), "k", {"x": 1}), InvalidNamespaceError, "a.b"),
        (SearchOp(("a",), {"x": {"$like": "y"}}), ValueError, "like"),
        (SearchOp(("a",), None, -1), ValueError, "limit"),
        (SearchOp(("a",), [("x", 1)]), TypeError, "filter"),
        (SearchOp("users"), InvalidNamespaceError, "users"),
        (GetOp("users", "k"), InvalidNamespaceError, "users"),
        (GetOp(("a",), "\ud800"), ValueError, "UTF-8"),
        (ListNamespacesOp(None, None, -1), ValueError, "limit"),
        (ListNamespacesOp(None, None, 1, -1), ValueError, "offset"),
        (ListNamespacesOp(None, "2"), TypeError, "max_depth"),
        (ListNamespacesOp((MatchCondition("infix", ("a",)),)), ValueError, "infix"),
        (PutOp(("a",), "text", "x"), TypeError, "str: key 'text'"),
        *((PutOp(("a",), "k", {}, None, t), ValueError, "minutes") for t in (0, -1, 1e20, math.inf, math.nan)),
        (PutOp(("a",), "k", {}, None, "5"), TypeError, "ttl"),
        (PutOp(("a",), "big", {"x": "y" * 2_000_000}), InvalidField, "value"),
        (PutOp(("a", "b"), "odd", {"x": object()}), TypeError, r"^a\.b\['odd'\]\.x: "),
        ("get", TypeError, "str"),
    ]
    for op, kind, text in wrong:
        with pytest.raises(kind, match=text):
            store.batch([good, op])
    assert store.get(("a",), "k") is None


def test_a_batch_larger_than_a_message_is_written(store: StatewardStore) -> None:
    """A batch takes as many calls as it needs; if its last value is wrong, no call is made."""
    large: list[Op] = [PutOp(("large",), str(number), {"x": "y" * 900_000}) for number in range(80)]
    store.batch(large)
    assert len(store.search(("large",), limit=100)) == len(large)
    many: list[Op] = [PutOp(("many",), str(number), {"x": number}) for number in range(501)]
    with pytest.raises(TypeError, match="set"):
        store.batch([*many, PutOp(("many",), "odd", {"x": {1}})])
    assert store.search(("many",)) == []
    store.batch(many)
    assert len(store.search(("many",), limit=600)) == len(many)
    assert store.search(("many",), offset=2**40) == []


def test_wrong_settings_are_refused_at_once() -> None:
    """A store is not made with an index or a TTL that its first put would fail on."""
    wrong: list[tuple[dict[str, Any], type[Exception]]] = [
        ({"index": {"dims": 2}}, TypeError),
        ({"index": {"embed": embed}}, TypeError),
        ({"index": {"embed": embed, "dims": "2"}}, ValueError),
        ({"ttl": 60}, TypeError),
        ({"ttl": {"default_ttl": "x"}}, TypeError),
        ({"ttl": {"default_ttl": 0}}, ValueError),
    ]
    for settings, kind in wrong:
        with pytest.raises(kind, match=r"index|ttl"):
            StatewardStore(**settings)


def test_an_expired_item_is_gone_and_a_read_one_stays(daemon: Daemon) -> None:
    """A TTL counts from the last read that refreshes; expired items are in no answer."""
    with StatewardStore(daemon.target, scope="expiring", ttl={"default_ttl": 5 / 60}) as store:
        for key in ("left", "read", "searched", "kept"):
            store.put(("a",), key, {"x": key}, ttl=None) if key == "kept" else store.put(("a",), key, {"x": key})
        end = time.monotonic() + 6.5
        while time.monotonic() < end:
            assert store.get(("a",), "read") is not None
            assert store.search(("a",), filter={"x": "searched"})
            store.search(("a",), refresh_ttl=False)
            store.get(("a",), "left", refresh_ttl=False)
            time.sleep(0.2)  # a real time to live; nothing else here can make a record expire
        assert store.get(("a",), "left") is None
        assert {item.key for item in store.search(("a",))} == {"read", "searched", "kept"}


def embed(texts: Sequence[str]) -> list[list[float]]:
    """Counts letters."""
    return [[float(text.count(letter)) for letter in "abc"] for text in texts]


async def test_the_most_similar_come_first(daemon: Daemon) -> None:
    """A query compares vectors that the given index makes; items without vectors come last, and filters hold."""
    index: Any = {"dims": 3, "embed": embed, "fields": ["text", "more[*]"]}
    with StatewardStore(daemon.target, scope="similar", index=index) as store:
        await store.aput(("d",), "a", {"text": "aaa", "kind": 1})
        await store.aput(("d",), "b", {"text": "bbb", "more": ["aab"], "kind": 1})
        store.put(("d", "e"), "c", {"text": "ccc", "kind": 2})
        store.put(("d",), "none", {"text": "aaa", "kind": 1}, index=False)
        found = store.search(("d",), query="aaaaa")
        assert [item.key for item in found] == ["a", "b", "c", "none"]
        assert found[0].score == pytest.approx(1.0)
        assert found[1].score == pytest.approx(2 / 5**0.5)
        assert found[3].score is None
        assert [item.key for item in await store.asearch(("d",), query="ccc", filter={"kind": 1}, limit=1)] != ["c"]
        store.put(("d",), "a", {"text": "ccc", "kind": 1})
        assert store.search(("d",), query="aaaaa")[0].key == "b"
        store.delete(("d",), "b")
        assert [item.key for item in store.search(("d",), query="ccc")][:2] in (["a", "c"], ["c", "a"])
    with Client(daemon.target) as client:
        assert len(list(client.records("similar").list("v/"))) == 2


def test_a_wrong_embedding_writes_nothing(daemon: Daemon) -> None:
    """An embedding of another size is refused, and the item is not written."""
    index: Any = {"dims": 4, "embed": embed}
    with StatewardStore(daemon.target, scope="wrong", index=index) as store:
        with pytest.raises(ValueError, match="4 dims"):
            store.put(("d",), "a", {"text": "aaa"})
        assert store.get(("d",), "a") is None


def test_what_was_put_survives_the_daemon(tmp_path: Path) -> None:
    """Everything that was answered is there after kill -9, with its times."""
    with run_daemon(tmp_path / "data") as daemon, StatewardStore(daemon.target) as store:
        store.batch([PutOp(("a",), str(number), {"n": number}) for number in range(20)])
        before = store.search(("a",), limit=100)
        daemon.kill()
        daemon.start()
        assert store.search(("a",), limit=100) == before


async def test_many_at_once_from_threads_and_loops(store: StatewardStore) -> None:
    """Threads and tasks that write and read at once see their own writes."""

    def work(number: int) -> None:
        for step in range(10):
            store.put(("t", str(number)), "k", {"step": step})
            item = store.get(("t", str(number)), "k")
            assert item is not None
            assert item.value == {"step": step}

    async def awork(number: int) -> None:
        for step in range(10):
            await store.aput(("a", str(number)), "k", {"step": step})
            item = await store.aget(("a", str(number)), "k")
            assert item is not None
            assert item.value == {"step": step}

    await asyncio.gather(*(asyncio.to_thread(work, number) for number in range(4)), *map(awork, range(4)))
    assert len(await store.alist_namespaces()) == 8


def test_a_graph_remembers(store: StatewardStore) -> None:
    """A graph that is compiled with the store writes to it and searches it from its nodes."""

    class Notes(TypedDict):
        text: str
        seen: int

    def remember(state: Notes, *, store: BaseStore) -> dict[str, Any]:
        store.put(("notes",), state["text"], {"text": state["text"]})
        return {"seen": len(store.search(("notes",)))}

    builder = StateGraph(Notes)
    builder.add_node("remember", remember)
    builder.add_edge(START, "remember")
    builder.add_edge("remember", END)
    graph = builder.compile(store=store)
    assert [graph.invoke({"text": text, "seen": 0})["seen"] for text in ("a", "b", "a")] == [1, 2, 2]


def test_keys_and_namespaces_of_any_text(daemon: Daemon) -> None:
    """Also long ones and control characters: each is another item, and comes back as it was given."""
    names = ("", "a.b", "a%2Eb", "%#a", "a\x00b", "\n", "\x85", "é" * 700, "x" * 3000, "x" * 3000 + "y", "x" * 5000)
    memory = InMemoryStore()
    with StatewardStore(daemon.target, scope="any-names") as store:
        for number, name in enumerate(names):
            labels = ("n", name.replace(".", "-").replace("\x00", "\x01")[:300] or "empty")
            for each in (store, memory):
                each.put(labels, name, {"number": number, "…key": "a field"})
        for each in (store, memory):
            each.delete(("n", "%#a"), "%#a")
        found, expected = store.search(("n",), limit=50), memory.search(("n",), limit=50)
        assert sorted((each.namespace, each.key, each.value["number"]) for each in found) == sorted(
            (each.namespace, each.key, each.value["number"]) for each in expected
        )
        assert set(store.list_namespaces()) == {each.namespace for each in expected}
        for each in expected:
            item = store.get(each.namespace, each.key)
            assert item is not None
            assert item.value == each.value
        with pytest.raises(ValueError, match="a key may have 5,000 bytes, not 6,000"):
            store.put(("n",), "z" * 6000, {})
        with pytest.raises(ValueError, match="a namespace with this key may have"):
            store.put(("n" * 1000,), "z" * 100, {})


def test_a_refresh_that_fails_leaves_what_was_read(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The daemon goes away between the read and the refresh: `get` and `search` return what they read."""
    with StatewardStore(daemon.target, scope="refresh", ttl={"default_ttl": 60}) as store:
        store.put(("users",), "ana", {"a": 1})
        call = records.get

        def get(ref: Any, keys: Any, refresh: bool, values: bool) -> Any:
            if refresh:
                raise ServerUnavailable("no daemon answers")
            return (yield from call(ref, keys, refresh, values))

        monkeypatch.setattr(records, "get", get)
        found = store.get(("users",), "ana")
        assert found is not None
        assert found.value == {"a": 1}
        assert [each.value for each in store.search(("users",))] == [{"a": 1}]


@pytest.mark.parametrize("levels", [90, 400, 900])
def test_deep_values_are_found(store: StatewardStore, levels: int) -> None:
    """Also with a time, which is no JSON, and by a filter as deep as they are."""
    value: Any = dt.date(2026, 5, 1)
    for level in range(levels):
        value = [value] if level % 2 else {"k": value}
    store.put(("a",), "deep", {"x": value, "n": 1})
    (found,) = store.search(("a",), filter={"n": 1})
    assert json.dumps(found.value) == f'{{"x": {json.dumps(value, default=str)}, "n": 1}}'
    for wanted, count in ((found.value["x"], 1), ({"$ne": found.value["x"]}, 0), ([found.value["x"]], 0)):
        assert len(store.search(("a",), filter={"x": wanted})) == count


def test_a_filter_without_an_end_finds_nothing(store: StatewardStore) -> None:
    """It is compared no deeper than what is stored."""
    wanted: Any = {"k": [1]}
    wanted["k"].append(wanted)
    store.put(("a",), "x", {"x": {"k": [1, {"k": [1, {}]}]}})
    assert store.search(("a",), filter={"x": wanted}) == []
