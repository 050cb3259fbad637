"""The keys inside an archive: its root, and the keys of its namespaces. `rootkeys.py` has the keys that wrap the root.

    change a root        a new generation of the root is added to its key object, and all namespaces are wrapped by it
    change a namespace   a new generation of its key is added to its key object, and the keys of its threads are wrapped
                         by it; their HEADs are sealed by it with their next ship, or now
    retire               whatever the old generation still wraps or seals is done again, then it is removed

Every object is replaced by compare-and-swap, and holds the same key before and after. So every step may be repeated,
and may end anywhere, and sidecars work meanwhile: one that finds a generation which it does not know reads the key
object again. A sidecar may go on with the old generation for ``AGREED_S`` after the new one was added; therefore
`retire` refuses before twice that time, and looks at everything once more. What is wrapped by a session key, too, can
only be changed by a sidecar that has it: `retire` refuses while there is such a thread.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from stateward.storage.v1.archive_pb2 import KeyObject
from stateward_sidecar.archive.fleet.rootkeys import (
    TRIES_MAX,
    add_wrap,
    names_of,
    open_all,
    parse_keys,
    raise_format,
    read_root,
    slots_in,
    times_of,
)
from stateward_sidecar.archive.objects.heads import HEAD_MAGIC, open_head, reseal_head
from stateward_sidecar.archive.objects.keys import AGREED_S, key_object
from stateward_sidecar.archive.requests.metered import PARALLEL, Unclear, Wire
from stateward_sidecar.archive.requests.places import (
    NAMESPACE_KEYS,
    ROOT_KEY,
    THREAD_KEYS,
    namespace_key,
    namespace_prefix,
    place_of,
)
from stateward_sidecar.bucket.base import ObjectChanged
from stateward_sidecar.codec.seal import KEY_BYTES, Cipher, NameKey, open_record
from stateward_sidecar.errors import Corrupt, NewerFormat, StartError
from stateward_sidecar.storage.keyslots import GENERATION_MAX, HEAD, generation_of, root_of
from stateward_sidecar.storage.keystore import KeyStore
from stateward_sidecar.storage.keywraps import HELD, open_namespace, wrap_namespace, wrap_root, wrapping_id_of
from stateward_sidecar.storage.namespacekeys import NamespaceKeys

SECOND_US = 1_000_000
RETIRE_S = 2 * AGREED_S
"""An old generation is removed this long after the new one was added, or later."""
Tell = Callable[[str, int], None]
"""Takes what is being done, and how many are done."""


@dataclass(slots=True)
class Counts:
    """What a change found and did."""

    generation: int = 0
    is_new: bool = False
    namespaces: int = 0
    keys: int = 0
    heads: int = 0
    held: int = 0
    """Keys of held threads that an older generation wraps."""


# -- the root ------------------------------------------------------------------------------------------------------


def change_root(wire: Wire, key: bytes, now_us: int, tell: Tell) -> Counts:
    """Gives the archive a new root, and wraps all namespaces with it. If the last change is not retired yet, only
    completes it. Raises StartError, ArchiveUnavailable."""
    for _ in range(TRIES_MAX):
        found, etag = read_root(wire)
        slots = slots_in(found)
        roots = open_all(slots, key)
        if any(wrapping_id_of(slot) != wrapping_id_of(slots[0]) for slot in slots):
            raise StartError("two keys open this archive; retire one of them first (`stateward keys list` shows them)")
        raise_format(wire, names_of(roots))
        counts = Counts(generation=max(roots))
        if len(roots) == 1:
            counts = Counts(generation=_next(max(roots)), is_new=True)
            roots[counts.generation] = os.urandom(KEY_BYTES) + names_of(roots)
            add_wrap(found, wrap_root(roots[counts.generation], key, counts.generation), now_us)
            if not _swap(wire, ROOT_KEY, found, etag):
                continue
        counts.namespaces = _wrap_namespaces(wire, roots, tell)
        return counts
    raise _contended()


def retire_root(wire: Wire, key: bytes, now_us: int, tell: Tell, *, is_forced: bool) -> Counts:
    """Removes all generations of the root but the newest. Raises StartError, ArchiveUnavailable."""
    for _ in range(TRIES_MAX):
        found, etag = read_root(wire)
        roots = open_all(slots_in(found), key)
        newest = max(roots)
        if len(roots) == 1:
            raise StartError("the archive has one root key; `stateward keys rotate --root` makes a new one")
        raise_format(wire, names_of(roots))
        _check_age(found, newest, now_us, is_forced=is_forced)
        counts = Counts(newest, namespaces=_wrap_namespaces(wire, roots, tell))
        kept = [wrap for wrap in found.wraps if generation_of(wrap.wrapped) == newest]
        if _swap(wire, ROOT_KEY, KeyObject(wraps=kept), etag):
            return counts
    raise _contended()


def _wrap_namespaces(wire: Wire, roots: dict[int, bytes], tell: Tell) -> int:
    newest, done = max(roots), 0
    for names in _batches(name for name, _ in wire.walk(NAMESPACE_KEYS)):
        done += sum(wire.together(*(partial(_wrap_again, wire, name, roots, newest) for name in names)))
        tell("namespaces", done)
    return done


def _wrap_again(wire: Wire, name: str, roots: dict[int, bytes], newest: int) -> bool:
    for _ in range(TRIES_MAX):
        answer = wire.find(name)
        if answer is None:
            return False
        found, is_old = parse_keys(answer.data), False
        for wrap in found.wraps:
            if root_of(wrap.wrapped) == newest:
                continue
            keys = open_namespace(wrap.wrapped, roots)
            if keys is None:
                raise StartError(f"{name} in the archive does not open with any root; put it back from a copy")
            identity, is_old = bytes(HEAD.unpack_from(wrap.wrapped)[2]), True
            slot = wrap_namespace(identity, generation_of(wrap.wrapped), keys, newest, roots[newest][:KEY_BYTES])
            wrap.wrapped, wrap.wrapping_id = slot, wrapping_id_of(slot)
        if not is_old or _swap(wire, name, found, answer.etag):
            return is_old
    raise _contended()


# -- namespaces ----------------------------------------------------------------------------------------------------


def list_namespace(wire: Wire, key: bytes, name: str) -> KeyObject:
    """Returns the key object of a namespace. Raises StartError, ArchiveUnavailable."""
    return _read_namespace(wire, key, name)[0]


def change_namespace(wire: Wire, key: bytes, name: str, now_us: int, tell: Tell, *, seals_heads: bool) -> Counts:
    """Gives a namespace a new key, and wraps the keys of its threads with it; ``seals_heads``: seals all HEADs, too. If
    the last change is not retired yet, only completes it. Raises StartError, ArchiveUnavailable."""
    for _ in range(TRIES_MAX):
        found, etag, roots, keys = _read_namespace(wire, key, name)
        raise_format(wire, names_of(roots))
        counts = Counts(generation=keys.generation)
        if len(keys.generations) == 1:
            counts = Counts(generation=_next(keys.generation), is_new=True)
            pair = keys.name_key + os.urandom(KEY_BYTES)
            root = max(roots)
            slot = wrap_namespace(keys.id, counts.generation, pair, root, roots[root][:KEY_BYTES])
            add_wrap(found, slot, now_us)
            if not _swap(wire, namespace_key(keys.id), found, etag):
                continue
            keys.learn({counts.generation: pair})
        _wrap_threads(wire, keys, counts, tell)
        if seals_heads:
            _seal_heads(wire, keys, counts, tell)
        return counts
    raise _contended()


def retire_namespace(wire: Wire, key: bytes, name: str, now_us: int, tell: Tell, *, is_forced: bool) -> Counts:
    """Removes all generations of a namespace's key but the newest. Raises StartError, ArchiveUnavailable."""
    for _ in range(TRIES_MAX):
        found, etag, roots, keys = _read_namespace(wire, key, name)
        counts = Counts(generation=keys.generation)
        if len(keys.generations) == 1:
            raise StartError("the namespace has one key; `stateward keys rotate --namespace` makes a new one")
        raise_format(wire, names_of(roots))
        _check_age(found, keys.generation, now_us, is_forced=is_forced)
        _wrap_threads(wire, keys, counts, tell)
        if counts.held:
            raise StartError(
                f"the old key stays: it wraps the keys of threads that only their users can open ({counts.held}). A "
                "client must open each of them, or somebody delete it"
            )
        _seal_heads(wire, keys, counts, tell)
        kept = [wrap for wrap in found.wraps if generation_of(wrap.wrapped) == keys.generation]
        if _swap(wire, namespace_key(keys.id), KeyObject(wraps=kept), etag):
            return counts
    raise _contended()


def _read_namespace(wire: Wire, key: bytes, name: str) -> tuple[KeyObject, str, dict[int, bytes], NamespaceKeys]:
    roots = open_all(slots_in(read_root(wire)[0]), key)
    identity = NameKey(names_of(roots)).namespace(name)
    answer = wire.find(namespace_key(identity))
    if answer is None:
        raise StartError(f"--namespace: the archive has no namespace {name!r}")
    found = parse_keys(answer.data)
    pairs = {}
    for slot in slots_in(found):
        pair = open_namespace(slot, roots)
        if pair is None:
            raise StartError("the key of the namespace does not open; run `stateward keys rotate --root` to its end")
        pairs[generation_of(slot)] = pair
    return found, answer.etag, roots, NamespaceKeys(identity, pairs)


def _wrap_threads(wire: Wire, keys: NamespaceKeys, counts: Counts, tell: Tell) -> None:
    for names in _batches(name for name, _ in wire.walk(f"{THREAD_KEYS}{keys.id.hex()}/")):
        for done, held in wire.together(*(partial(_wrap_thread, wire, name, keys) for name in names)):
            counts.keys += done
            counts.held += held
        tell("keys of threads", counts.keys)


def _wrap_thread(wire: Wire, name: str, keys: NamespaceKeys) -> tuple[bool, bool]:
    """Returns whether the key was wrapped anew, and whether it is a held thread's, which it cannot be."""
    for _ in range(TRIES_MAX):
        answer = wire.find(name)
        if answer is None:  # deleted meanwhile
            return False, False
        slots = slots_in(parse_keys(answer.data))
        if all(generation_of(slot) == keys.generation for slot in slots):
            return False, False
        if any(slot[0] == HELD for slot in slots):
            return False, True
        try:
            uid, data_key = KeyStore.open_thread(slots[0], keys)
        except Corrupt:
            raise StartError(f"{name} in the archive does not open; `stateward archive verify` tells more") from None
        if _swap(wire, name, KeyObject.FromString(key_object(KeyStore.wrap_thread(uid, keys, data_key))), answer.etag):
            return True, False
    raise _contended()


def _seal_heads(wire: Wire, keys: NamespaceKeys, counts: Counts, tell: Tell) -> None:
    names = (name for name, _ in wire.walk(namespace_prefix(keys.id)) if place_of(name) is not None)
    for batch in _batches(names):
        counts.heads += sum(wire.together(*(partial(_seal_head, wire, name, keys) for name in batch)))
        tell("HEADs", counts.heads)


def _seal_head(wire: Wire, name: str, keys: NamespaceKeys) -> bool:
    """Seals a HEAD with the newest generation. It keeps its write id, so its owner goes on from it."""
    place = place_of(name)
    assert place is not None
    for _ in range(TRIES_MAX):
        answer = wire.find(name)
        if answer is None:
            return False
        try:
            open_record(Cipher(keys.wrapping_key), HEAD_MAGIC, answer.data, place.namespace_id, place.name_hash)
            return False
        except Corrupt:
            pass
        try:
            head = open_head(keys, place, answer.data)
        except (Corrupt, NewerFormat):
            raise StartError(f"{name} in the archive does not open; `stateward archive verify` tells more") from None
        try:
            wire.replace(name, reseal_head(keys, place, head), answer.etag)
            return True
        except (ObjectChanged, Unclear):
            continue
    raise _contended()


# -- both ----------------------------------------------------------------------------------------------------------


def _check_age(found: KeyObject, newest: int, now_us: int, *, is_forced: bool) -> None:
    added = times_of(found)[newest]
    age_s = (now_us / SECOND_US) - (added.timestamp() if added is not None else 0.0)
    if not is_forced and age_s < RETIRE_S:
        raise StartError(
            f"the new key is {max(age_s, 0) / 60:.0f} minutes old, and sidecars may use the old one for "
            f"{RETIRE_S / 60:.0f}; try again later, or give --force if no sidecar runs"
        )


def _swap(wire: Wire, name: str, found: KeyObject, etag: str) -> bool:
    try:
        wire.replace(name, found.SerializeToString(), etag)
        return True
    except (ObjectChanged, Unclear):
        return False


def _next(generation: int) -> int:
    if generation == GENERATION_MAX:
        raise StartError("this key was changed as often as it can be")
    return generation + 1


def _contended() -> StartError:
    return StartError("somebody else changes the keys of the archive at the same time; try again")


def _batches(names: Iterator[str]) -> Iterator[list[str]]:
    batch: list[str] = []
    for name in names:
        batch.append(name)
        if len(batch) == PARALLEL:
            yield batch
            batch = []
    if batch:
        yield batch
