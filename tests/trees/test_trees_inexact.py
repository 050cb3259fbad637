"""The danger: a tree of files comes back other than it was kept, or a part of it is kept twice."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import pytest
from tests.trees.yard import KIB, MIB, Link, TreeWire, chunk, directory, grown, make, naming

from stateward.v1.checkpoint_service_pb2 import HydrateRequest
from stateward.v1.workspace_pb2 import TREE_ENTRY_KIND_DIRECTORY, TREE_ENTRY_KIND_FILE, TreeDirectory, TreeEntry

TREE = {b"a": b"first", b"src": {b"m.py": b"print()\n" * 9, b"deep": {b"x": b""}}, b"to": Link(b"/nowhere")}


@pytest.mark.parametrize("inline", [True, False], ids=["in the save", "in packs"])
def test_a_tree_comes_back_as_it_was(yard: TreeWire, inline: bool) -> None:
    """Also over a restart, and beside a later version with another tree."""
    first, second = grown(1), grown(2)
    made, later = make(first), make(second)
    if inline:
        yard.save(naming(made.ref, objects=made.objects()))
        yard.save(naming(later.ref, 1, objects=later.objects()))
    else:
        yard.keep(made)
        yard.keep(later, 1)
    for _ in range(2):
        assert yard.restored(1) == first
        assert yard.restored(2) == second
        assert yard.checkpoint().workspace == later.ref
        assert yard.findings("", "t") == []
        yard.daemon.kill()
        yard.daemon.start()


def test_large_files_and_many_packs(yard: TreeWire) -> None:
    """Chunks lie over the borders of a pack's pieces, and a tree over several packs."""
    tree = grown(5, 150, large=True)
    made = make(tree)
    assert sum(map(len, made.chunks.values())) > 9 * MIB
    yard.keep(made)
    assert yard.stat().packs > 2
    assert yard.restored() == tree
    assert yard.findings("", "t") == []


def test_only_what_is_missing_is_sent_and_kept(yard: TreeWire) -> None:
    """A file that was changed costs its chunk and the directories above it; bytes that are there are not kept again."""
    tree: dict[bytes, Any] = {b"%d" % i: {b"%d" % j: b"%d %d" % (i, j) * 99 for j in range(9)} for i in range(20)}
    yard.keep(make(tree))
    before = yard.stat()
    tree[b"7"] = {**tree[b"7"], b"7": b"changed"}
    made = make(tree)
    missing = yard.missing(made)
    assert len(missing) == 3
    written = yard.send(made.objects())
    assert (written.written, written.existed) == (3, len(made.objects()) - 3)
    yard.save(naming(made.ref, 1))
    after = yard.stat()
    assert (after.directories, after.chunks) == (before.directories + 2, before.chunks + 1)
    assert yard.missing(made) == []
    assert yard.differences(base={"version": 1}) == {b"7/7": "~"}


def test_an_unchanged_tree_costs_a_save_nearly_nothing(yard: TreeWire) -> None:
    """At most 64 bytes, and no look at any object."""
    made = make(TREE)
    yard.keep(made)
    plain = naming(made.ref, 1)
    plain.ClearField("workspace")
    without = yard.save(plain).stored_bytes
    saved = yard.save(naming(made.ref, 2))
    assert saved.stored_bytes <= without + 64
    assert not yard.checkpoint(2).HasField("workspace")
    assert yard.checkpoint(3).workspace == made.ref


def test_a_chunk_and_a_directory_with_the_same_bytes_are_two_things(yard: TreeWire) -> None:
    """A file may hold the bytes of a directory object, also of one in the same tree."""
    inner = make({b"f": b"data"})
    (data,) = inner.directories.values()
    tree = {b"d": {b"f": b"data"}, b"copy": data}
    yard.keep(make(tree))
    assert yard.restored() == tree


def test_an_empty_tree_is_a_tree(yard: TreeWire) -> None:
    """Its directory object has no bytes."""
    made = make({})
    yard.save(naming(made.ref, objects=made.objects()))
    assert yard.listed() == []
    assert yard.fetch([sha256(b"").digest()]) == [b""]
    assert yard.checkpoint().workspace == made.ref


def test_objects_compressed_by_the_client(yard: TreeWire) -> None:
    """A frame of zstd is taken, and given back as the bytes that it has."""
    import zstandard

    data = b"compressible " * 5000
    frame = zstandard.ZstdCompressor(write_content_size=False).compress(data)
    sent = chunk(data)
    sent.data, sent.frame_of_bytes = frame, len(data)
    yard.send([sent])
    assert yard.fetch(chunks=[sent.digest]) == [data]


def test_a_directory_larger_than_a_message(yard: TreeWire) -> None:
    """It comes in several messages, and its entries in several pages."""
    tree = {b"%06d-%s" % (number, b"n" * 100): b"" for number in range(20_000)}
    made = make(tree)
    assert len(made.directories[made.ref.digest]) > 2 * MIB
    yard.send(made.objects())
    yard.save(naming(made.ref))
    assert yard.fetch([made.ref.digest]) == [made.directories[made.ref.digest]]
    assert [path for path, _ in yard.listed(max_bytes=200 * KIB)] == sorted(tree)


def test_pages_and_parts_of_a_tree(yard: TreeWire) -> None:
    """Pages of any size show the whole tree in order; a path and a depth show a part of it."""
    tree = grown(3, 120)
    yard.keep(make(tree))
    whole = yard.listed()
    assert len(whole) > 100
    assert yard.listed(max_bytes=1024) == whole
    keys = [path.replace(b"/", b"\0") for path, _ in whole]
    assert keys == sorted(keys)
    top = [path for path, entry in whole if b"/" not in path]
    assert [path for path, _ in yard.listed(depth=1)] == top
    assert [path for path, _ in yard.listed(depth=2, max_bytes=1024)] == [
        path for path, _ in whole if path.count(b"/") < 2
    ]
    for path, entry in whole:
        if entry.kind == TREE_ENTRY_KIND_DIRECTORY:
            below = [each for each in whole if each[0].startswith(path + b"/")]
            assert yard.listed(path=path, max_bytes=1024) == below
    assert yard.listed(tree=yard.checkpoint().workspace.digest) == whole


def test_differences_name_each_path_once(yard: TreeWire) -> None:
    """What was added, removed and changed, below directories that came or went, too."""
    before = {b"same": {b"a": b"1"}, b"gone": {b"x": {b"y": b"2"}}, b"f": b"3", b"kind": b"4"}
    after = {b"same": {b"a": b"1"}, b"new": {b"z": b"5"}, b"f": b"6", b"kind": {b"k": b"4"}}
    yard.keep(make(before))
    yard.keep(make(after), 1)
    assert yard.differences(base={"version": 1}, target={"version": 2}) == {
        b"gone": "-", b"gone/x": "-", b"gone/x/y": "-", b"new": "+", b"new/z": "+", b"f": "~", b"kind": "~",
        b"kind/k": "+",
    }  # fmt: skip
    assert yard.differences(base={"version": 1}, target={"version": 1}) == {}
    assert len(yard.differences(target={"version": 1})) == 7


def test_a_retry_of_a_save_with_objects_is_answered(yard: TreeWire) -> None:
    """It writes nothing again, and gets the first version."""
    made = make(TREE)
    request = naming(made.ref, objects=made.objects())
    first = yard.save(request)
    again = yard.save(request)
    assert again.receipt.replayed
    assert again.version == first.version == 1


def test_a_state_goes_on_beside_its_trees(yard: TreeWire) -> None:
    """The state of each version is as it was saved."""
    yard.keep(make(TREE))
    yard.keep(make(grown(4)), 1)
    answer = yard.checkpoints.Hydrate(HydrateRequest(thread="t"))
    assert answer.checkpoint.version == 2
    assert answer.checkpoint.HasField("workspace")
    assert answer.state.slots["s"].data == b"1"


def test_entries_show_times_and_executable_bits(yard: TreeWire) -> None:
    """A file keeps what belongs to it."""
    data = b"#!/bin/sh\n"
    entry = TreeEntry(
        name=b"run", kind=TREE_ENTRY_KIND_FILE, executable=True, size_bytes=len(data), mtime_ns=-5,
        digest=sha256(data).digest(),
    )  # fmt: skip
    root = TreeDirectory(entries=[entry]).SerializeToString(deterministic=True)
    made = make({})
    made.ref.digest, made.ref.files, made.ref.size_bytes = sha256(root).digest(), 1, len(data)
    yard.save(naming(made.ref, objects=[directory(root), chunk(data)]))
    assert yard.listed() == [(b"run", entry)]
