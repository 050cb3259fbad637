"""The operations of `StatewardStore`, as generators without I/O."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from langgraph.store.base import GetOp, ListNamespacesOp, Op, PutOp, Result, SearchItem, SearchOp

from stateward._keeping import kept
from stateward._operations import records
from stateward._operations.steps import Operation, ThreadRef
from stateward.errors import StatewardError
from stateward.langgraph import _checks as checks
from stateward.langgraph import _items as items
from stateward.options import ThreadOptions
from stateward.records import Delete, Put, Record, Where
from stateward.v1 import record_pb2

# A call writes at most 1,000 records, and an item may have two. The daemon takes 64 MiB by default.
ITEMS_A_CALL = 500
CALL_BYTES_MAX = 16 * 1024 * 1024
PAGE_MAX = 1000
# A scope has no more records, so this skips all of them.
SKIP_MAX = 100_000


@dataclass
class Batch:
    """The operations of a batch by kind, with their places in its answer. All reads come before the writes."""

    gets: dict[int, GetOp] = field(default_factory=dict)
    searches: dict[int, SearchOp] = field(default_factory=dict)
    lists: dict[int, ListNamespacesOp] = field(default_factory=dict)
    puts: dict[str, PutOp] = field(default_factory=dict)
    """By key of the record; of several puts of one item the last one counts."""
    size: int = 0

    @classmethod
    def of(cls, ops: Iterable[Op]) -> Batch:
        """Sorts operations. Raises InvalidNamespaceError, TypeError and ValueError before anything is sent."""
        made = cls()
        for place, op in enumerate(ops):
            made.size = place + 1
            if isinstance(op, GetOp):
                checks.check_key(op.namespace, op.key)
                made.gets[place] = op
            elif isinstance(op, SearchOp):
                checks.check_namespace(op.namespace_prefix)
                checks.check_filter(op.filter)
                checks.check_page(op.limit, op.offset)
                made.searches[place] = op
            elif isinstance(op, ListNamespacesOp):
                checks.check_page(op.limit, op.offset)
                checks.check_depth(op.max_depth)
                for condition in op.match_conditions or ():
                    checks.check_condition(condition)
                made.lists[place] = op
            elif isinstance(op, PutOp):
                checks.check_put(op)
                made.puts[items.key_of(op.namespace, op.key)] = op
            else:
                raise TypeError(f"unknown operation {type(op).__name__}")
        return made


@dataclass
class Vectors:
    """The embeddings of a batch."""

    of_items: dict[str, bytes] = field(default_factory=dict)
    """By key of the item's record."""
    of_queries: dict[str, bytes] = field(default_factory=dict)


def run(ref: ThreadRef, batch: Batch, vectors: Vectors, create: ThreadOptions | None) -> Operation[list[Result]]:
    """Runs a batch."""
    results: list[Result] = [None] * batch.size
    yield from _get_all(ref, batch.gets, results)
    for place, search in batch.searches.items():
        results[place] = yield from _search(ref, search, vectors.of_queries.get(search.query or ""))
    for place, listing in batch.lists.items():
        results[place] = yield from _list_namespaces(ref, listing)
    made = [_encode(key, op, vectors.of_items.get(key)) for key, op in batch.puts.items()]
    for writes in _calls(made):
        yield from records.write_encoded(ref, writes, None, create)
    return results


def _calls(made: Iterable[Sequence[record_pb2.RecordWrite]]) -> Iterator[list[record_pb2.RecordWrite]]:
    """Divides writes into calls; those of one item stay together."""
    writes, count, size = list[record_pb2.RecordWrite](), 0, 0
    for each in made:
        more = sum(write.ByteSize() for write in each)
        if writes and (count == ITEMS_A_CALL or size + more > CALL_BYTES_MAX):
            yield writes
            writes, count, size = [], 0, 0
        writes += each
        count, size = count + 1, size + more
    if writes:
        yield writes


def _encode(key: str, op: PutOp, vectors: bytes | None) -> list[record_pb2.RecordWrite]:
    beside = items.vectors_key(key)
    if op.value is None:
        return [Delete(key).to_proto(), Delete(beside).to_proto()]
    # Errors name the item as its user knows it, not the key of its record.
    ttl, (value, encoded) = checks.ttl_of(op.ttl), items.encode_value(op.value, f"{'.'.join(op.namespace)}[{op.key!r}]")
    facts = items.attributes_of(value) | items.whole_key(op.namespace, op.key)
    item = Put(key, encoded, None, ttl, facts)
    second = Delete(beside) if vectors is None else Put(beside, vectors, None, ttl)
    return [item.to_proto(), second.to_proto()]


def _get_all(ref: ThreadRef, gets: Mapping[int, GetOp], results: list[Result]) -> Operation[None]:
    if not gets:
        return
    keys = {place: items.key_of(op.namespace, op.key) for place, op in gets.items()}
    found = yield from records.get(ref, keys.values(), False, True)
    for place, key in keys.items():
        results[place] = items.item_of(found[key]) if key in found else None
    yield from _refresh(ref, [found[key] for place, key in keys.items() if key in found and gets[place].refresh_ttl])


def _refresh(ref: ThreadRef, read: Iterable[Record]) -> Operation[None]:
    """Begins the TTL of items that were read anew, if they have one. If this fails, they were read all the same."""
    keys = [record.key for record in read if record.ttl is not None]
    if not keys:
        return
    with suppress(StatewardError):
        yield from records.get(ref, [*keys, *map(items.vectors_key, keys)], True, False)


def _search(ref: ThreadRef, op: SearchOp, query: bytes | None) -> Operation[list[SearchItem]]:
    end = op.offset + op.limit
    if query is not None:
        scored = yield from _by_similarity(ref, op, query)
        chosen = scored[op.offset : end]
    elif op.filter:
        matching = yield from _matching(ref, op, end)
        chosen = [(record, None) for record in matching[op.offset :]]
    else:
        prefix, skip = items.prefix_of(op.namespace_prefix), min(op.offset, SKIP_MAX)
        page = yield from _read(ref, prefix, None, op.limit, skip=skip)
        chosen = [(record, None) for record in page]
    if op.refresh_ttl:
        yield from _refresh(ref, [record for record, _ in chosen])
    return [items.search_item_of(record, score) for record, score in chosen]


def _matching(ref: ThreadRef, op: SearchOp, most: int | None) -> Operation[list[Record]]:
    """Returns the items that meet a filter, the last written ones first."""
    prefix, conditions = items.prefix_of(op.namespace_prefix), items.pushed(op.filter)
    found = yield from _read(ref, prefix, conditions, most, wanted=op.filter)
    if most is None:
        found.sort(key=lambda record: (-record.revision, record.key))
    if conditions:  # these have fields that are no attributes
        rest = yield from _read(ref, prefix, [(items.REST, "==", True)], most, wanted=op.filter)
        unique = {record.key: record for record in (*found, *rest)}
        found = sorted(unique.values(), key=lambda record: (-record.revision, record.key))
    return found[:most]


def _read(
    ref: ThreadRef,
    prefix: str,
    where: Where | None,
    most: int | None,
    *,
    skip: int = 0,
    wanted: Mapping[str, Any] | None = None,
) -> Operation[list[Record]]:
    """Reads records until `most` of them are found."""
    found: list[Record] = []
    size = PAGE_MAX if most is None or wanted else max(1, min(most, PAGE_MAX))
    is_newest = most is not None  # else by key: such a list has all items, also those that are written meanwhile
    request = records.list_records(ref, prefix, where, is_newest, skip, size, False, True)
    while most is None or len(found) < most:
        page = yield from records.read_records(request)
        found += [record for record in page if not wanted or items.matches(kept(record.value), wanted)]
        if not request.page_token:
            break
    return found[:most]


def _by_similarity(ref: ThreadRef, op: SearchOp, query: bytes) -> Operation[list[tuple[Record, float | None]]]:
    """Returns the items of a namespace, the most similar ones first, those without vectors last."""
    candidates = yield from _matching(ref, op, None)
    vectors = yield from _read(ref, items.prefix_of(op.namespace_prefix, items.VECTORS), None, None)
    stored = {record.key: record.value for record in vectors}
    scored = [(record, _score(query, stored.get(items.vectors_key(record.key)))) for record in candidates]
    return sorted(scored, key=lambda pair: -2.0 if pair[1] is None else pair[1], reverse=True)


def _score(query: bytes, stored: bytes | None) -> float | None:
    return None if stored is None else items.best_score(query, stored)


def _list_namespaces(ref: ThreadRef, op: ListNamespacesOp) -> Operation[list[tuple[str, ...]]]:
    conditions: Sequence[Any] = op.match_conditions or ()
    depth = 0 if conditions or not op.max_depth else op.max_depth
    prefix = items.prefix_of(items.known_begin(conditions))
    request = records.list_prefixes(ref, ".", prefix, depth)
    found = set[tuple[str, ...]]()
    while True:
        page = yield from records.read_prefixes(request)
        found |= {items.namespace_of(each.prefix) for each in page}
        if not request.page_token:
            break
    kept = {each for each in found if all(items.does_match(condition, each) for condition in conditions)}
    names = sorted({each[: op.max_depth] for each in kept} if op.max_depth is not None else kept)
    return names[op.offset : op.offset + op.limit]
