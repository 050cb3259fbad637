"""Two sidecars in the test's own process, on one bucket in memory: each step happens when the test says so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.archive_model.faults import FakeClock
from tests.archive_model.sidecar import LEASE_S, NAMESPACE, Disk, Sidecar

from stateward.v1.checkpoint_pb2 import WORK_STATUS_RUNNING, WorkStatus
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, SaveRequest, SaveResponse
from stateward.v1.state_pb2 import State
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.bucket.memory import MemoryBucket
from stateward_sidecar.store.versions.save import SaveWrite

NAME = "job"


class Twin(Sidecar):
    """A sidecar with short words for what tests of lines do to the thread ``job``."""

    def put(self, word: str, *, after: int | None = None, status: WorkStatus = WORK_STATUS_RUNNING) -> SaveResponse:
        """Appends one word to the log; ``after``: the version that is expected."""
        return self.save(appending(word, after=after, status=status))

    def words(self, name: str = NAME, version: int = 0) -> list[str]:
        """What the log holds at a version; 0 = the newest."""
        request = HydrateRequest(namespace=NAMESPACE, thread=name, max_bytes=32 << 20)
        if version:
            request.version.version = version
        return [entry.data.decode() for entry in self.hydrate(request).state.logs["m"].entries]

    def archive_all(self) -> None:
        """Ships the thread as it is."""
        self.archive.flush(NAMESPACE, NAME)

    def take(self) -> None:
        """Takes the thread from whoever holds it."""
        self.archive.own(NAMESPACE, NAME, take_over=True)

    def number_here(self) -> int:
        """The thread's number on this disk."""
        thread = self.find(NAME)
        assert thread is not None
        return thread.number

    def orphans(self) -> list[str]:
        """Names of what was set aside."""
        return sorted(thread.name for thread in self.threads() if "@@" in thread.name)

    def restart(self) -> None:
        """A kill -9, and a start on the same disk."""
        self.crash()
        self.open()

    def stop_and_start(self) -> None:
        """A stop in order, which archives everything and gives it up, and a start on the same disk."""
        self.stop()
        self.restart()

    def load(self) -> None:
        """Reads the thread into memory, as any call does."""
        with self.store.context.engine.read() as txn:
            self.store.threads.find(txn, NAMESPACE, NAME)

    def save_held(self, request: SaveRequest) -> SaveResponse | None:
        """A save by another call, in the middle of something else; None where it would have to wait."""
        if self.archive.holds(NAMESPACE, request.thread) is None:
            return None
        answer: SaveResponse = self.write(self.prepared(request).run)
        return answer

    def prepared(self, request: SaveRequest) -> SaveWrite:
        """A save that was made ready and is not written yet."""
        save = SaveWrite(self.store.context, self.store.threads, request)
        with self.store.context.engine.read() as txn:
            save.prepare(txn, self.store.threads.find(txn, NAMESPACE, request.thread))
        return save


class Pair:
    """The twins, their bucket, and the time that both share."""

    def __init__(self, directory: Path) -> None:
        self.bucket, self.time = MemoryBucket(), FakeClock()
        self._backup: dict[str, bytes] = {}
        self._directory = directory
        self._sidecars: list[Twin] = []
        self.a, self.b = self.start("a"), self.start("b")

    def start(self, owner: str) -> Twin:
        """A sidecar on an empty disk."""
        number = len(self._sidecars) + 1
        disk = Disk(number, self._directory / f"{owner}-{number}", owner)
        disk.path.mkdir()
        self._sidecars.append(Twin(disk, self.bucket, self.time, number))  # type: ignore[arg-type]
        return self._sidecars[-1]

    def wait_for_lease(self) -> None:
        """Whoever writes nothing meanwhile may be replaced."""
        self.time.sleep(LEASE_S + 1)

    def before_head(self, act: Callable[[], None]) -> None:
        """Does something, once, while a HEAD is on its way to the bucket."""

        def look(method: str, key: str) -> None:
            if method == "replace" and key.endswith("/HEAD"):
                self.mend()
                act()

        self.bucket.before = look

    def back_up(self) -> None:
        """Remembers what is in the bucket."""
        self._backup = dict(self.bucket.objects)

    def set_back(self) -> None:
        """Puts the bucket back to what was remembered."""
        self.bucket.objects = dict(self._backup)

    def mend(self) -> None:
        """Requests are answered again."""
        self.bucket.before = self.bucket.after = lambda _method, _key: None

    def close(self) -> None:
        """Ends both processes."""
        for sidecar in self._sidecars:
            sidecar.crash()


@contextmanager
def twins(directory: Path) -> Iterator[Pair]:
    """Ends them at the end."""
    pair = Pair(directory)
    try:
        yield pair
    finally:
        pair.close()


def appending(word: str, *, after: int | None = None, status: WorkStatus = WORK_STATUS_RUNNING) -> SaveRequest:
    """A save that appends one word to the log."""
    request = SaveRequest(
        namespace=NAMESPACE, thread=NAME, status=status, options=WriteOptions(request_id=f"{word[:40]}-{after}")
    )
    if after is not None:
        request.options.expected_version = after
    edit = request.diff.edits.add().append
    edit.log = "m"
    edit.entries.add(media_type="text/plain", data=word.encode())
    return request


def replacing(words: list[str], *, after: int) -> SaveRequest:
    """A save of a full state whose log holds these words."""
    state = State()
    for word in words:
        state.logs["m"].entries.add(media_type="text/plain", data=word.encode())
    return SaveRequest(
        namespace=NAMESPACE, thread=NAME, options=WriteOptions(request_id="whole", expected_version=after), state=state
    )
