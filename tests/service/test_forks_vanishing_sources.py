"""The danger: a fork of a thread that is deleted meanwhile is a copy with holes, or says that the thread is damaged."""

from __future__ import annotations

import random
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from stateward import Client
from stateward.errors import ThreadNotFound
from stateward.testing import run_daemon

VERSIONS = 30
ROUNDS = 25


def make(client: Client, name: str) -> None:
    """A thread with some versions, quickly."""
    thread = client.thread(name)
    for number in range(VERSIONS):
        thread.append("log", {"number": number, "text": "x" * 500})


@pytest.mark.parametrize("whole", [True, False], ids=["whole", "one version"])
def test_a_fork_of_a_thread_that_is_being_deleted(whole: bool) -> None:
    """The copy is complete or was never made, and the error is THREAD_NOT_FOUND."""
    dice, outcomes = random.Random(3), set()
    with run_daemon(log_level="warning") as daemon, daemon.client() as client, ThreadPoolExecutor(1) as pool:
        make(client, "undisturbed")
        started = time.monotonic()
        client.thread("undisturbed").fork("its copy", all_versions=whole)
        took = time.monotonic() - started  # a busy machine needs longer
        for number in range(ROUNDS):
            source, copy = f"source-{number}", f"copy-{number}"
            make(client, source)
            forked = pool.submit(client.thread(source).fork, copy, all_versions=whole)
            with suppress(TimeoutError):
                forked.result(timeout=dice.uniform(0, 2 * took) if number else None)
            client.thread(source).delete()
            try:
                made = forked.result(timeout=20)
            except ThreadNotFound:
                outcomes.add("no such thread")
                with pytest.raises(ThreadNotFound):
                    client.thread(copy).hydrate(must_exist=True)
            else:
                outcomes.add("made")
                assert len(made.hydrate().logs["log"]) == VERSIONS
                assert len(list(made.checkpoints.list())) == (VERSIONS if whole else 1)
        assert [each.finding for each in client.verify() if each.finding] == []
        assert '"CORRUPT"' not in daemon.stderr
    assert outcomes == {"no such thread", "made"} or not whole
