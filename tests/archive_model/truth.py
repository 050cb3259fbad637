"""What is true, said without any of the archive's machinery: entries by digest, and the line that HEADs name.

A digest covers everything before it, so an entry that was ever seen on a disk says what its history is. The history of
a thread is the line that ends at its HEAD's tip; it may only grow. All promises are checked against it.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward.storage.v1.journal_pb2 import EntryHeader

# A log's entries, and a slot.
State = tuple[tuple[str, ...], str]
EMPTY: State = ((), "")


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a journal."""

    uid: bytes
    sequence: int
    previous: bytes
    version: int
    epoch: int


@dataclass(frozen=True, slots=True)
class Version:
    """What a save made."""

    version: int
    branch: str
    state: State | None  # None = of a copy that nobody was told about: what is read first counts
    parent: bytes


@dataclass(frozen=True, slots=True)
class Sent:
    """A HEAD, and from which disk it came."""

    head: ArchiveHead
    disk: int
    at_s: float = 0.0


@dataclass(slots=True)
class Truth:
    """All of it."""

    entries: dict[bytes, Entry] = field(default_factory=dict)
    versions: dict[bytes, Version] = field(default_factory=dict)
    tags: dict[bytes, tuple[str, int]] = field(default_factory=dict)  # by digest of the entry
    # By digest of the entry: by branch the version that its head moved to; 0 = it was deleted.
    moves: dict[bytes, dict[str, int]] = field(default_factory=dict)
    # By digest of the entry: id and content of the signal that it brings; the signals that it acknowledges.
    signals: dict[bytes, tuple[str, bytes]] = field(default_factory=dict)
    acknowledged: dict[bytes, tuple[str, ...]] = field(default_factory=dict)
    heads: dict[str, Sent] = field(default_factory=dict)  # by key
    log: dict[str, list[Sent]] = field(default_factory=lambda: defaultdict(list))  # all there ever were, by key
    deleted: set[bytes] = field(default_factory=set)
    lost: set[bytes] = field(default_factory=set)  # was history until the bucket was set back
    went_on: set[str] = field(default_factory=set)  # keys whose HEAD was written since it was
    archived: dict[bytes, dict[bytes, int]] = field(default_factory=lambda: defaultdict(dict))  # uid: digest: sequence
    pruned: dict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))
    writers: dict[bytes, set[int]] = field(default_factory=lambda: defaultdict(set))  # disks, by uid
    _lines: dict[bytes, dict[int, bytes]] = field(default_factory=dict)

    def see_entry(self, uid: bytes, header: EntryHeader) -> bool:
        """An entry on some disk. Whether it is the first time."""
        digest = bytes(header.digest)
        is_new = digest not in self.entries
        entry = Entry(uid, header.sequence, bytes(header.previous_digest), header.version, header.epoch)
        known = self.entries.setdefault(digest, entry)
        assert known == entry, "one digest stands for two entries"
        return is_new

    def find_version(self, line: dict[int, bytes], version: int) -> bytes:
        """The digest of a version in a line; empty where it has none."""
        return next((digest for digest in line.values() if version and self.entries[digest].version == version), b"")

    def heads_since(self, key: str, count: int) -> list[Sent]:
        """The HEADs of a name since there were so many of them."""
        return self.log[key][max(count - 1, 0) :]

    def set_back(self, heads: dict[str, Sent]) -> None:
        """The bucket was set back: what was promised of it is gone, and what HEADs say now is history."""
        was = {digest for sent in self.heads.values() for digest in self.history(bytes(sent.head.uid)).values()}
        for key in {*self.heads, *heads}:
            gone = Sent(ArchiveHead(), 0)
            self.log[key].append(heads.get(key, gone))
        self.heads = dict(heads)
        self.lost |= was
        self.archived.clear()
        self.went_on.clear()
        self.deleted -= {bytes(sent.head.uid) for sent in heads.values() if not sent.head.deleted}

    def line(self, digest: bytes) -> dict[int, bytes]:
        """Sequence → digest of everything up to an entry."""
        new, line = list[Entry](), dict[int, bytes]()
        digests = list[bytes]()
        while digest:  # without recursion: a history may have a thousand entries that nobody asked for before
            if digest in self._lines:
                line = self._lines[digest]
                break
            entry = self.entries[digest]
            new.append(entry)
            digests.append(digest)
            digest = entry.previous if entry.sequence > 1 else b""
        for entry, each in zip(reversed(new), reversed(digests), strict=True):
            line = {**line, entry.sequence: each}
        if digests:
            self._lines[digests[0]] = line
        return line

    def see_head(self, key: str, head: ArchiveHead, disk: int, at_s: float = 0.0) -> None:
        """A HEAD that was written: it may only continue what was history before."""
        before = self.heads.get(key)
        self.heads[key] = Sent(head, disk, at_s)
        self.log[key].append(self.heads[key])
        self.went_on.add(key)
        uid = bytes(head.uid)
        self.writers[uid].add(disk)
        if head.tip_sequence and not head.deleted:
            line = self.line(bytes(head.tip_digest))
            assert line.get(head.tip_sequence) == head.tip_digest, "HEAD's tip is not what it says"
            assert sorted(line) == list(range(1, head.tip_sequence + 1)), "HEAD's history has holes"
        if before is not None:
            self._compare(before.head, head)
        if head.deleted:
            self.deleted.add(uid)
        self.check_archived(uid)

    def _compare(self, old: ArchiveHead, new: ArchiveHead) -> None:
        assert new.epoch >= old.epoch, "an epoch went back"
        assert old.write_id == new.previous_write_ids[0], "a HEAD was written over another than the one it was made of"
        if new.epoch == old.epoch:
            assert new.boot_id == old.boot_id, "one epoch has two processes"
        if new.uid != old.uid:
            assert old.deleted, "a thread's HEAD was overwritten by another thread"
            return
        assert new.deleted or not old.deleted, "a deleted thread came back"
        if not new.deleted and old.tip_sequence:
            line = self.line(bytes(new.tip_digest)) if new.tip_sequence else {}
            assert line.get(old.tip_sequence) == old.tip_digest, "HEAD names two histories"

    def head(self, key: str) -> ArchiveHead | None:
        """The HEAD of a live thread that has entries."""
        sent = self.heads.get(key)
        if sent is None or sent.head.deleted or not sent.head.tip_sequence:
            return None
        return sent.head

    def history(self, uid: bytes) -> dict[int, bytes]:
        """What is archived of a thread."""
        for sent in self.heads.values():
            if sent.head.uid == uid and not sent.head.deleted and sent.head.tip_sequence:
                return self.line(bytes(sent.head.tip_digest))
        return {}

    def promise_archived(self, uid: bytes, sequence: int, digest: bytes) -> None:
        """An answer ARCHIVED: it is in the history now, and will be."""
        if uid in self.deleted or digest in self.lost:
            return
        self.archived[uid][digest] = sequence
        self.check_archived(uid)

    def check_archived(self, uid: bytes) -> None:
        """Everything that was answered ARCHIVED is history; of two saves on one version only one was."""
        if uid in self.deleted:
            return
        history = self.history(uid)
        winners: dict[tuple[str, bytes, int], bytes] = {}
        for digest, sequence in self.archived[uid].items():
            assert history.get(sequence) == digest, f"entry {sequence} was answered ARCHIVED, and is no history"
            version = self.versions.get(digest)
            if version is not None:
                first = winners.setdefault(
                    (version.branch, version.parent, self.moves_before(history, version.branch, sequence)), digest
                )
                assert first == digest, "two saves on one version were answered ARCHIVED"

    def moves_before(self, line: dict[int, bytes], branch: str, sequence: int) -> int:
        """How often the head of a branch had moved other than by a save: so often a version may have a second child."""
        moves = (self.moves.get(digest, {}) for at, digest in line.items() if at < sequence)
        return sum(branch in each for each in moves)

    def branch_head(self, line: dict[int, bytes], branch: str) -> bytes:
        """The head of a branch in a line; empty where there is no such branch."""
        return self.branch_heads(line).get(branch, b"")

    def branch_heads(self, line: dict[int, bytes]) -> dict[str, bytes]:
        """The heads of all branches after a line."""
        found = dict[str, bytes]()
        for digest in (line[sequence] for sequence in sorted(line)):
            version = self.versions.get(digest)
            if version is not None:
                found[version.branch] = digest
            for branch, to in self.moves.get(digest, {}).items():
                found[branch] = self.find_version(line, to)
        return {branch: digest for branch, digest in found.items() if digest}

    def belonging(self, line: dict[int, bytes], branch: str) -> list[int]:
        """The versions that were saved to a branch, and not to one of its name that was deleted; pruned ones too."""
        found = list[int]()
        for digest in (line[sequence] for sequence in sorted(line)):
            version = self.versions.get(digest)
            if version is not None and version.branch == branch:
                found.append(version.version)
            if self.moves.get(digest, {}).get(branch) == 0:
                found.clear()
        return found

    def tags_of(self, line: dict[int, bytes]) -> dict[str, int]:
        """The tags after a line."""
        return dict(self.tags[line[sequence]] for sequence in sorted(line) if line[sequence] in self.tags)

    def waiting(self, line: dict[int, bytes]) -> dict[str, bytes]:
        """The signals after a line that nobody acknowledged, the oldest first: their contents by their ids."""
        found = dict[str, bytes]()
        for digest in (line[sequence] for sequence in sorted(line)):
            if digest in self.signals:
                found.update((self.signals[digest],))
            for signal_id in self.acknowledged.get(digest, ()):
                found.pop(signal_id, None)
        return found
