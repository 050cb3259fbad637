"""The danger: client and daemon name one directory differently, or the client takes an object that is another one."""

from __future__ import annotations

from hashlib import sha256

import pytest
from tests.trees.yard import grown, make

from stateward._workspace.objects import DIRECTORY, FILE, SYMLINK, Chunk, Directory, Entry, WrongObject, check_chunk
from stateward.v1.workspace_pb2 import TreeChunk, TreeDirectory, TreeEntry
from stateward_sidecar.codec.objects import check_directory, totals_of

DIGEST = sha256(b"x").digest()


@pytest.mark.parametrize("seed", range(5))
def test_directories_are_those_that_the_page_of_the_protocol_makes(seed):
    """Each directory is read, made again from its entries in another order, and has the same bytes and sums."""
    made = make(grown(seed, 120, large=True))
    assert len(made.directories) > 3
    for digest, data in made.directories.items():
        parsed = Directory.parse(data, digest)
        again = Directory.of(reversed(parsed.entries))
        assert again == parsed
        assert (again.data, again.digest) == (data, digest)
        totals = totals_of(check_directory(data))
        assert (again.files, again.directories, again.size_bytes) == totals
    assert Directory.parse(made.directories[made.ref.digest], made.ref.digest).ref() == made.ref


def test_an_empty_directory_has_no_bytes():
    assert Directory.of(()).data == b""
    assert Directory.of(()).entry(b"d").message() == TreeEntry(name=b"d", kind=DIRECTORY, digest=sha256().digest())


WRONG = {
    "no name": TreeEntry(kind=FILE),
    "parent": TreeEntry(name=b"..", kind=FILE),
    "itself": TreeEntry(name=b".", kind=FILE),
    "slash": TreeEntry(name=b"a/b", kind=FILE),
    "zero": TreeEntry(name=b"a\0b", kind=FILE),
    "long": TreeEntry(name=b"a" * 256, kind=FILE),
    "no kind": TreeEntry(name=b"a"),
    "unknown kind": TreeEntry(name=b"a", kind=9),
    "below zero": TreeEntry(name=b"a", kind=FILE, size_bytes=-1),
    "no digest": TreeEntry(name=b"a", kind=FILE, size_bytes=1),
    "empty with digest": TreeEntry(name=b"a", kind=FILE, digest=DIGEST),
    "one chunk too large": TreeEntry(name=b"a", kind=FILE, size_bytes=(1 << 20) + 1, digest=DIGEST),
    "one chunk in a list": TreeEntry(
        name=b"a", kind=FILE, size_bytes=1, chunks=[TreeChunk(digest=DIGEST, size_bytes=1)]
    ),
    "other sum": TreeEntry(name=b"a", kind=FILE, size_bytes=3, chunks=[TreeChunk(digest=DIGEST, size_bytes=1)] * 2),
    "file with target": TreeEntry(name=b"a", kind=FILE, target=b"x"),
    "directory with time": TreeEntry(name=b"a", kind=DIRECTORY, digest=DIGEST, mtime_ns=1),
    "directory without digest": TreeEntry(name=b"a", kind=DIRECTORY),
    "link without target": TreeEntry(name=b"a", kind=SYMLINK),
    "link with zero byte": TreeEntry(name=b"a", kind=SYMLINK, target=b"a\0"),
    "link with size": TreeEntry(name=b"a", kind=SYMLINK, target=b"a", size_bytes=1),
}


@pytest.mark.parametrize("case", WRONG)
def test_wrong_entries_are_refused(case):
    data = TreeDirectory(entries=[WRONG[case]]).SerializeToString(deterministic=True)
    with pytest.raises(WrongObject):
        Directory.parse(data, sha256(data).digest())
    with pytest.raises(WrongObject):
        Entry.of(WRONG[case])
    with pytest.raises(ValueError, match=r"entry 0 "):  # and the daemon thinks so, too
        check_directory(data)


@pytest.mark.parametrize("names", [(b"b", b"a"), (b"a", b"a")])
def test_entries_out_of_order_are_refused(names):
    entries = [TreeEntry(name=name, kind=FILE) for name in names]
    data = TreeDirectory(entries=entries).SerializeToString(deterministic=True)
    with pytest.raises(WrongObject, match="entry 1"):
        Directory.parse(data, sha256(data).digest())


def test_two_entries_of_one_name_make_no_directory():
    with pytest.raises(WrongObject, match="twice"):
        Directory.of([Entry.file(b"a", 0, 1, ()), Entry.symlink(b"a", b"b", 1)])


@pytest.mark.parametrize("data", [b"\xff", b"\x12\x00", b"\x0a\x06\x0a\x01a\x10\x01\x18\x00"])
def test_other_forms_are_refused(data):
    """No message, an unknown field, and a field that has its default."""
    with pytest.raises(WrongObject):
        Directory.parse(data, sha256(data).digest())


def test_bytes_must_have_their_digest():
    data = Directory.of([Entry.file(b"a", 0, 1, ())]).data
    with pytest.raises(WrongObject, match="digest"):
        Directory.parse(data, DIGEST)
    check_chunk(b"x", Chunk(DIGEST, 1))
    for wrong in (b"y", b"xx", b""):
        with pytest.raises(WrongObject):
            check_chunk(wrong, Chunk(DIGEST, 1))
