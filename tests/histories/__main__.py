"""Plays histories and checks them.

    python -m tests.histories --count 200 --seed 0
    python -m tests.histories --seed 1234 --count 1 --keep

Exit code 0: nothing is broken, 1: something is; its files are kept. 77: the checker cannot be built here.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import uuid
from collections import Counter
from pathlib import Path

from tests.histories.run import Verdict, run_many
from tests.histories.scenarios import SCENARIOS
from tests.processes import MARK


def main() -> int:
    """Runs the seeds, prints a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.histories", description="Checks histories of real daemons.")
    parser.add_argument("--count", type=int, default=20, help="how many histories (default: 20)")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6), help="the first seed (default: any)")
    parser.add_argument("--step", type=int, default=1, help=f"between seeds; {len(SCENARIOS)} stays in one scenario")
    parser.add_argument("--jobs", type=int, default=2, help="how many at a time (default: 2)")
    parser.add_argument("--counts", action="store_true", help="also print what was asked and answered")
    parser.add_argument("--directory", type=Path, help="where files of bad histories are kept (default: a new one)")
    options = parser.parse_args()
    directory = options.directory or Path(tempfile.mkdtemp(prefix="histories-"))
    directory.mkdir(parents=True, exist_ok=True)
    seeds = range(options.seed, options.seed + options.count * options.step, options.step)
    os.environ[MARK] = uuid.uuid4().hex  # by which all processes of this run are found
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")  # daemons are killed on purpose
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    begun = time.monotonic()
    verdicts, reason = run_many(seeds, directory, options.jobs, say)
    if reason:
        say(reason)
    report(verdicts, time.monotonic() - begun, counts=options.counts)
    if any(verdict.violations for verdict in verdicts):
        say(f"kept in {directory}")
        return 1
    shutil.rmtree(directory, ignore_errors=True)
    return 77 if reason and not verdicts else 0


def report(verdicts: list[Verdict], seconds: float, *, counts: bool) -> None:
    """A line for each scenario."""
    total = Counter[str]()
    for scenario in SCENARIOS:
        mine = [verdict for verdict in verdicts if verdict.name == scenario.name]
        bad = [verdict.seed for verdict in mine if verdict.violations]
        took = sum(verdict.seconds for verdict in mine) / max(len(mine), 1)
        operations = sum(verdict.counts["operations"] for verdict in mine)
        say(f"{scenario.name:>26}  {len(mine):4} histories, {operations:7,} operations, {took:5.1f} s each; bad: {bad}")
        for verdict in mine:
            total.update(verdict.counts)
    for name, number in sorted(total.items()) if counts else ():
        say(f"{number:>9,}  {name}")
    bad = sum(bool(verdict.violations) for verdict in verdicts)
    say(
        f"{len(verdicts)} histories, {total['operations']:,} operations, {total['copy']:,} copies, "
        f"{total['segments']:,} segments at the end, {bad} bad, {seconds:.0f} s"
    )


def say(text: str) -> None:
    """A line, at once."""
    print(time.strftime("%H:%M:%S ") + text, flush=True)


if __name__ == "__main__":
    sys.exit(main())
