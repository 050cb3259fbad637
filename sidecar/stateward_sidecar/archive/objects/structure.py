"""Checks a thread in the archive as far as HEAD, its image and its indexes tell. No I/O.

The journal must have no gap, and the snapshots that entries need must be there.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from stateward.storage.v1.archive_pb2 import OBJECT_KIND_SNAPSHOT, ArchiveHead, ObjectRef, ThreadImage
from stateward_sidecar.archive.objects.packs import is_pack
from stateward_sidecar.codec.entry import Entry, sequence_of, unpack
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.errors import Corrupt, StatewardError
from stateward_sidecar.store.thread.ranges import Pruned, Ranges


@dataclass(frozen=True, slots=True)
class Flaw:
    """Something that is wrong with a thread in the archive."""

    message: str
    version: int = 0  # 0 = unknown
    sequence: int = 0  # 0 = unknown
    reason: str = Corrupt.reason


def flaw_of(error: StatewardError, version: int = 0, sequence: int = 0) -> Flaw:
    """Returns an error as a flaw. If ``version`` is 0, the version comes from the error's metadata."""
    return Flaw(error.message, version or int(error.metadata.get("version", 0)), sequence, error.reason)


@dataclass(frozen=True, slots=True)
class _Span:
    """Consecutive entries, and the versions among them (0 = none)."""

    first: int
    last: int
    first_version: int
    last_version: int


def open_tail(head: ArchiveHead, cipher: Cipher) -> list[Entry]:
    """Opens the entries in HEAD and returns them.

    Raises Corrupt if they are out of order, if one does not continue the one before it, or if they do not end at HEAD's
    tip.
    """
    entries = [unpack(record, sequence_of(record)) for record in head.tail]
    before: Entry | None = None
    for entry in entries:
        entry.open_metadata_bytes(cipher, head.uid)
        if before is not None:
            if entry.header.sequence <= before.header.sequence:
                raise Corrupt("the entries in HEAD are out of order")
            is_next = entry.header.sequence == before.header.sequence + 1
            if is_next and entry.header.previous_digest != before.header.digest:
                raise Corrupt(f"entry {entry.header.sequence} in HEAD does not continue the one before it")
        before = entry
    if before is not None and (before.header.sequence, before.header.digest) != (head.tip_sequence, head.tip_digest):
        raise Corrupt(
            f"the last entry in HEAD ({before.header.sequence}) differs from HEAD's tip ({head.tip_sequence})"
        )
    return entries


def find_holes(
    head: ArchiveHead, image: ThreadImage, refs: Sequence[ObjectRef], tail: Sequence[Entry], start: int, version: int
) -> Iterator[Flaw]:
    """Yields the gaps in the journal: entries that are neither in an object nor in HEAD, and were not pruned.

    ``refs``: all objects, including those in indexes. ``start``: entries up to this sequence are not checked.
    ``version``: the highest version among these.
    """
    packed = [ref for ref in refs if is_pack(ref) and ref.last_sequence > start]
    spans = [_Span(ref.first_sequence, ref.last_sequence, ref.first_version, ref.last_version) for ref in packed]
    spans += [_Span(entry.header.sequence, entry.header.sequence, *(2 * [entry.header.version])) for entry in tail]
    spans.sort(key=lambda span: (span.first, span.last))
    end = head.tip_sequence + 1
    spans.append(_Span(end, end, head.last_version + 1, 0))
    pruned = Ranges.from_message(image.pruned).pairs()
    is_any = not Pruned.from_message(image.pruned).is_empty
    for at, span in enumerate(spans):
        if span.first > start + 1:
            following = next(item.first_version for item in spans[at:] if item.first_version)
            first, last = version + 1, following - 1
            is_pruned = any(low <= first and last <= high for low, high in pruned) if first <= last else is_any
            if not is_pruned:
                yield Flaw(f"entries {start + 1} to {span.first - 1} are missing: no object has them", first, start + 1)
        start, version = max(start, span.last), max(version, span.last_version)


def find_missing_snapshots(
    head: ArchiveHead, image: ThreadImage, refs: Sequence[ObjectRef], tail: Sequence[Entry]
) -> Iterator[Flaw]:
    """Yields the snapshots that entries need, and that neither an object nor HEAD has.

    Dictionaries of the entries in HEAD are left out, because these entries are opened.
    """
    there = {ref.first_version for ref in refs if ref.kind == OBJECT_KIND_SNAPSHOT} | {head.snapshot_version}
    pruned = Ranges.from_message(image.pruned).pairs()
    for ref in refs:
        # A reference does not say which entry needs which dictionary, and pruned entries need none. So packs that have
        # pruned versions are skipped.
        if is_pack(ref) and not any(low <= ref.last_version and ref.first_version <= high for low, high in pruned):
            for version in sorted(set(ref.snapshots) - there):
                there.add(version)
                yield Flaw(
                    f"the snapshot of version {version} is missing: no object has it, and entries "
                    f"{ref.first_sequence} to {ref.last_sequence} cannot be read without it",
                    version, ref.first_sequence,
                )  # fmt: skip
    for header in (entry.header for entry in tail):
        is_kept = not any(low <= header.version <= high for low, high in pruned)
        if header.whole and is_kept and header.version not in there:
            yield Flaw(
                f"the snapshot of version {header.version}, which has its state, is missing: no object has it",
                header.version, header.sequence,
            )  # fmt: skip
