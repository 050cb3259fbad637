"""The danger: a version names a tree that is not whole or not true, or wrong objects hang, crash or fill the daemon."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any

import pytest
from tests.daemon.wire import Refusal, refused
from tests.trees.yard import MIB, TIME_NS, TreeWire, chunk, directory, make, naming

from stateward.v1.workspace_pb2 import (
    TREE_ENTRY_KIND_DIRECTORY,
    TREE_ENTRY_KIND_FILE,
    TREE_ENTRY_KIND_SYMLINK,
    TreeChunk,
    TreeDirectory,
    TreeEntry,
    TreeObject,
    TreeObjects,
    TreeRef,
)
from stateward.v1.workspace_service_pb2 import (
    DiffTreesRequest,
    FindMissingRequest,
    ObjectsBegin,
    ReadObjectsRequest,
    ReadTreeRequest,
    WriteObjectsRequest,
)

DIGEST = sha256(b"x").digest()
FILE: dict[str, Any] = {"kind": TREE_ENTRY_KIND_FILE, "size_bytes": 1, "digest": DIGEST, "mtime_ns": TIME_NS}


def refusal_of(yard: TreeWire, *objects: TreeObject) -> Refusal:
    """How a WriteObjects with these objects is refused."""
    messages = [
        WriteObjectsRequest(begin=ObjectsBegin(thread="t")), WriteObjectsRequest(objects=TreeObjects(objects=objects)),
    ]  # fmt: skip
    return refused(yard.workspaces.WriteObjects, iter(messages))


def listing(*entries: TreeEntry) -> TreeObject:
    return directory(TreeDirectory(entries=entries).SerializeToString(deterministic=True))


def entry(name: bytes = b"f", **fields: Any) -> TreeEntry:
    return TreeEntry(name=name, **{**FILE, **fields})


WRONG_ENTRIES: dict[str, tuple[TreeEntry, ...]] = {
    "no name": (entry(b""),),
    "a dot": (entry(b"."),),
    "two dots": (entry(b".."),),
    "a path": (entry(b"a/b"),),
    "an absolute path": (entry(b"/a"),),
    "a zero byte": (entry(b"a\0b"),),
    "a name of 4,096 bytes": (entry(b"n" * 4096),),
    "one name twice": (entry(b"a"), entry(b"a")),
    "out of order": (entry(b"b"), entry(b"a")),
    "no kind": (entry(kind=0),),
    "an unknown kind": (entry(kind=9),),
    "a file without digest": (entry(digest=b""),),
    "an empty file with a digest": (entry(size_bytes=0),),
    "a negative size": (entry(size_bytes=-1),),
    "a file of 2 TiB": (entry(size_bytes=2 << 40),),
    "a large file in one chunk": (entry(size_bytes=2 * MIB),),
    "one chunk in a list": (entry(digest=b"", chunks=[TreeChunk(digest=DIGEST, size_bytes=1)]),),
    "chunks beside a digest": (entry(chunks=[TreeChunk(digest=DIGEST, size_bytes=1)] * 2),),
    "chunks of another size": (entry(digest=b"", size_bytes=3, chunks=[TreeChunk(digest=DIGEST, size_bytes=1)] * 2),),
    "a file with a target": (entry(target=b"x"),),
    "a symlink to nothing": (TreeEntry(name=b"l", kind=TREE_ENTRY_KIND_SYMLINK),),
    "a symlink with a zero byte": (TreeEntry(name=b"l", kind=TREE_ENTRY_KIND_SYMLINK, target=b"a\0"),),
    "a symlink with a size": (TreeEntry(name=b"l", kind=TREE_ENTRY_KIND_SYMLINK, target=b"a", size_bytes=1),),
    "a directory with a time": (TreeEntry(name=b"d", kind=TREE_ENTRY_KIND_DIRECTORY, digest=DIGEST, mtime_ns=1),),
    "a directory without digest": (TreeEntry(name=b"d", kind=TREE_ENTRY_KIND_DIRECTORY),),
    "a directory with a negative count": (
        TreeEntry(name=b"d", kind=TREE_ENTRY_KIND_DIRECTORY, digest=DIGEST, files=-1),
    ),
    "a directory of too many": (
        TreeEntry(name=b"d", kind=TREE_ENTRY_KIND_DIRECTORY, digest=DIGEST, files=1_000_001),
    ),
}  # fmt: skip


@pytest.fixture
def begun(yard: TreeWire) -> TreeWire:
    """With a thread that has one version and the chunk of all wrong entries."""
    yard.send([chunk(b"x")])
    yard.save(naming(make({b"f": b"x"}).ref, objects=make({b"f": b"x"}).objects()))
    return yard


def unchanged(yard: TreeWire, before: tuple[object, ...]) -> None:
    """Nothing was written, and nothing is wrong."""
    assert looked(yard) == before
    assert yard.findings("", "t") == []


def looked(yard: TreeWire) -> tuple[object, ...]:
    return yard.thread("", "t").sequence, yard.stat(), yard.files()


def test_directories_that_are_none(begun: TreeWire) -> None:
    """Each is refused with the object that is wrong, before any object of its message is taken."""
    before = looked(begun)
    for name, entries in WRONG_ENTRIES.items():
        refusal = refusal_of(begun, chunk(b"right " + name.encode()), listing(*entries))
        assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "objects.objects[1].data"), name
    unchanged(begun, before)


def test_directories_in_another_form(begun: TreeWire) -> None:
    """Other bytes for the same entries would be another digest: fields out of order, unknown ones, and no protobuf."""
    right = TreeDirectory(entries=[entry()]).SerializeToString(deterministic=True)
    inner = right[2:]
    assert inner.startswith(b"\x0a\x01f")
    swapped = inner[3:] + inner[:3]
    before = looked(begun)
    forms = (right + b"\xf8\x01\x01", b"\x0a" + bytes((len(swapped),)) + swapped, b"\xff\xff", right[:-1])
    for data in forms:
        refusal = refusal_of(begun, directory(data))
        assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "objects.objects[0].data")
    unchanged(begun, before)


WRONG_OBJECTS: dict[str, tuple[str, Callable[[], TreeObject]]] = {
    "another digest": ("digest", lambda: TreeObject(kind=1, digest=DIGEST, data=b"y")),
    "a short digest": ("digest", lambda: TreeObject(kind=1, digest=b"short", data=b"y")),
    "no kind": ("kind", lambda: TreeObject(digest=DIGEST, data=b"x")),
    "an empty chunk": ("data", lambda: chunk(b"")),
    "a chunk above 1 MiB": ("data", lambda: chunk(bytes(MIB + 1))),
    "no frame": ("data", lambda: TreeObject(kind=1, digest=DIGEST, data=b"x", frame_of_bytes=1)),
    "a frame that is larger than it says": ("data", lambda: framed(bytes(100_000), 1000)),
    "a frame that is smaller than it says": ("data", lambda: framed(bytes(1000), 100_000)),
    "a frame of a gigabyte": ("data", lambda: framed(bytes(1 << 30), 1000)),
    "a size beyond a chunk": ("frame_of_bytes", lambda: framed(b"x", 2 << 20)),
    "a negative size": ("frame_of_bytes", lambda: framed(b"x", -1)),
}  # fmt: skip


def framed(data: bytes, size_bytes: int) -> TreeObject:
    import zstandard

    made = chunk(data[: 1 << 20])
    made.data, made.frame_of_bytes = zstandard.compress(data), size_bytes
    return made


def test_a_message_that_stands_for_more_than_there_is_memory(begun: TreeWire) -> None:
    """Thousands of small frames of a megabyte each are refused before any of them is opened."""
    before, one = looked(begun), framed(bytes(MIB), MIB)
    refusal = refusal_of(begun, *([one] * 8000))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "objects.objects")
    assert refusal_of(begun, *([chunk(b"x")] * 8193)).field == "objects.objects"
    unchanged(begun, before)


@pytest.mark.parametrize("name", WRONG_OBJECTS)
def test_objects_that_are_wrong(begun: TreeWire, name: str) -> None:
    """Each is refused with its field, from a stream and from a save."""
    field, make_wrong = WRONG_OBJECTS[name]
    before, wrong = looked(begun), make_wrong()
    refusal = refusal_of(begun, chunk(b"right"), wrong)
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", f"objects.objects[1].{field}")
    made = make({b"f": b"other"})
    refusal = refused(begun.checkpoints.Save, naming(made.ref, 1, objects=[*made.objects(), wrong]))
    assert refusal.reason == "INVALID_FIELD"
    assert refusal.field in (f"objects[2].{field}", "objects")  # it may be too large for a save at all
    unchanged(begun, before)


def test_a_tree_that_lacks_something_is_not_named(begun: TreeWire) -> None:
    """A chunk or a directory, near the root or deep: the save is refused, and taken when everything is there."""
    made = make({b"a": {b"b": {b"c": b"deep"}}, b"f": b"near"})
    objects = made.objects()
    before = looked(begun)
    for lacking in objects:
        some = [each for each in objects if each is not lacking]
        refusal = refused(begun.checkpoints.Save, naming(made.ref, 1, objects=some))
        assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "workspace")
        assert lacking.digest.hex() in refusal.message
        unchanged(begun, before)
    assert begun.save(naming(made.ref, 1, objects=objects)).version == 2


def test_a_chunk_is_no_directory(begun: TreeWire) -> None:
    """A directory that names a chunk as a directory names something that is not there."""
    inner = chunk(b"\x0a\x00")
    begun.send([inner])
    root = listing(TreeEntry(name=b"d", kind=TREE_ENTRY_KIND_DIRECTORY, digest=inner.digest))
    refusal = refused(begun.checkpoints.Save, naming(TreeRef(digest=root.digest), 1, objects=[root]))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "workspace")
    root = listing(TreeEntry(name=b"d", kind=TREE_ENTRY_KIND_DIRECTORY, digest=sha256(b"").digest()))
    refusal = refused(begun.checkpoints.Save, naming(TreeRef(digest=root.digest), 1, objects=[root]))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "workspace")


def test_sizes_and_counts_that_are_untrue(begun: TreeWire) -> None:
    """Of the tree, of a directory below, and of a chunk: a restore would trust them."""
    made = make({b"d": {b"f": b"data"}})
    for change in ({"files": 2}, {"size_bytes": 5}, {"files": 0}):
        ref = TreeRef(digest=made.ref.digest, files=1, size_bytes=4)
        ref.MergeFrom(TreeRef(**change)) if change != {"files": 0} else ref.ClearField("files")
        refusal = refused(begun.checkpoints.Save, naming(ref, 1, objects=made.objects()))
        assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "workspace")
    inner = make({b"f": b"data"})
    root = listing(TreeEntry(name=b"d", kind=TREE_ENTRY_KIND_DIRECTORY, digest=inner.ref.digest, files=2, size_bytes=4))
    save = naming(TreeRef(digest=root.digest, files=2, size_bytes=4), 1, objects=[root, *inner.objects()])
    assert refused(begun.checkpoints.Save, save).field == "workspace"
    root = listing(entry(size_bytes=7))
    save = naming(TreeRef(digest=root.digest, files=1, size_bytes=7), 1, objects=[root, chunk(b"x")])
    assert refused(begun.checkpoints.Save, save).field == "workspace"


def test_a_thousand_directories_in_each_other(begun: TreeWire) -> None:
    """It is refused, and exhausts no stack."""
    tree: dict[bytes, Any] = {}
    for _ in range(1000):
        tree = {b"d": tree}
    objects, digest, count = [directory(b"")], sha256(b"").digest(), 0
    for _ in range(1000):
        made = listing(TreeEntry(name=b"d", kind=TREE_ENTRY_KIND_DIRECTORY, digest=digest, directories=count))
        objects.append(made)
        digest, count = made.digest, count + 1
    refusal = refused(begun.checkpoints.Save, naming(TreeRef(digest=digest), 1, objects=objects))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "workspace")
    assert "256" in refusal.message


def test_a_tree_that_doubles_with_each_directory(begun: TreeWire) -> None:
    """A few hundred bytes that stand for more directories than there is memory are refused."""
    objects, digest, count = [directory(b"")], sha256(b"").digest(), 0
    for _ in range(60):
        entries = [
            TreeEntry(name=name, kind=TREE_ENTRY_KIND_DIRECTORY, digest=digest, directories=min(count, 999_999))
            for name in (b"a", b"b")
        ]
        objects.append(listing(*entries))
        digest, count = objects[-1].digest, 2 * count + 2
    refusal = refused(begun.checkpoints.Save, naming(TreeRef(digest=digest), 1, objects=objects))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "workspace")


def test_requests_with_wrong_fields(begun: TreeWire) -> None:
    """Each call names the field."""
    calls: list[tuple[Any, Any, str]] = [
        (begun.workspaces.FindMissing, FindMissingRequest(thread="t", chunks=[b"short"]), "chunks[0]"),
        (begun.workspaces.FindMissing, FindMissingRequest(thread="t", directories=[DIGEST] * 32_769), "chunks"),
        (begun.workspaces.FindMissing, FindMissingRequest(), "thread"),
        (begun.workspaces.ReadObjects, ReadObjectsRequest(thread="t", directories=[b""]), "directories[0]"),
        (begun.workspaces.ReadTree, ReadTreeRequest(thread="t", tree=b"short"), "tree"),
        (begun.workspaces.ReadTree, ReadTreeRequest(thread="t", tree=DIGEST, version={"version": 1}), "tree"),
        (begun.workspaces.ReadTree, ReadTreeRequest(thread="t", depth=-1), "depth"),
        (begun.workspaces.ReadTree, ReadTreeRequest(thread="t", path=b"../x"), "path"),
        (begun.workspaces.ReadTree, ReadTreeRequest(thread="t", path=b"/x"), "path"),
        (begun.workspaces.ReadTree, ReadTreeRequest(thread="t", path=b"f"), "path"),
        (begun.workspaces.ReadTree, ReadTreeRequest(thread="t", max_bytes=1), "max_bytes"),
        (begun.workspaces.ReadTree, ReadTreeRequest(thread="t", page_token="none"), "page_token"),
        (begun.workspaces.DiffTrees, DiffTreesRequest(thread="t", base_tree=b"short"), "base_tree"),
        (begun.checkpoints.Save, naming(TreeRef(), 1), "workspace.digest"),
        (begun.checkpoints.Save, naming(TreeRef(digest=DIGEST, files=-1), 1), "workspace.files"),
        (begun.checkpoints.Save, naming(TreeRef(digest=DIGEST), 1, objects=[chunk(b"x")] * 1025), "objects"),
        (begun.checkpoints.Save, naming(TreeRef(digest=DIGEST), 1, objects=[chunk(bytes(300_000))]), "objects"),
    ]  # fmt: skip
    lonely = naming(TreeRef(digest=DIGEST), 1, objects=[chunk(b"x")])
    lonely.ClearField("workspace")
    calls.append((begun.checkpoints.Save, lonely, "objects"))
    before = looked(begun)
    for call, request, field in calls:
        refusal = refused(call, request)
        assert (refusal.reason, refusal.field) == ("INVALID_FIELD", field), request
    unchanged(begun, before)


def test_what_is_not_there(begun: TreeWire) -> None:
    """Objects, threads and versions without a tree have errors of their own."""
    unknown = sha256(b"unknown").digest()
    assert refused(begun.workspaces.ReadObjects, ReadObjectsRequest(thread="t", chunks=[unknown])).reason == (
        "BLOB_NOT_FOUND"
    )
    assert refused(begun.workspaces.ReadTree, ReadTreeRequest(thread="t", tree=unknown)).reason == "BLOB_NOT_FOUND"
    assert refused(begun.workspaces.FindMissing, FindMissingRequest(thread="no")).reason == "THREAD_NOT_FOUND"
    assert refused(begun.workspaces.ReadTree, ReadTreeRequest(thread="no")).reason == "THREAD_NOT_FOUND"
    plain = naming(TreeRef(), 1)
    plain.ClearField("workspace")
    begun.save(plain)
    refusal = refused(begun.workspaces.ReadTree, ReadTreeRequest(thread="t"))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "version")
