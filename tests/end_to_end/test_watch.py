"""The danger: a watcher leaves out a change, sees one twice or in another order, so what it builds from the events is
wrong."""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from stateward import Client, Event
from stateward.errors import ThreadNotFound
from stateward.testing import Daemon, run_daemon

WRITERS = 3
SAVES = 120  # by each writer
TIMEOUT_S = 60.0


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with run_daemon(log_level="warning") as daemon:
        yield daemon


class Collector:
    """Reads a watch in a thread of its own until `is_enough` says so of what it has seen."""

    def __init__(
        self, open_watch: Callable[[], Any], is_enough: Callable[[list[Event]], bool], pause_s: float = 0
    ) -> None:
        self.seen: list[Event] = []
        self.errors: list[BaseException] = []
        self._stream = open_watch()
        self._is_enough, self._pause_s = is_enough, pause_s
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        try:
            for event in self._stream:
                self.seen.append(event)
                if self._is_enough(self.seen):
                    return
                if self._pause_s:
                    time.sleep(self._pause_s)  # a slow reader
        except BaseException as error:  # noqa: BLE001  shown by `finish`
            self.errors.append(error)

    def finish(self) -> list[Event]:
        """What was seen; fails where it was not enough in time."""
        self._thread.join(TIMEOUT_S)
        self._stream.close()
        self._thread.join(TIMEOUT_S)
        if self.errors:
            raise self.errors[0]
        assert self._is_enough(self.seen), f"after {TIMEOUT_S:g} s only {len(self.seen)} events were seen"
        return self.seen


def write(daemon: Daemon, names: list[str], saves: int = SAVES) -> None:
    """Every writer appends to all of the threads in turn."""

    def work(writer: int) -> None:
        with daemon.client(retry_timeout=TIMEOUT_S) as client:
            for number in range(saves):
                name = names[(number + writer) % len(names)]
                client.thread(name).append("log", f"{writer}.{number} {'x' * (number % 50) * 40}", step=number)

    with ThreadPoolExecutor(WRITERS) as pool:
        for future in [pool.submit(work, writer) for writer in range(WRITERS)]:
            future.result()


def crash(daemon: Daemon, times: int) -> threading.Thread:
    """Kills the daemon and starts it again, some times, while others go on."""

    def work() -> None:
        for _ in range(times):
            time.sleep(0.25)
            daemon.kill()
            daemon.start()

    thread = threading.Thread(target=work)
    thread.start()
    return thread


def check_complete(events: list[Event], total: int) -> None:
    """Each thread's sequences are 1, 2, 3 ... and its versions too; together there are as many as were written."""
    by_uid: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        by_uid[event.uid].append(event)
    for mine in by_uid.values():
        assert [event.sequence for event in mine] == list(range(1, len(mine) + 1))
        assert [event.checkpoint.version for event in mine] == list(range(1, len(mine) + 1))
    assert sum(map(len, by_uid.values())) == total
    assert len({event.cursor for event in events}) == total


@pytest.mark.parametrize("kills", [0, 3])
def test_a_thread_is_seen_without_gap_or_duplicate(daemon: Daemon, kills: int) -> None:
    """Quick and slow readers of a thread see each of its entries once, in order, through crashes."""
    total = WRITERS * SAVES + 1
    with daemon.client(retry_timeout=TIMEOUT_S) as client:
        thread = client.thread("watched")
        thread.append("log", "first")
        collectors = [
            Collector(lambda: thread.watch(after_sequence=0), lambda seen: len(seen) == total, pause_s)
            for pause_s in (0, 0.004)
        ]
        killer = crash(daemon, kills)
        write(daemon, ["watched"])
        killer.join()
        for collector in collectors:
            check_complete(collector.finish(), total)


@pytest.mark.parametrize("kills", [0, 3])
def test_a_namespace_is_seen_in_the_order_of_its_commits(daemon: Daemon, kills: int) -> None:
    """A namespace's watch sees all threads, new ones too; an event never comes before one that it could depend on."""
    names, total = [f"thread-{number}" for number in range(7)], WRITERS * SAVES + 1
    with daemon.client(retry_timeout=TIMEOUT_S) as client:
        collectors = [Collector(client.watch, lambda seen: len(seen) == total, pause_s) for pause_s in (0, 0.004)]
        client.thread("begin").append("log", "first")
        killer = crash(daemon, kills)
        write(daemon, names)
        killer.join()
        orders = []
        for collector in collectors:
            events = collector.finish()
            check_complete(events, total)
            # Writer w saves step n + 1 only after step n was answered, whichever threads they are in.
            for writer in range(WRITERS):
                steps = [event.checkpoint.step for event in events if said_by(client, event, writer)]
                assert steps == list(range(SAVES))
            orders.append([event.cursor for event in events])
        assert orders[0] == orders[1]


def said_by(client: Client, event: Event, writer: int, known: dict[tuple[str, int], str] = {}) -> bool:  # noqa: B006
    """Whether a writer made the version of an event."""
    key = (event.uid, event.checkpoint.version)
    if key not in known:
        for at, text in enumerate(client.thread(event.thread).hydrate().logs["log"], 1):
            known[event.uid, at] = text
    return known[key].startswith(f"{writer}.")


def heads(events: Iterable[Event]) -> list[tuple[Any, ...]]:
    """What of an event stays the same when its version is pruned later."""
    return [(event.kind, event.cursor, event.thread, event.uid, event.sequence, event.time) for event in events]


def test_a_watch_goes_on_after_any_cursor(daemon: Daemon) -> None:
    """Taking up a watch after any event, also in another process after a crash, shows exactly what followed."""
    with daemon.client() as client:
        thread = client.thread("watched")
        everything = Collector(client.watch, lambda seen: len(seen) == 43)
        for number in range(40):
            thread.append("log", number)
        thread.tags.set("one", at=3)
        thread.tags.delete("one")
        thread.prune(versions=[2])
        events = everything.finish()
        with thread.watch(after_sequence=0) as watch:
            own = [next(watch) for _ in range(43)]
    assert [event.kind for event in events[40:]] == ["tag_set", "tag_deleted", "pruned"]
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        for at in (0, 1, 20, 41):
            with client.watch(after_cursor=events[at].cursor) as watch:
                assert heads(next(watch) for _ in range(42 - at)) == heads(events[at + 1 :])
            with client.thread("watched").watch(after_cursor=own[at].cursor) as watch:
                assert heads(next(watch) for _ in range(42 - at)) == heads(own[at + 1 :])
            with client.thread("watched").watch(after_sequence=at + 1) as watch:
                assert heads(next(watch) for _ in range(42 - at)) == heads(own[at + 1 :])


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_deletion_is_the_last_event_of_a_thread(daemon: Daemon, is_killed: bool) -> None:
    """A watch ends with the deletion of its thread, and sees nothing of a new one under the same name."""
    with daemon.client(retry_timeout=TIMEOUT_S) as client:
        thread = client.thread("short")
        thread.append("log", 1)
        watch = thread.watch(after_sequence=0)
        assert next(watch).checkpoint.version == 1
        cursor = thread.watch(after_sequence=0)
        last = next(cursor).cursor
        cursor.close()
        namespace = Collector(client.watch, lambda seen: len(seen) == 2)
        thread.delete()
        thread.append("log", "another one")
        if is_killed:
            daemon.kill()
            daemon.start()
        assert [(event.kind, event.what) for event in watch] == [("deleted", "request")]
        assert [event.kind for event in namespace.finish()] == ["deleted", "checkpoint"]
        assert len({event.uid for event in namespace.seen}) == 2
        with thread.watch(after_cursor=last) as again:
            assert [event.kind for event in again] == ["deleted"]
        with pytest.raises(ThreadNotFound), client.thread("never").watch(after_sequence=0) as none:
            next(none)


def test_diffs_come_with_the_events_that_ask_for_them(daemon: Daemon) -> None:
    """With include_diff the events alone are enough to follow a state."""
    total = WRITERS * 40 + 1
    with daemon.client() as client:
        thread = client.thread("followed")
        thread.append("log", "first")
        collector = Collector(
            lambda: thread.watch(after_sequence=0, include_diff=True), lambda seen: len(seen) == total
        )
        write(daemon, ["followed"], saves=40)
        followed = [entry for event in collector.finish() for change in event.changes or () for entry in change.entries]
        assert followed == list(thread.hydrate().logs["log"])
