"""Tries histories until one finds something or the time is over; prints what came of it, as JSON.

python -m tests.archive_model.mutants.search --minutes 5 --seed 1
"""

from __future__ import annotations

import argparse
import json
import logging
import sys
import time

from tests.archive_model.stage import TOTALS
from tests.soak.histories import try_histories

# Under one seed: so few that a search on a slow machine ends in its time.
HISTORIES = 10


def search(minutes: float, number: int) -> dict[str, object]:
    """The seed that found something and the error's own line; empty where nothing did. The history is not made short:
    that takes longer than to find it."""
    logging.getLogger("stateward").setLevel(logging.CRITICAL + 1)  # what goes wrong is meant to
    began, number, finding = time.monotonic(), number * 1000, ""
    while not finding and time.monotonic() - began < minutes * 60:
        finding = try_histories(number, HISTORIES, shrinks=False)
        number += 1
    return {
        "seed": number - 1,
        "histories": TOTALS["archive histories tried"],
        "seconds": time.monotonic() - began,
        "finding": first_line(finding),
        "story": finding,
    }


def first_line(finding: str) -> str:
    """What the error says: the first line after the stack of the innermost call."""
    lines = [
        line for line in finding.splitlines() if line and not line.startswith((" ", "Traceback", "During", "The "))
    ]
    return lines[0] if lines else ""


def main() -> int:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.archive_model.mutants.search")
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    print(json.dumps(search(options.minutes, options.seed)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
