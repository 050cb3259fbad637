"""The danger: a kill while a segment of a log is made, shipped, fetched, copied or swept costs entries that were
answered, or leaves files that nobody needs."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import lmdb
import pytest
from tests.crash.faulty_daemon import FaultyDaemon
from tests.daemon.process import FAST, eventually, started_with
from tests.daemon.segments import SMALL
from tests.daemon.wire import Wire
from tests.end_to_end.recorded import verify_everything
from tests.soak.life import short_directory

from stateward import Client, Durability, State, Thread
from stateward.errors import ArchiveUnavailable, Unavailable
from stateward.v1.archive_service_pb2 import VerifyArchiveRequest

SAVES_MAX, ENTRY_BYTES = 600, 300
# As tests/daemon/segments.py says.
SEGMENT_BYTES = 4096
# Every so many saves, one waits for the archive.
ARCHIVED_EVERY = 6
SWEEPS = {"ARCHIVE_FAULTS_BLOBS_KEPT_S": "0.5"}


class Story:
    """A log as each save left it, and what was answered."""

    def __init__(self, seed: object) -> None:
        self.dice = random.Random(f"{seed}")
        self.states: list[list[str]] = [[]]  # by version
        self.pending: list[str] | None = None
        self.archived = 0  # the last version that was answered as archived

    def go_on(self, thread: Thread, saves: int) -> None:
        """Most saves append; some replace an old entry, or trim."""
        state = thread.hydrate()
        if self.pending is not None:
            self.settle(self.find(list(state.logs["l"]), len(self.states) - 1))
        for _ in range(saves):
            self.save(thread, state)

    def save(self, thread: Thread, state: State) -> None:
        log, what, version = state.logs["l"], self.dice.random(), len(self.states)
        if what < 0.08 and len(log) > 40:
            log[self.dice.randrange(len(log) - 20)] = self.text()
        elif what < 0.1 and len(log) > 60:
            log.trim(keep_last=len(log) - self.dice.randrange(1, 25))
        else:
            log.extend(self.text() for _ in range(self.dice.choice((1, 1, 2, 5))))
        self.pending, is_archived = list(log), version % ARCHIVED_EVERY == 0
        thread.save(state, durability=Durability.ARCHIVED if is_archived else None)
        self.states.append(self.pending)
        self.pending, self.archived = None, version if is_archived else self.archived

    def text(self) -> str:
        return f"{len(self.states):05} {self.dice.randbytes(ENTRY_BYTES // 2).hex()}"

    def find(self, found: list[str], first: int) -> int:
        """The version that has these entries: one of those from ``first`` on, or the one that was not answered."""
        later = self.states if self.pending is None else [*self.states, self.pending]
        assert found in later[first:], f"{len(found)} entries are no version from {first} to {len(later) - 1}"
        return len(later) - 1 - later[::-1].index(found)

    def settle(self, version: int) -> None:
        """This version is the last one, whether it was answered or not."""
        later = self.states if self.pending is None else [*self.states, self.pending]
        self.states, self.pending = later[: version + 1], None


class Machines:
    """Machines on one bucket, with small segments, each of which may die at a place."""

    def __init__(self, directory: Path, stack: ExitStack) -> None:
        self.directory, self._stack = directory, stack
        self.bucket = directory / "bucket"

    def machine(self, owner: str) -> FaultyDaemon:
        """One with an empty disk, not started."""
        short = self._stack.enter_context(short_directory())
        flags = {**FAST, "sweep_interval": "1", "log_level": "warning"}
        daemon = FaultyDaemon(
            short, self.directory / owner, self.directory / "key", archive=f"file://{self.bucket}", owner_id=owner,
            **flags,
        )  # fmt: skip
        self._stack.callback(daemon.kill)
        return daemon

    def start(self, daemon: FaultyDaemon, where: str = "", nth: int = 1, **environment: str) -> None:
        """``where``: the place at which it dies."""
        with started_with({**SMALL, **environment}):
            if where:
                daemon.start_faulty(where, nth)
            else:
                daemon.start()

    def client(self, daemon: FaultyDaemon, **options: object) -> Client:
        """One that is closed at the end."""
        return self._stack.enter_context(daemon.client(**options))


@pytest.fixture
def machines(tmp_path: Path) -> Iterator[Machines]:
    with ExitStack() as stack:
        yield Machines(tmp_path, stack)


def die(machines: Machines, daemon: FaultyDaemon, act: Callable[[Thread], object]) -> None:
    """Does something during which the daemon dies."""
    client = machines.client(daemon, retry_timeout=0)
    client.server_info()  # before its first answer a client is patient for longer
    is_over = False
    while not is_over:
        try:
            act(client.thread("job"))
            is_over = True
        except ArchiveUnavailable:  # the machine is busy, and the daemon lives
            continue
        except Unavailable:
            is_over = True
    daemon.wait_until_dead()


def entries(client: Client, name: str = "job") -> list[str]:
    return [entry.value for entry in client.thread(name).log("l").read()]


def check(client: Client, story: Story, daemon: FaultyDaemon, name: str = "job", older: int = 3) -> None:
    """All entries, in both ways of reading, and those of some older versions; and Verify."""
    last = story.states[-1]
    assert entries(client, name) == last
    assert list(client.thread(name).hydrate().logs["l"]) == last
    for version in sorted(story.dice.sample(range(1, len(story.states)), min(older, len(story.states) - 1))):
        assert list(client.thread(name).hydrate(at=version).logs["l"]) == story.states[version]
    assert verify_everything(daemon)[1] == []


def check_archive(daemon: FaultyDaemon) -> None:
    """Verify of the archive opens every object."""
    wire = Wire(daemon.target)
    answers = list(wire.archive.VerifyArchive(VerifyArchiveRequest(data_percent=100)))
    wire.close()
    assert [each.finding.message for each in answers if each.HasField("finding")] == []


def rows_and_files(daemon: FaultyDaemon) -> tuple[int, int]:
    """How many rows of blobs there are, and how many files."""
    with lmdb.open(str(daemon.data_dir), readonly=True, max_readers=512, map_size=1 << 36) as env, env.begin() as txn:
        rows = sum(len(key) == 22 and key[:1] == b"T" and key[5:6] == b"Q" for key, _ in txn.cursor())
    return rows, sum(path.is_file() for path in (daemon.data_dir / "blobs").glob("[0-9a-f]*/*"))


def is_tidy(daemon: FaultyDaemon) -> bool:
    """Whether each file of this disk, which made all of them, has a row and each row a file."""
    rows, files = rows_and_files(daemon)
    return rows == files


MADE = {
    "first-bytes": ("<storage.blobfiles:NewBlobFile.write", 7),
    "file-written": ("<storage.blobfiles:NewBlobFile.publish", 2),
    "file-synced": (">storage.blobfiles:sync_file", 2),
    "directory-not-synced": ("<storage.blobfiles:BlobFiles.sync", 2),
    "directory-synced": (">storage.blobfiles:NewBlobFile.publish", 3),
    "all-files-made": (">store.versions.snapshots:seal_segments", 2),
    "row-put": (">store.blobs.segments:put_blob", 2),
    "row-committed": ("<store.versions.snapshots:Snapshots._store_head", 2),
    "snapshot-put": (">store.versions.snapshots:Snapshots._finish", 2),
    "snapshot-committed": ("<store.thread.cache:Cache.end_sealing", 2),
    "memory-told": (">store.thread.cache:Cache.end_sealing", 3),
    "not-uploaded": ("<archive.ship.blobs:BlobCarrier._upload", 2),
    "uploaded": (">archive.ship.blobs:BlobCarrier._upload", 2),
    "in-no-HEAD": (">archive.ship.ship:Shipper._entries", 9),
    "in-HEAD": (">archive.ship.ship:Shipper._put", 9),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", MADE)
def test_a_kill_while_a_segment_is_made(machines: Machines, place: str) -> None:
    """The same disk has every entry that was answered; and so has an empty machine, once they are archived."""
    story, first, other = Story(place), machines.machine("first"), machines.machine("other")
    machines.start(first, *MADE[place])
    die(machines, first, lambda thread: story.go_on(thread, SAVES_MAX))
    machines.start(first)
    client = machines.client(first)
    story.settle(story.find(entries(client), len(story.states) - 1))
    check(client, story, first)
    eventually(lambda: is_tidy(first))
    story.go_on(client.thread("job"), 40)
    check(client, story, first)
    client.thread("job").append("l", "end", durability=Durability.ARCHIVED)
    story.states.append([*story.states[-1], "end"])
    eventually(lambda: is_tidy(first))
    first.kill()
    machines.start(other)
    again = machines.client(other)
    check(again, story, other, older=6)
    check_archive(other)


TAKEN = ("file-written", "row-committed", "snapshot-committed", "uploaded", "in-no-HEAD", "in-HEAD")


@pytest.mark.slow
@pytest.mark.parametrize("place", TAKEN)
def test_an_empty_machine_takes_over_after_a_kill(machines: Machines, place: str) -> None:
    """It has every entry that was answered as archived. What was not archived is kept apart on the first machine."""
    story, first, other = Story(place), machines.machine("first"), machines.machine("other")
    machines.start(first, *MADE[place])
    die(machines, first, lambda thread: story.go_on(thread, SAVES_MAX))
    machines.start(other)
    client = machines.client(other)
    taken = story.find(entries(client), story.archived)
    theirs = Story("theirs")
    theirs.states = [*story.states, *([story.pending] if story.pending is not None else [])][: taken + 1]
    theirs.go_on(client.thread("job"), 40)
    client.thread("job").append("l", "on", durability=Durability.ARCHIVED)
    theirs.states.append([*theirs.states[-1], "on"])
    check(client, theirs, other)
    machines.start(first)
    old = machines.client(first)
    eventually(lambda: entries(old) == theirs.states[-1])
    orphans = [thread.name for thread in old.threads() if thread.name.startswith("job@")]
    if taken < len(story.states) - 1:
        assert len(orphans) == 1
    for name in orphans:
        story.settle(story.find(entries(old, name), len(story.states) - 1))
        assert list(old.thread(name).hydrate().logs["l"]) == story.states[-1]
    check(old, theirs, first)
    check_archive(first)


FETCHED = {
    "nothing-written": ("<storage.blobfiles:NewBlobFile.write", 1),
    "written": ("<storage.blobfiles:NewBlobFile.publish", 2),
    "renamed": ("<storage.blobfiles:BlobFiles.sync", 2),
    "not-marked": ("<storage.blobfiles:BlobFiles.mark_read", 2),
    "marked": (">storage.blobfiles:BlobFiles.mark_read", 3),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", FETCHED)
def test_a_kill_while_a_segment_is_fetched(machines: Machines, place: str) -> None:
    """The read is made again, and half a file is never read."""
    story, first, other = Story(place), machines.machine("first"), machines.machine("other")
    grown(machines, first, story)
    first.kill()
    machines.start(other, *FETCHED[place])
    die(machines, other, lambda thread: list(thread.log("l").read()))
    machines.start(other)
    client = machines.client(other)
    assert rows_and_files(other)[1] < rows_and_files(first)[0]
    check(client, story, other)
    story.go_on(client.thread("job"), 20)
    check(client, story, other)


def grown(machines: Machines, daemon: FaultyDaemon, story: Story, **environment: str) -> Client:
    """Starts a machine on which a thread gets a log of some segments, all archived."""
    machines.start(daemon, **environment)
    client = machines.client(daemon)
    story.go_on(client.thread("job"), 120)
    client.thread("job").append("l", "last", durability=Durability.ARCHIVED)
    story.states.append([*story.states[-1], "last"])
    story.archived = len(story.states) - 1
    return client


SWEPT = {
    "row-not-removed": ("<store.blobs.blobsweep:remove_blob", 1),
    "row-removed": (">store.blobs.blobsweep:remove_blob", 2),
    "file-there": ("<storage.blobfiles:BlobFiles.remove", 2),
    "file-gone": (">storage.blobfiles:BlobFiles.remove", 2),
    "object-there": ("<archive.ship.ship:delete_blobs", 1),
    "object-gone": (">archive.ship.ship:delete_blobs", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", SWEPT)
def test_a_kill_while_segments_are_swept(machines: Machines, place: str) -> None:
    """What retained versions name stays, and all else goes in the end."""
    story, first, other = Story(place), machines.machine("first"), machines.machine("other")
    grown(machines, first, story)
    first.kill()
    machines.start(first, *SWEPT[place], **SWEEPS)
    def prune(thread: Thread) -> None:
        state = thread.hydrate()
        state.logs["l"].trim(keep_last=len(state.logs["l"]) // 2)
        thread.save(state)
        story.states.append(list(state.logs["l"]))
        thread.prune(keep_latest_per_branch=1)
        for _ in range(SAVES_MAX):
            story.save(thread, state)

    die(machines, first, prune)
    machines.start(first, **SWEEPS)
    client = machines.client(first)
    story.settle(story.find(entries(client), len(story.states) - 1))
    check(client, story, first, older=0)
    story.go_on(client.thread("job"), 5)
    client.thread("job").append("l", "end", durability=Durability.ARCHIVED)
    story.states.append([*story.states[-1], "end"])
    client.thread("job").prune(keep_latest_per_branch=1)
    most = entries_bytes(client) // SEGMENT_BYTES + 8
    eventually(lambda: is_tidy(first) and rows_and_files(first)[0] <= most)
    check(client, story, first, older=0)
    first.kill()
    machines.start(other)
    check(machines.client(other), story, other, older=0)
    check_archive(other)


def entries_bytes(client: Client) -> int:
    """The size of the log."""
    return sum(map(len, entries(client)))


COPIED = {
    "linked": (">storage.blobfiles:BlobFiles.duplicate", 2),
    "names-not-synced": ("<storage.blobfiles:BlobFiles.sync_names", 1),
    "names-synced": (">storage.blobfiles:BlobFiles.sync_names", 1),
    "not-shown": ("<store.copies.hidden:Hidden._reveal", 1),
    "shown": (">store.copies.hidden:Hidden._reveal", 1),
}


@pytest.mark.slow
@pytest.mark.parametrize("place", COPIED)
def test_a_kill_while_segments_are_copied(machines: Machines, place: str) -> None:
    """The copy, of one version or of all, is there or not; what is left of it goes, and the thread keeps its own."""
    is_whole = "shown" in place
    story, first, other = Story(place), machines.machine("first"), machines.machine("other")
    grown(machines, first, story)
    first.kill()
    machines.start(first, *COPIED[place])
    die(machines, first, lambda thread: thread.fork("copy", all_versions=is_whole))
    machines.start(first)
    client = machines.client(first)
    eventually(lambda: is_tidy(first))
    check(client, story, first)
    names = {thread.name for thread in client.threads()}
    if "copy" in names:
        client.thread("copy").delete()
    client.thread("job").fork("copy", all_versions=is_whole)
    client.thread("job").delete()
    eventually(lambda: is_tidy(first))
    assert entries(client, "copy") == story.states[-1]
    client.thread("copy").append("l", "end", durability=Durability.ARCHIVED)
    first.kill()
    machines.start(other)
    again = machines.client(other)
    assert entries(again, "copy") == [*story.states[-1], "end"]
    assert verify_everything(other)[1] == []
    check_archive(other)
