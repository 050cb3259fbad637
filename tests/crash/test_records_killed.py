"""The danger: a kill loses a record that was answered, applies a write twice, or brings back what was replaced."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from stateward import Client, Delete, Put, RecordConflict
from stateward.testing import Daemon, run_daemon

KEYS = [f"k/{number:02}" for number in range(24)]
KILLS = 5


class Writer(threading.Thread):
    """Replaces and deletes records of its own scope, and counts in a record that it shares with others."""

    def __init__(self, daemon: Daemon, name: str, over: threading.Event) -> None:
        super().__init__()
        self.model = dict[str, bytes]()
        self.counted = 0
        self.errors: list[BaseException] = []
        self._over, self._client, self._dice = over, Client(daemon.target, retry_timeout=60), random.Random(name)
        self._own, self._shared = self._client.records(name), self._client.records("shared")

    def run(self) -> None:
        try:
            while not self._over.is_set():
                self._replace()
                self._count()
        except BaseException as error:  # noqa: BLE001  (the test raises it)
            self.errors.append(error)

    def _replace(self) -> None:
        """All or none of these: what was answered is kept, and each retry is applied once."""
        chosen = self._dice.sample(KEYS, 3)
        written = {key: self._dice.randbytes(6000) for key in chosen[:2]}
        self._own.write([*(Put(key, data) for key, data in written.items()), Delete(chosen[2])])
        self.model |= written
        self.model.pop(chosen[2], None)

    def _count(self) -> None:
        """A compare-and-swap that others race for. A retry of the winner finds that it has won."""
        while True:
            found = self._shared.get("count")
            number, revision = (found.value, found.revision) if found is not None else (0, 0)
            try:
                self._shared.put("count", number + 1, expected=revision)
            except RecordConflict:
                continue
            self.counted += 1
            return

    def check(self) -> None:
        """Raises what went wrong, and compares the scope with what was answered."""
        for error in self.errors:
            raise error
        assert {each.key: each.value for each in self._own.list()} == self.model
        self._client.close()


@pytest.mark.slow
def test_what_was_answered_is_kept() -> None:
    """Three writers, five kills, and moves between them: every scope is what its writer was told, and nothing is
    counted twice."""
    over, dice = threading.Event(), random.Random(os.getpid())
    with run_daemon() as daemon:
        writers = [Writer(daemon, f"scope-{number}", over) for number in range(3)]
        for writer in writers:
            writer.start()
        for _ in range(KILLS):
            time.sleep(dice.uniform(0.4, 1.0))
            daemon.kill()
            daemon.start()
        time.sleep(0.5)
        over.set()
        for writer in writers:
            writer.join(60)
        with Client(daemon.target) as client:
            for writer in writers:
                writer.check()
            assert client.records("shared").get("count").value == sum(writer.counted for writer in writers)
            assert [each.finding for each in client.verify() if each.finding] == []
            sizes = [client.thread(f"scope-{number}").info() for number in range(3)]
            assert all(each.stored_bytes < 3 * each.record_bytes + (1 << 20) for each in sizes)
