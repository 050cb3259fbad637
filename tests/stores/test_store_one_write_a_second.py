"""The danger: Google takes one write a second of each object, so that saves wait for refusals, or the archive lags."""

from __future__ import annotations

import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from tests.bucket.gcs import gcs_environment
from tests.bucket.gcs_front import Front
from tests.daemon.process import Fleet

from stateward import Client, Durability

INTERVAL_S = 1.0
FLAGS = {"archive_interval": str(INTERVAL_S), "archive_lease": "10"}

pytestmark = pytest.mark.slow


@pytest.fixture
def strict(gcs_front: Front, alone: None, monkeypatch: pytest.MonkeyPatch) -> Iterator[Front]:
    """The limit is enforced, and the environment points at the store."""
    for name, value in gcs_environment(gcs_front.url).items():
        monkeypatch.setenv(name, value)
    gcs_front.one_a_second = True
    gcs_front.answers.clear()
    gcs_front.written.clear()
    yield gcs_front
    gcs_front.one_a_second = False


@pytest.fixture
def client(strict: Front, machines_at: Callable[..., Fleet]) -> Client:
    machines = machines_at(f"gs://stateward/{secrets.token_hex(6)}", **FLAGS)
    return machines.client(machines.machine("first"))


def test_archived_saves_in_a_row(client: Client, strict: Front) -> None:
    """Twenty ARCHIVED saves to one thread succeed, with fewer than one 429 a save."""
    thread = client.thread("job")
    for number in range(20):
        thread.append("log", number, durability=Durability.ARCHIVED)
    assert len(thread.hydrate().logs["log"]) == 20
    print("429s:", strict.answers["PUT", 429])
    assert strict.answers["PUT", 429] < 20


def test_saves_that_come_together_share_a_head(client: Client, strict: Front) -> None:
    """Eight callers wait for the bucket at the same time: the second write of HEAD carries what came meanwhile."""
    thread = client.thread("crowd")
    thread.append("log", "first", durability=Durability.ARCHIVED)

    def append(number: int) -> None:
        for _ in range(3):
            thread.append("log", number, durability=Durability.ARCHIVED)

    callers = [threading.Thread(target=append, args=(number,)) for number in range(8)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert len(thread.hydrate().logs["log"]) == 25
    heads = max(count for name, count in strict.written.items() if name.endswith("/HEAD"))
    print("heads:", heads, "429s:", strict.answers["PUT", 429])
    assert heads <= 12
    assert strict.answers["PUT", 429] < 5


def test_a_busy_thread_lags_less_than_two_intervals(client: Client, strict: Front) -> None:
    """A thread with five saves a second is behind the bucket by less than two intervals, as a rule."""
    thread = client.thread("busy")
    thread.append("log", 0, durability=Durability.ARCHIVED)
    lags: list[float] = []
    began = time.monotonic()
    for number in range(50):
        thread.append("log", number)
        time.sleep(0.2)
        lag = client.archive.status().stats.lag
        lags.append(lag.total_seconds() if lag is not None else 0.0)
    slowness = (time.monotonic() - began) / (50 * 0.2)  # of this machine
    print("lag:", statistics.median(lags), max(lags), "slowness:", slowness, "429s:", strict.answers["PUT", 429])
    assert statistics.median(lags) < 2 * INTERVAL_S * slowness
    assert strict.answers["PUT", 429] < 5
