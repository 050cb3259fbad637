"""Two sidecars, a bucket and bad luck, against what is true: `tests/archive_model` for as long as there is time."""

from __future__ import annotations

import logging
import time
import traceback
from collections import Counter
from collections.abc import Callable
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis.stateful import run_state_machine_as_test
from tests.archive_model.stage import TOTALS
from tests.archive_model.test_archive_model import Rules
from tests.daemon import small

# Histories that are tried under one seed, and steps of each: about a quarter of a minute.
HISTORIES, STEPS = 100, 40


def run_histories(
    directory: Path, minutes: float, number: int, table: Counter[str], findings: list[str], say: Callable[[str], None]
) -> None:
    """Tries histories under one seed after the other. The first finding ends it: it would be found again."""
    end, number = time.monotonic() + minutes * 60, number * 1000
    logging.getLogger("stateward").setLevel(logging.CRITICAL + 1)  # what goes wrong is meant to
    begun = 0.0
    try:
        while time.monotonic() < end and not findings:
            if time.monotonic() - begun > 60:
                begun = time.monotonic()
                say(f"{TOTALS['archive histories tried']:,} histories of two sidecars and a bucket")
            finding = try_histories(number, HISTORIES)
            if finding:
                report = directory / f"history-{number}.txt"
                report.write_text(finding)
                story = finding[finding.rfind("state = ") :] if "state = " in finding else finding
                findings.append(f"seed {number} of the histories; {report} says all\n{story}")
            number += 1
    finally:
        small.restore()
        logging.getLogger("stateward").setLevel(logging.NOTSET)
    table.update(TOTALS)


def try_histories(number: int, count: int, *, shrinks: bool = True) -> str:
    """What was found under a seed: the error, and the shortest history that leads to it (without ``shrinks`` the first
    one); empty = nothing."""

    class Seeded(Rules):
        """A class of its own, since the seed is noted on it."""

    seed(number)(Seeded)
    how = settings(
        max_examples=count, stateful_step_count=STEPS, deadline=None, database=None, print_blob=True,
        suppress_health_check=list(HealthCheck), report_multiple_bugs=False,
        phases=(Phase.generate, Phase.shrink) if shrinks else (Phase.generate,),
    )  # fmt: skip
    printed = StringIO()
    try:
        with redirect_stdout(printed):
            run_state_machine_as_test(Seeded, settings=how)
    except Exception as error:  # noqa: BLE001  (whatever it is, it is a finding)
        return "".join(traceback.format_exception(error)) + printed.getvalue()
    return ""
