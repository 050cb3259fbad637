"""Operations that read a tar into a tree, and write a tree as a tar, in a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from stateward._operations import snapshots, trees
from stateward._operations.steps import Operation, ThreadRef, Work, thread_error
from stateward._restoring.paths import shown
from stateward._workspace.chunking import chunker
from stateward._workspace.objects import FILE, Entry, WrongObject, check_chunk
from stateward._workspace.tars import END, Unpacking, header, padding
from stateward.arguments import instance
from stateward.errors import Corrupt
from stateward.models import At, Tree
from stateward.workspaces import Rules, Snapshot

BATCH_BYTES, BATCH_PATHS, BATCH_CHUNKS = 8 << 20, 4096, 8192
EVERYTHING = Rules(left_out=(), secrets=(), git="whole")


def import_tar(ref: ThreadRef, file: Any, rules: Rules | None) -> Operation[Snapshot]:
    """Reads a tar, and sends what the thread lacks of it."""
    chosen = EVERYTHING if rules is None else instance(rules, "rules", Rules, "Rules")
    if not hasattr(file, "read"):
        raise TypeError(f"file takes a file that is open for reading bytes, not {file!r:.100}")
    if chosen.gitignore:
        raise ValueError("a tar has no rules of .gitignore files: Rules(gitignore=True) is for directories")
    yield Work(chunker)  # before anything is read
    source, unpacking = snapshots.Source(b"", chosen), Unpacking(file, chosen)
    sending, contents = snapshots.Sending(ref, source), unpacking.contents()
    while (batch := (yield Work(lambda: next(contents, None)))) is not None:
        yield from sending.offer(snapshots.CHUNK, batch)
    yield from sending.offer(snapshots.DIRECTORY, (yield Work(lambda: dict(unpacking.directories()))))
    made = unpacking.root
    assert made is not None
    return Snapshot(
        tree=Tree(made.digest, made.files, made.size_bytes),
        read=unpacking.read,
        read_bytes=unpacking.read_bytes,
        sent=sending.sent,
        sent_bytes=sending.sent_bytes,
        torn=(),
        left_out=tuple(unpacking.left_out),
        collisions=(),
        git=None,
        namespace=ref.namespace,
        thread=ref.thread,
        objects=tuple(sending.pending),
        forget=source.forget,
    )


def export_tar(ref: ThreadRef, file: Any, at: At | None) -> Operation[Tree]:
    """Writes the tree of a version as a tar."""
    if not hasattr(file, "write"):
        raise TypeError(f"file takes a file that is open for writing bytes, not {file!r:.100}")
    listed = yield from trees.list_tree(ref, at)
    batch, size_bytes, chunks = list[tuple[bytes, Entry]](), 0, 0
    for path, entry in listed.entries.items():
        batch.append((path, entry))
        if entry.kind == FILE:
            size_bytes += entry.size_bytes
            chunks += len(entry.chunks)
        if size_bytes >= BATCH_BYTES or len(batch) >= BATCH_PATHS or chunks >= BATCH_CHUNKS:
            yield from _write_all(ref, file.write, batch)
            batch, size_bytes, chunks = [], 0, 0
    yield from _write_all(ref, file.write, batch)
    yield Work(partial(file.write, END))
    return Tree(listed.tree.digest, listed.tree.files, listed.tree.size_bytes)


def _write_all(ref: ThreadRef, write: Callable[[bytes], Any], batch: Sequence[tuple[bytes, Entry]]) -> Operation[None]:
    """Writes some members. Of a large file, only a part is held at a time."""
    small = [chunk for _, entry in batch if len(entry.chunks) == 1 for chunk in entry.chunks]
    found = iter((yield from trees.fetch(ref, small)))
    for path, entry in batch:
        parts = [header(path, entry)]
        for at in range(0, len(entry.chunks), 8):
            group = entry.chunks[at : at + 8]
            data = [next(found)] if len(entry.chunks) == 1 else (yield from trees.fetch(ref, group))
            try:
                for chunk, each in zip(group, data, strict=True):
                    check_chunk(each, chunk)
            except WrongObject as error:
                raise thread_error(Corrupt, ref.thread, f"a chunk of {shown(path)!r} {error}") from None
            yield Work(partial(write, b"".join([*parts, *data])))
            parts = []
        end = b"".join(parts) + (padding(entry.size_bytes) if entry.kind == FILE else b"")
        if end:
            yield Work(partial(write, end))
