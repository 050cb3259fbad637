"""Who looks on while the agents work: watchers, who must see every event once, and travellers, who read the past."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from tests.soak.agent import PATIENCE_S
from tests.soak.check import COPIES
from tests.soak.desk import NAMESPACE
from tests.soak.ledger import Book, hash_of, read_lines

from stateward import Client, Event
from stateward.errors import DeadlineExceeded, Exhausted, NotFound, StatewardError, VersionPruned

TRAVEL_PAUSE_S = 0.15
Say = Callable[[str], None]


class Tail:
    """A ledger that is being written, read on."""

    def __init__(self, path: Path) -> None:
        self.path, self.book = path, Book()
        self._lines = 0
        self._lock = threading.Lock()

    def refresh(self) -> Book:
        """Takes what was written since."""
        with self._lock:
            if self.path.exists():
                for line in list(read_lines(self.path, self._lines)):
                    self.book.take(line)
                    self._lines = line["at"]
        return self.book


class Watcher(threading.Thread):
    """Follows the namespace. `reopens` says after how many events it comes back with its cursor; 0 = never."""

    def __init__(self, target: str, say: Say, reopens: int) -> None:
        super().__init__(daemon=True, name=f"watcher {reopens}")
        self._target, self._say, self._reopens = target, say, reopens
        self.events, self.overtaken, self.last_event = 0, 0, time.monotonic()
        self._stopping = threading.Event()
        self._stream: Any = None
        self._sequences: dict[str, int] = {}
        self._digests: dict[str, dict[int, str]] = {}
        self._keep_records: set[str] = set()  # uids of threads with records
        self.ready = threading.Event()

    def run(self) -> None:
        cursor = ""
        with Client(self._target, namespace=NAMESPACE, connect_timeout=PATIENCE_S, retry_timeout=PATIENCE_S) as client:
            while not self._stopping.is_set():
                try:
                    cursor = self._follow(client, cursor)
                except StatewardError as error:
                    if not self._stopping.is_set():
                        self._say(f"{self.name}: {type(error).__name__}: {error}")
                        time.sleep(1)

    def _follow(self, client: Client, cursor: str) -> str:
        with client.watch(after_cursor=cursor, records=True) as self._stream:
            self.ready.set()
            for number, event in enumerate(self._stream, 1):
                self._take(event)
                cursor = event.cursor
                if number == self._reopens:
                    break
        return cursor

    def _take(self, event: Event) -> None:
        self.events += 1
        self.last_event = time.monotonic()
        before = self._sequences.get(event.uid)
        gap = event.sequence - (before or 0) - 1
        # A whole copy has its source's sequences, and begins wherever that begins. What a deletion overtook can be read
        # by nobody: its key is gone.
        is_copy = before is None and event.thread.startswith("fork")
        # A move of records changes none, and the entries below the floor count for nothing any more: nobody is told.
        if event.kind == "records_changed":
            self._keep_records.add(event.uid)
        may_skip = gap > 0 and event.uid in self._keep_records
        self.overtaken += gap if event.kind == "deleted" else 0
        if gap and not is_copy and not may_skip and (gap < 0 or event.kind != "deleted"):
            self._say(f"{self.name}: {event.thread} has {event.kind} {event.sequence} after {before}")
        self._sequences[event.uid] = event.sequence
        if event.checkpoint is not None:
            self._digests.setdefault(event.uid, {})[event.checkpoint.version] = event.checkpoint.digest.hex()
        if event.kind == "deleted":
            self._digests.pop(event.uid, None)

    def compare(self, books: list[Book]) -> int:
        """At the end: every answered save was seen. Returns how many."""
        count = 0
        for book in books:
            for known in book.threads.values():
                if known.uid not in self._digests and book.pending_of("delete", known.name):
                    continue  # asked for, never answered, and it happened: what was seen of it went with it
                seen = self._digests.get(known.uid, {})
                for version, saved in known.versions.items():
                    if saved.digest is not None and seen.get(version) != saved.digest:
                        self._say(
                            f"{self.name}: {known.name} version {version} was never seen, or not as it was answered"
                        )
                    count += 1
        return count

    def stop(self) -> None:
        """Ends it."""
        self._stopping.set()
        if self._stream is not None:
            self._stream.close()
        self.join(10)


class Traveller(threading.Thread):
    """Reads answered versions of any age, forks some, and compares them with the ledgers."""

    def __init__(self, target: str, tails: list[Tail], say: Say, seed: str) -> None:
        super().__init__(daemon=True, name="traveller")
        self._target, self._tails, self._say = target, tails, say
        self._dice = random.Random(seed)
        self._stopping = threading.Event()
        self.may_go = threading.Event()
        self.may_go.set()
        self.resting = threading.Event()
        self.compared = self.forked = 0

    def run(self) -> None:
        options = {"connect_timeout": PATIENCE_S, "retry_timeout": PATIENCE_S}
        with Client(self._target, namespace=NAMESPACE, **options) as client:
            while not self._stopping.is_set():
                if not self.may_go.is_set():
                    self.resting.set()
                    self.may_go.wait(1)
                    continue
                self.resting.clear()
                with suppress(DeadlineExceeded, Exhausted):
                    self._travel(client)
                time.sleep(TRAVEL_PAUSE_S)

    def _travel(self, client: Client) -> None:
        tail = self._dice.choice(self._tails)
        book = tail.refresh()
        if not book.threads:
            return
        known = self._dice.choice(list(book.threads.values()))
        version = self._dice.choice(list(known.versions))
        saved, is_fork = known.versions[version], self._dice.random() < 0.15
        copy = client.thread(f"{COPIES}{self.forked + 1}")
        try:
            thread = client.thread(known.name)
            if is_fork:
                self.forked += 1
                state = thread.fork(copy.name, at=version).hydrate(must_exist=True)
            else:
                state = thread.hydrate(at=version, must_exist=True)
            content = hash_of(state)  # reads its blobs as well
        except (NotFound, VersionPruned) as error:
            self._judge_missing(tail, known.name, known.uid, version, error)
            return
        except (DeadlineExceeded, Exhausted):
            raise
        except StatewardError as error:
            self._say(f"traveller: {known.name} at {version}: {type(error).__name__}: {error}")
            return
        finally:
            if is_fork:
                copy.delete(missing_ok=True)
        self.compared += 1
        is_same = content == saved.hash and (is_fork or saved.digest in (None, state.digest.hex()))
        if not is_same:
            now = tail.refresh().threads.get(known.name)
            if now is not None and now.uid == known.uid and not tail.book.pending_of("delete", known.name):
                self._say(f"traveller: {known.name} at {version} is not what was saved")

    def _judge_missing(self, tail: Tail, name: str, uid: str, version: int, error: StatewardError) -> None:
        book = tail.refresh()
        now = book.threads.get(name)
        if now is None or now.uid != uid or version in now.covered or book.pending_of("delete", name):
            return
        self._say(f"traveller: {name} at {version} is gone: {error}")

    def rest(self) -> None:
        """Returns when it does nothing any more, until `may_go` is set."""
        self.may_go.clear()
        self.resting.clear()
        self.resting.wait(PATIENCE_S)

    def stop(self) -> None:
        """Ends it."""
        self._stopping.set()
        self.may_go.set()
        self.join(20)
