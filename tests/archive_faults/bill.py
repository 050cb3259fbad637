"""Counts the requests that saves cost on a real S3 server: `python -m tests.archive_faults.bill`.

docs/operations.md has the table that this prints. Each row has one thread and messages of 2 KB. The requests are those
of the whole run, with the thread's first ship, its snapshots and what is packed later.
"""

from __future__ import annotations

import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from tests.archive_faults.gate import Gate, running_gate
from tests.bucket.weed import WeedMissing, make_s3_bucket, running_weed
from tests.daemon.process import Fleet, eventually, fleet, new_archive

MESSAGE = {"role": "assistant", "content": "x" * 2000}


@dataclass(frozen=True)
class Rhythm:
    """How an agent saves."""

    name: str
    saves: int
    every_s: float
    durability: str = "committed"
    interval: str = "1"


ROWS = (
    Rhythm("a save every 2 s", 100, 2.0),
    Rhythm("10 saves a second", 1000, 0.1),
    Rhythm("as fast as it can", 1000, 0.0),
    Rhythm("10 saves a second, `--archive-interval 10`", 1000, 0.1, interval="10"),
    Rhythm("each save waits for the bucket", 300, 0.0, durability="archived"),
)


def count(machines: Fleet, gate: Gate, rhythm: Rhythm) -> Counter[str]:
    """The requests of one run, by the class that providers price them in."""
    daemon = machines.machine_on("first", gate.url, patience_s=20, archive_interval=rhythm.interval)
    client = machines.client(daemon)
    client.thread("warm").append("log", 1, durability="archived")  # the archive and the namespace exist
    before = len(gate.requests)
    thread, begun = client.thread("run"), time.monotonic()
    for number in range(rhythm.saves):
        thread.append("messages", MESSAGE, durability=rhythm.durability)
        time.sleep(max(0.0, begun + (number + 1) * rhythm.every_s - time.monotonic()))
    eventually(lambda: client.stats().archive.dirty_threads == 0, 30)
    time.sleep(2)  # what is packed in the background
    # Providers price lists as they price writes.
    return Counter(
        "list" if "list-type" in request.path else request.kind.split()[0] for request in gate.requests[before:]
    )


def main() -> int:
    """Prints the table; 77 without the server."""
    chosen = sys.argv[1:]
    print("| one thread | saves | writes | reads | deletions | writes per 1,000 saves |")
    print("| --- " * 6 + "|", flush=True)
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        try:
            with running_weed(Path(folder)) as upstream, running_gate(upstream) as gate:
                make_s3_bucket(upstream, "stateward")
                for row in ROWS:
                    if chosen and not any(word in row.name for word in chosen):
                        continue
                    place = Path(tempfile.mkdtemp(dir=folder))
                    with fleet(place, new_archive()) as machines:
                        found = count(machines, gate, row)
                    reads = found["get"] + found["head"]
                    deletions = found["delete"]
                    writes = found.total() - reads - deletions
                    print(
                        f"| {row.name} | {row.saves} | {writes} | {reads} | {deletions} "
                        f"| {writes * 1000 / row.saves:,.0f} |",
                        flush=True,
                    )
        except WeedMissing as error:
            print(f"skipped: {error}", file=sys.stderr)
            return 77
    return 0


if __name__ == "__main__":
    sys.exit(main())
