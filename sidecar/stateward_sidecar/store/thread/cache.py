"""A cache of states, dictionaries and facts of heads, and the memory that this process may have.

The memory limit of this process, and the default size of the cache.

A cache of states, dictionaries and facts of heads with one byte budget. LMDB holds the truth: any item may go.
"""

from __future__ import annotations

import os
import resource
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from stateward.storage.v1.journal_pb2 import CheckpointBody, EffectRecord, EntryHeader
from stateward.v1.checkpoint_pb2 import Durability
from stateward_sidecar.codec.compress import Dictionary, dictionary_bytes
from stateward_sidecar.codec.entries import Runs, Source
from stateward_sidecar.codec.state import LogState, StateTree, resident_bytes
from stateward_sidecar.measures import StoreMeasures
from stateward_sidecar.store.thread.recordorder import OrderChange, RecordOrder, RecordOrders

MIB = 1 << 20
CACHE_BYTES_MAX = 64 * MIB
GROUPS, OWN_GROUP = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_OLD_LIMIT = GROUPS / "memory/memory.limit_in_bytes"  # version 1 of control groups


def control_groups(root: Path = GROUPS, own: Path = OWN_GROUP) -> list[Path]:
    """Returns the folders of this process's control group and of those that it is in, innermost first (version 2).

    In most containers ``root`` is the group itself. A service of systemd has a folder below it.
    """
    try:
        names = [line.removeprefix("0::/") for line in own.read_text().splitlines() if line.startswith("0::/")]
    except OSError:
        names = []
    found = [root]
    for part in Path(names[0] if names else "").parts:
        if not (found[0] / part).is_dir():  # the path is that of the host, and ``root`` is that of the container
            break
        found.insert(0, found[0] / part)
    return found


def memory_limit_bytes(groups: Sequence[Path] | None = None) -> int:
    """Returns the least of: limits of the control groups, the limit of the process, half of the machine's memory."""
    limit = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    own = resource.getrlimit(resource.RLIMIT_DATA)[0]
    if own != resource.RLIM_INFINITY:
        limit = min(limit, own)
    for path in (*(group / "memory.max" for group in groups or control_groups()), _OLD_LIMIT):
        try:
            text = path.read_text().strip()
        except OSError:
            continue
        if text.isdigit():
            limit = min(limit, int(text))
    return limit


def default_cache_bytes(limit_bytes: int) -> int:
    """Returns 64 MiB, or an eighth of the memory limit if that is less, but at least 1 MiB."""
    return max(min(CACHE_BYTES_MAX, limit_bytes // 8), MIB)


# One Python object per entry of a log or slot, roughly.
ENTRY_OVERHEAD_BYTES = 64
# Two small messages and an answer, which holds most of the body again.
FACTS_OVERHEAD_BYTES = 1024
# Five objects and their tuple, for each effect.
PLACE_OVERHEAD_BYTES = 400


@dataclass(slots=True, eq=False)
class Facts:
    """What the entry of a version says besides its edits. The messages are never changed."""

    header: EntryHeader
    body: CheckpointBody
    stored_bytes: int
    # The bytes of the last answer that showed them, with its durability level, the thread's name (an orphan has the
    # facts of the thread that it was), and the entry that told a status of it (views.py).
    start: tuple[Durability, str, int, bytes] | None = None


class EffectPlace(NamedTuple):
    """Where an effect stands in a list, its name, and the key of its row."""

    sort_key: bytes
    anchor: str
    key: str
    name: str
    row_key: bytes

    @classmethod
    def of(cls, record: EffectRecord, row_key: bytes) -> EffectPlace:
        """The place of an effect."""
        return cls(record.sort_key, record.anchor, record.key, record.name, row_key)


@dataclass(frozen=True, slots=True)
class EffectOrder:
    """The effects of an anchor, or of a thread, in order, as long as the sum of the thread's effect rows is this."""

    effect_sum: bytes
    places: list[EffectPlace]


# The kind of the item, its thread, and what tells it from others of its kind.
Key = tuple[str, int, Hashable]
# Changes of records, and the sum of the records before and after them.
MissedChange = tuple[Sequence[OrderChange], bytes, bytes]


class SegmentFrames(NamedTuple):
    """The entries of a segment."""

    frames: Sequence[bytes]


# So many segments are kept.
SEGMENTS_MAX = 8


class Sealing:
    """A state whose older entries become segments, and the versions that are made from it meanwhile."""

    __slots__ = ("runs", "tree", "versions")

    def __init__(self, version: int, tree: StateTree) -> None:
        self.tree = tree
        self.versions = {version}
        self.runs: dict[str, Runs] | None = None
        """By name of the log, once a snapshot names them."""

    def is_continued(self, tree: StateTree) -> bool:
        """Whether a state may have been made from this one: a log of it has its entries in the same list."""
        logs = ((tree.logs.get(name), log) for name, log in self.tree.logs.items())
        return any(log is not None and log.entries.is_continued(before.entries) for log, before in logs)

    def apply(self, tree: StateTree) -> StateTree:
        """Returns a state of one of the versions with its entries in segments, as far as it has them."""
        logs, runs = dict(tree.logs), self.runs or {}
        for name, sealed in runs.items():
            log, before = logs.get(name), self.tree.logs[name]
            if log is None or log.first_index != before.first_index:
                continue
            if log.entries.is_continued(before.entries) and sealed.count <= len(log.entries):
                logs[name] = LogState(log.first_index, log.entries.with_runs(sealed), log.rewritten_version)
        return StateTree(tree.slots, logs, tree.retired, tree.size_bytes)


Item = StateTree | Dictionary | Facts | EffectOrder | RecordOrders | SegmentFrames | Sealing


def _no_source(identity: Any) -> Source:
    raise AssertionError(f"nothing reads the segments of {identity}")


class Cache:
    """Drops the least recently used item first. Safe for several threads."""

    def __init__(self, limit_bytes: int) -> None:
        self.limit_bytes = limit_bytes
        self.used_bytes = 0
        # Set if metrics are on.
        self.measures: StoreMeasures | None = None
        self._items: OrderedDict[Hashable, tuple[Item, int]] = OrderedDict()
        # By thread: what commits changed since somebody began to make the order of its records.
        self._awaited: dict[int, list[list[MissedChange]]] = {}
        self._segments = deque[Key]()
        # Returns what reads the segments of a thread, given its identity. Set by the store.
        self.source: Callable[[Any], Source] = _no_source
        self._lock = threading.Lock()

    def state(self, thread: int, version: int) -> StateTree | None:
        """Returns the state of a thread at a version; None if it is not cached."""
        found = self._get(("state", thread, version))
        return found if isinstance(found, StateTree) else None

    def head(self, thread: int, version: int, digest: bytes) -> tuple[StateTree, Facts] | None:
        """Returns state and facts of a version; None if one of them is not cached."""
        with self._lock:
            held = self._items.get(("state", thread, version)), self._items.get(("facts", thread, digest))
            if self.measures is not None:
                for kind, each in zip(("state", "facts"), held, strict=True):
                    (self.measures.misses if each is None else self.measures.hits)[kind] += 1
            if held[0] is None or held[1] is None:
                return None
            self._items.move_to_end(("state", thread, version))
            self._items.move_to_end(("facts", thread, digest))
        tree, facts = held[0][0], held[1][0]
        return (tree, facts) if isinstance(tree, StateTree) and isinstance(facts, Facts) else None

    def put_state(self, thread: int, version: int, tree: StateTree) -> None:
        """Keeps a state."""
        self._put(("state", thread, version), tree, state_bytes(tree))

    def put_head(self, thread: int, tree: StateTree, facts: Facts, old: tuple[int, bytes]) -> None:
        """Keeps state and facts of a version that was just saved, and forgets those of the head before it, which are
        rarely read again. ``old``: version and digest of that head."""
        header = facts.header
        facts_bytes = 2 * facts.body.ByteSize() + FACTS_OVERHEAD_BYTES
        with self._lock:
            if (held := self._items.get(("sealing", thread, 0))) is not None and isinstance(held[0], Sealing):
                tree = self._sealed(thread, held[0], header, tree)
            tree_bytes = state_bytes(tree)
            self._put_locked(("state", thread, header.version), tree, tree_bytes, ("state", thread, old[0]))
            self._put_locked(("facts", thread, header.digest), facts, facts_bytes, ("facts", thread, old[1]))

    def _sealed(self, thread: int, sealing: Sealing, header: EntryHeader, tree: StateTree) -> StateTree:
        """Returns the state of a new version with segments in place of the entries that became segments meanwhile."""
        if header.parent_version not in sealing.versions:
            return tree
        sealing.versions.add(header.version)
        if sealing.runs is None:
            return tree
        found = sealing.apply(tree)
        if all(log is tree.logs[name] for name, log in found.logs.items()):  # it was made from segments, or cut
            self._pop(("sealing", thread, 0))
        return found

    def begin_sealing(self, thread: int, version: int, tree: StateTree) -> Sealing:
        """Notes that the older entries of a state become segments. ``end_sealing`` or ``drop_sealing`` follows."""
        sealing = Sealing(version, tree)
        with self._lock:
            for key, (item, _) in self._items.items():  # saves may have gone on before this
                if isinstance(key, tuple) and key[:2] == ("state", thread) and isinstance(item, StateTree):
                    sealing.versions.update([key[2]] if sealing.is_continued(item) else ())
            self._put_locked(("sealing", thread, 0), sealing, state_bytes(tree))
        return sealing

    def end_sealing(self, thread: int, sealing: Sealing, runs: dict[str, Runs]) -> None:
        """Puts segments into the states in memory. A snapshot on the disk names them, so they stay."""
        with self._lock:
            sealing.runs = runs
            held = self._items.get(("sealing", thread, 0))
            if held is None or held[0] is not sealing:
                return
            for version in sealing.versions:
                state = self._items.get(("state", thread, version))
                if state is not None and isinstance(state[0], StateTree):
                    found = sealing.apply(state[0])
                    self._put_locked(("state", thread, version), found, state_bytes(found))

    def drop_sealing(self, thread: int, sealing: Sealing) -> None:
        """Forgets a sealing that failed."""
        with self._lock:
            held = self._items.get(("sealing", thread, 0))
            if held is not None and held[0] is sealing:
                self._pop(("sealing", thread, 0))

    def named_segments(self, thread: int) -> set[bytes]:
        """Returns the segments that states of a thread in memory name. Looks at all items."""
        with self._lock:
            held = [item for key, (item, _) in self._items.items() if isinstance(key, tuple) and key[1] == thread]
        found = set[bytes]()
        for item in held:
            if isinstance(item, StateTree):
                runs = [log.entries.runs for log in item.logs.values()]
            else:
                runs = list((item.runs or {}).values()) if isinstance(item, Sealing) else []
            found.update(segment.digest for each in runs for segment in each.segments())
        return found

    def segment(self, thread: int, digest: bytes) -> Sequence[bytes] | None:
        """Returns the entries of a segment; None if they are not cached."""
        found = self._get(("segment", thread, digest))
        return found.frames if isinstance(found, SegmentFrames) else None

    def put_segment(self, thread: int, digest: bytes, frames: Sequence[bytes], size_bytes: int) -> None:
        """Keeps the entries of a segment, beside those of a few others: who reads many reads each once."""
        key: Key = ("segment", thread, digest)
        with self._lock:
            self._put_locked(key, SegmentFrames(frames), size_bytes + ENTRY_OVERHEAD_BYTES * len(frames))
            self._segments.append(key)
            if len(self._segments) > SEGMENTS_MAX:
                self._pop(self._segments.popleft())

    def drop_state(self, thread: int, version: int) -> None:
        """Forgets a state."""
        with self._lock:
            self._pop(("state", thread, version))

    def facts(self, thread: int, digest: bytes) -> Facts | None:
        """Returns the facts of the version with a digest, which names one version of one line; None if not cached."""
        found = self._get(("facts", thread, digest))
        return found if isinstance(found, Facts) else None

    def put_facts(self, thread: int, facts: Facts) -> None:
        """Keeps the facts of a head."""
        size_bytes = 2 * facts.body.ByteSize() + FACTS_OVERHEAD_BYTES
        self._put(("facts", thread, facts.header.digest), facts, size_bytes)

    def effect_order(self, thread: int, prefix: bytes, effect_sum: bytes) -> EffectOrder | None:
        """Returns the order of the effects whose row keys have a prefix; None if it is not cached or no longer true."""
        found = self._get(("effects", thread, prefix))
        return found if isinstance(found, EffectOrder) and found.effect_sum == effect_sum else None

    def put_effect_order(self, thread: int, prefix: bytes, order: EffectOrder) -> None:
        """Keeps an order in place of the one before."""
        names_bytes = sum(len(place.sort_key) + len(place.anchor) + len(place.key) for place in order.places)
        self._put(("effects", thread, prefix), order, names_bytes + PLACE_OVERHEAD_BYTES * len(order.places))

    def record_orders(self, thread: int) -> RecordOrders | None:
        """Returns the orders of a thread's records that the last commits left; None if they are not cached."""
        found = self._get(("records", thread, 0))
        return found if isinstance(found, RecordOrders) else None

    def await_record_order(self, thread: int) -> list[MissedChange]:
        """Notes what commits change from now on, until ``put_record_order``. Returns the notes."""
        missed = list[MissedChange]()
        with self._lock:
            self._awaited.setdefault(thread, []).append(missed)
        return missed

    def put_record_order(self, thread: int, order: RecordOrder | None, missed: list[MissedChange]) -> None:
        """Keeps an order that was made of the rows of one moment, with what commits changed since. None = it failed."""
        orders, done = RecordOrders((order,)) if order is not None else None, 0
        while True:
            if orders is not None:
                for changes, before, after in missed[done:]:
                    if orders.newest.record_sum == before:  # else the commit was in the rows already
                        orders = orders.changed(changes, after)
                    done += 1
            with self._lock:
                if orders is not None and done < len(missed):
                    continue
                awaited = self._awaited[thread]
                awaited[:] = [each for each in awaited if each is not missed]
                if not awaited:
                    del self._awaited[thread]
                if orders is not None:
                    self._put_locked(("records", thread, 0), orders, orders.size_bytes)
                return

    def change_record_order(self, thread: int, changes: Sequence[OrderChange], before: bytes, after: bytes) -> None:
        """Takes over what a commit changed in an order that is cached. Drops it if it is not the one before."""
        key: Key = ("records", thread, 0)
        with self._lock:
            for missed in self._awaited.get(thread, ()):
                missed.append((changes, before, after))
            found = self._items.get(key)
        if found is None:
            return
        orders = found[0]
        if isinstance(orders, RecordOrders) and orders.newest.record_sum == before:
            orders = orders.changed(changes, after)
            self._put(key, orders, orders.size_bytes)
        else:
            with self._lock:
                self._pop(key)

    def dictionary(self, thread: int, version: int) -> Dictionary | None:
        """Returns the digested snapshot of a thread at a version; None if it is not cached."""
        found = self._get(("dictionary", thread, version))
        return found if isinstance(found, Dictionary) else None

    def put_dictionary(self, thread: int, dictionary: Dictionary) -> None:
        """Keeps a dictionary."""
        self._put(("dictionary", thread, dictionary.version), dictionary, dictionary.size_bytes)

    def drop_dictionary(self, thread: int, version: int) -> None:
        """Forgets a dictionary that is rarely used again."""
        with self._lock:
            self._pop(("dictionary", thread, version))

    def fit_together(self, tree: StateTree) -> bool:
        """Returns whether a state and the dictionary made from it fit into the cache together.

        If they do not, they push each other out with every save, and every save has to read both again.
        """
        return state_bytes(tree) + dictionary_bytes(resident_bytes(tree)) <= self.limit_bytes

    def drop_thread(self, thread: int) -> None:
        """Forgets everything of a thread."""
        with self._lock:
            for key in [key for key in self._items if isinstance(key, tuple) and key[1] == thread]:
                self.used_bytes -= self._items.pop(key)[1]

    def _get(self, key: Key) -> Item | None:
        with self._lock:
            found = self._items.get(key)
            if self.measures is not None:
                (self.measures.misses if found is None else self.measures.hits)[key[0]] += 1
            if found is None:
                return None
            self._items.move_to_end(key)
            return found[0]

    def _put(self, key: Hashable, item: Item, size_bytes: int) -> None:
        with self._lock:
            self._put_locked(key, item, size_bytes)

    def _put_locked(self, key: Hashable, item: Item, size_bytes: int, replaced: Hashable | None = None) -> None:
        for gone in (replaced, key):
            if (old := self._items.pop(gone, None)) is not None:
                self.used_bytes -= old[1]
        if size_bytes > self.limit_bytes:
            return
        self._items[key] = (item, size_bytes)
        self.used_bytes += size_bytes
        while self.used_bytes > self.limit_bytes:
            _, (_, freed) = self._items.popitem(last=False)
            self.used_bytes -= freed

    def _pop(self, key: Hashable) -> None:
        old = self._items.pop(key, None)
        if old is not None:
            self.used_bytes -= old[1]


def state_bytes(tree: StateTree) -> int:
    """Returns about how many bytes a state takes in memory."""
    entries = len(tree.slots)
    for log in tree.logs.values():
        entries += log.entries.loose_count
    return resident_bytes(tree) + ENTRY_OVERHEAD_BYTES * (entries + 8)
