"""The danger: a kill during a compaction loses an answered save, or leaves bytes of deleted threads for ever."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
from tests.crash.faulty_daemon import FaultyDaemon
from tests.daemon.process import eventually
from tests.end_to_end.recorded import verify_everything

from stateward import Client
from stateward.errors import StatewardError

PLACES = [
    "<storage.compaction:Compactor._open_copy",
    ">storage.compaction:Compactor._open_copy",
    ">storage.compaction:Compactor._catch_up",
    ">storage.compaction:Compactor._finish",
    ">storage.compaction:Compactor._link_old",
    ">storage.compaction:Compactor._rename",
    "<storage.compaction:Compactor._make_durable",
    ">storage.compaction:Compactor._switch",
    "<storage.compaction:Compactor._end_former",
    ">storage.compaction:Compactor._end_former",
]
DELETED = 20


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[FaultyDaemon]:
    """A daemon with an archive, not started."""
    short = Path("/tmp", f"sw-{os.getpid()}-{abs(hash(tmp_path)) % 10**6}")
    short.mkdir(mode=0o700)
    archive = f"file://{tmp_path / 'bucket'}"
    daemon = FaultyDaemon(short, tmp_path / "data", archive=archive, log_level="warning", archive_interval="0.1")
    try:
        yield daemon
    finally:
        daemon.kill()


class Saver(threading.Thread):
    """Appends one number after the other, and remembers which of them was answered last."""

    def __init__(self, target: str) -> None:
        super().__init__()
        self.answered = 0
        self._target = target

    def run(self) -> None:
        """Ends with the daemon."""
        with suppress(StatewardError), Client(self._target, retry_timeout=0.0) as client:
            for number in range(1, 1_000_000):
                client.thread("busy").append("log", number, request_id=f"busy{number}")
                self.answered = number


@pytest.mark.parametrize("where", PLACES)
def test_what_was_answered_is_there(daemon: FaultyDaemon, where: str) -> None:
    """Wherever it is killed: all answered saves are there, nothing is damaged, and no file of the compaction stays."""
    daemon.start_faulty(where, 1)
    with daemon.client(retry_timeout=0.0) as client:
        client.thread("kept").append("log", "kept", request_id="kept")
        for number in range(DELETED):
            client.thread(f"gone-{number}").append("log", os.urandom(20_000).hex(), request_id=str(number))
            client.thread(f"gone-{number}").delete()
        saver = Saver(daemon.target)
        saver.start()
        eventually(lambda: saver.answered > 5)
        with suppress(StatewardError):
            client.compact()
        daemon.wait_until_dead()
        saver.join()
    daemon.start()
    data = daemon.data_dir
    eventually(lambda: not [path for path in data.iterdir() if path.name.startswith((".fresh-", ".old-"))])
    with daemon.client() as client:
        assert client.thread("kept").hydrate().logs["log"] == ["kept"]
        found = list(client.thread("busy").hydrate().logs["log"])
        assert found == list(range(1, len(found) + 1))
        assert len(found) in (saver.answered, saver.answered + 1)
        assert verify_everything(daemon)[1] == []
        client.thread("busy").append("log", "after", request_id="after", durability="archived")
        assert client.compact().old_file_removed
        assert verify_everything(daemon)[1] == []
