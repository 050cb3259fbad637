"""The danger: two writers that both believe they won."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stateward_sidecar.bucket.base import Bucket, ObjectChanged, ObjectExists
from stateward_sidecar.bucket.directory import DirectoryBucket
from stateward_sidecar.bucket.retrying import RetryingBucket
from stateward_sidecar.clock import Clock

THREADS = 16
COUNTERS = 8
STEPS = 6


def test_one_winner(bucket: Bucket) -> None:
    """Of sixteen threads that create one name at once, one succeeds, and its bytes are there."""
    patient = RetryingBucket(bucket, Clock())  # a store may ask writers that race to come again
    for name in ("race/1", "race/2"):
        gate = threading.Barrier(THREADS)

        def create(number: int, name: str = name, gate: threading.Barrier = gate) -> bytes | None:
            body = f"writer {number}".encode()
            gate.wait()
            try:
                patient.create(name, body)
            except ObjectExists:
                return None
            return body

        with ThreadPoolExecutor(THREADS) as pool:
            winners = [body for body in pool.map(create, range(THREADS)) if body]
        assert winners == [bucket.get(name).data]


def count_up(bucket: Bucket, key: str, writer: str, steps: int) -> None:
    """Adds one at a time, again where somebody else was first."""
    for step in range(steps):
        while True:
            found = bucket.get(key)
            value = int(found.data.split()[0]) + 1
            try:
                bucket.replace(key, f"{value} {writer}-{step}".encode(), found.etag)
                break
            except ObjectChanged:
                continue


def test_no_lost_update(bucket: Bucket) -> None:
    """Eight threads that count by read and replace lose no step."""
    bucket.create("counter", b"0 start")
    patient = RetryingBucket(bucket, Clock())
    with ThreadPoolExecutor(COUNTERS) as pool:
        list(pool.map(lambda number: count_up(patient, "counter", str(number), STEPS), range(COUNTERS)))
    assert int(bucket.get("counter").data.split()[0]) == COUNTERS * STEPS


PROCESS = """
import sys
from pathlib import Path
from stateward_sidecar.bucket.directory import DirectoryBucket
from tests.bucket.test_bucket_races import count_up
count_up(DirectoryBucket(Path(sys.argv[1])), "d/counter", sys.argv[2], 40)
"""


def test_processes_share_a_directory(tmp_path: Path, repository: Path) -> None:
    """Two processes that count in one directory lose no step."""
    bucket = DirectoryBucket(tmp_path)
    bucket.create("d/counter", b"0 start")
    command = [sys.executable, "-c", PROCESS, str(tmp_path)]
    running = [subprocess.Popen([*command, name], cwd=repository) for name in ("one", "two")]
    assert [process.wait(timeout=60) for process in running] == [0, 0]
    assert int(bucket.get("d/counter").data.split()[0]) == 80


def test_etags_may_repeat(make_bucket: Callable[[str], Bucket]) -> None:
    """What write ids are for: when the same bytes come back, so does the etag, and a stale replace succeeds."""
    for kind in ("memory", "directory", "moto"):
        bucket = make_bucket(kind)
        first = bucket.create("HEAD", b"A")
        bucket.replace("HEAD", b"A", bucket.replace("HEAD", b"B", first))
        bucket.replace("HEAD", b"C", first)
        assert bucket.get("HEAD").data == b"C"
