"""The danger: the S3 server itself dies in mid-ship, and what it had taken is shipped twice, forked, or called lost."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.archive_faults.servers import Server, mortal_server
from tests.daemon.process import Fleet, eventually

from stateward import Client, Durability, errors

KILLS = 1
THREADS = 3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    """One of its own, which may die."""
    directory = tmp_path / "weed"
    directory.mkdir()
    with mortal_server(directory) as running:
        yield running


class Writer(threading.Thread):
    """Saves until it is stopped, every third time ARCHIVED, and keeps what it was answered."""

    def __init__(self, client: Client, name: str) -> None:
        super().__init__()
        self.name_of_thread = name
        self.committed = self.archived = 0
        self.wrong: list[BaseException] = []
        self._client = client
        self._ends = threading.Event()

    def run(self) -> None:
        try:
            state = self._client.thread(self.name_of_thread).hydrate()
            while not self._ends.wait(0.02):
                self._save(state)
        except BaseException as error:  # noqa: BLE001  (the test looks at it)
            self.wrong.append(error)

    def _save(self, state: object) -> None:
        number = self.committed + 1
        wanted = Durability.ARCHIVED if number % 3 == 0 else Durability.COMMITTED
        state.slots["count"] = number  # type: ignore[attr-defined]
        state.logs["messages"].append({"number": number, "text": "x" * 3000})  # type: ignore[attr-defined]
        thread = self._client.thread(self.name_of_thread)
        try:
            thread.save(state, durability=wanted)  # type: ignore[arg-type]
            self.archived = number if wanted is Durability.ARCHIVED else self.archived
        except errors.NotArchivedYet:
            pass  # saved here all the same
        except errors.ArchiveUnavailable:
            thread.save(state, durability=Durability.COMMITTED)  # type: ignore[arg-type]
        self.committed = number

    def end(self) -> None:
        self._ends.set()
        self.join()


@pytest.mark.slow
def test_server_killed_in_mid_ship(fleet_on_s3: Fleet, server: Server) -> None:
    """COMMITTED goes on while it is dead, no answer ARCHIVED is lost, no thread is called set back or fenced."""
    daemon = fleet_on_s3.machine_on("first", server.url)
    client = fleet_on_s3.client(daemon, call_timeout=3)
    writers = [Writer(client, f"job-{number}") for number in range(THREADS)]
    for writer in writers:
        writer.start()
    try:
        for _ in range(KILLS):
            shipped = client.stats().archive.heads
            eventually(lambda shipped=shipped: client.stats().archive.heads > shipped + 10)
            server.kill()
            before = [writer.committed for writer in writers]
            eventually(
                lambda before=before: all(w.wrong or w.committed > n for w, n in zip(writers, before, strict=True)), 20
            )
            server.start()
    finally:
        for writer in writers:
            writer.end()
    assert [writer.wrong for writer in writers] == [[]] * THREADS
    archived = {writer.name_of_thread: writer.archived for writer in writers}
    eventually(lambda: client.stats().archive.dirty_threads == 0)
    stats = client.stats().archive
    assert (stats.orphans, stats.rolled_back) == (0, 0)
    daemon.kill()
    other = fleet_on_s3.client(fleet_on_s3.machine_on("other", server.url))
    for writer in writers:
        state = other.thread(writer.name_of_thread).hydrate(must_exist=True)
        assert (
            state.slots["count"] == len(state.logs["messages"]) == writer.committed >= archived[writer.name_of_thread]
        )
        versions = [item.checkpoint.version for item in other.thread(writer.name_of_thread).history()]
        assert versions == list(range(1, writer.committed + 1))
