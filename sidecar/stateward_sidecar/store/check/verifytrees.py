"""Verifies trees of files: each object that a row leads to, and each tree that a retained version names."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from functools import partial

import lmdb

from stateward.v1.workspace_pb2 import TREE_ENTRY_KIND_DIRECTORY, TreeRef
from stateward_sidecar.codec.entry import unpack
from stateward_sidecar.codec.objects import IS_DIRECTORY, chunks_of, parse_directory
from stateward_sidecar.errors import Corrupt, HistoryElsewhere, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.kinds.objects import find_place, object_key, object_rows
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, load_numbered
from stateward_sidecar.store.trees.naming import names_tree
from stateward_sidecar.store.trees.objectread import ObjectReader

RECORDS_A_STEP, OBJECTS_A_STEP = 500, 256


def verify_trees(context: Context, thread: Thread) -> Iterator[tuple[StatewardError | None, int]]:
    """Yields findings, and numbers of objects that were read. What only the archive has is left to its own check."""
    with context.engine.read() as txn:
        places = dict[int, list[tuple[bytes, int]]]()
        for key, place in object_rows(txn, thread.identity):
            places.setdefault(place.sequence, []).append((key, place.at))
        if places and txn.get(layout.objects_key(thread.number)) is None:
            yield Corrupt("the row of the thread's objects is missing", thread.name), 0
    for sequence in sorted(places):
        yield from _verify_list(context, thread, sequence, sorted(places[sequence], key=lambda each: each[1]))
    for version, tree in _trees(context, thread):
        error = _verify_tree(context, thread, tree)
        if error is not None and _is_retained(context, thread, version):
            yield error.locate(thread.name, version), 0


def _verify_list(
    context: Context, thread: Thread, sequence: int, found: list[tuple[bytes, int]]
) -> Iterator[tuple[StatewardError | None, int]]:
    """Reads the objects of an entry whose rows lead there."""
    reader = ObjectReader(context, thread)
    for start in range(0, len(found), OBJECTS_A_STEP):
        some, errors = found[start : start + OBJECTS_A_STEP], list[StatewardError]()
        with context.engine.read() as txn:  # nothing is yielded inside: a slow reader must not keep it open
            for key, at in some:
                place = find_place(txn, key)
                if place is None or (place.sequence, place.at) != (sequence, at):
                    continue  # it was moved or removed meanwhile
                try:
                    _verify_object(txn, reader, key, sequence, at)
                except HistoryElsewhere:
                    break  # so is all of the pack
                except Corrupt as error:
                    errors.append(error.locate(thread.name))
        yield from ((error, 0) for error in errors)
        yield None, len(some)


def _verify_object(txn: lmdb.Transaction, reader: ObjectReader, key: bytes, sequence: int, at: int) -> None:
    batch = reader.batch(txn, sequence)
    if at >= len(batch.placed):
        raise Corrupt(f"a row of an object leads beyond the list of entry {sequence}")
    placed = batch.placed[at]
    if object_key(reader.identity, placed.digest, is_directory=bool(placed.form & IS_DIRECTORY)) != key:
        raise Corrupt(f"the row of object {placed.digest.hex()} leads to another one")
    reader.open(txn, batch, placed)


def _trees(context: Context, thread: Thread) -> Iterator[tuple[int, TreeRef]]:
    """Yields the trees that retained versions name, each once, with one of the versions."""
    seen, row, tip, is_more = set[bytes](), 1, thread.head.tip_sequence, True
    while is_more:
        found, records, is_more = list[tuple[int, TreeRef]](), 0, False
        with context.engine.read() as txn:
            for first, value in blocks.rows(txn, thread.identity.keys, row):
                if first > tip:
                    break
                if records >= RECORDS_A_STEP:
                    is_more = True
                    break
                row = first + 1
                for version, tree in _named(thread, first, value):
                    records += 1
                    if tree is not None and tree.digest not in seen:
                        seen.add(tree.digest)
                        found.append((version, tree))
        yield from found


def _named(thread: Thread, first: int, value: memoryview) -> Iterator[tuple[int, TreeRef | None]]:
    """Yields the version and the tree of each entry of a row, without what is damaged: the check of the journal
    reports it."""
    with suppress(Corrupt):
        for sequence, record in blocks.unpack_row(first, value):
            with suppress(Corrupt):
                entry = unpack(record, sequence)
                body = replay.open_metadata(thread.identity, entry).checkpoint
                is_named = names_tree(thread, entry.header) and body.HasField("workspace")
                yield entry.header.version, body.workspace if is_named else None


def _verify_tree(context: Context, thread: Thread, tree: TreeRef) -> Corrupt | None:
    """Returns the damage if the thread lacks an object of a tree."""
    reader, waiting, seen = ObjectReader(context, thread), [tree.digest], set[bytes]()
    while waiting:
        digest = waiting.pop()
        if digest in seen:
            continue
        seen.add(digest)
        try:
            waiting += context.settled(partial(_inner, context, reader, digest))
        except HistoryElsewhere:
            continue
        except Corrupt as error:
            return error
        except StatewardError:
            return Corrupt(f"directory {digest.hex()} of the tree is missing")
    return None


def _inner(context: Context, reader: ObjectReader, digest: bytes) -> list[bytes]:
    """Returns the directories in a directory. Raises Corrupt if a chunk of its files is missing."""
    with context.engine.read() as txn:
        found = list[bytes]()
        for entry in parse_directory(reader.read(txn, digest, is_directory=True)).entries:
            if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
                found.append(entry.digest)
            for chunk, _ in chunks_of(entry):
                if reader.find(txn, chunk, is_directory=False) is None:
                    raise Corrupt(f"chunk {chunk.hex()} of the tree is missing", reader.identity.name)
    return found


def _is_retained(context: Context, thread: Thread, version: int) -> bool:
    """Whether a version is still there. Memory has another object for the thread by now if it was pruned."""
    with context.engine.read() as txn:
        try:
            now = load_numbered(txn, context.keystore, thread.number, thread.identity.uid)
        except StatewardError:
            return False
    return version not in now.pruned and version not in now.pruned.trees
