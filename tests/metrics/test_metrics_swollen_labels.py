"""The danger: metrics that grow with use until they cost more than what they watch, or that tell what is sealed."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
from tests.metrics.scraped import ANY_PORT, find_url, scrape, scrape_until

from stateward import errors
from stateward.testing import run_daemon

LABELS = {
    "build_info": {"version", "format"}, "call_duration_seconds": {"method", "code"}, "not_ready": {"cause"},
    "refusals_total": {"reason"}, "frame_duration_seconds": {"outcome"}, "sync_duration_seconds": {"file"},
    "limit_refusals_total": {"limit"}, "denied_calls_total": {"method"}, "calls_total": {"wire"},
    "connections": {"wire"}, "waiting_calls": {"line"}, "cache_looks_total": {"kind", "result"},
    "bucket_request_duration_seconds": {"operation"},
    "bucket_errors_total": {"operation", "kind"},
}  # fmt: skip


def test_threads_make_no_series() -> None:
    """Fifty threads of ten namespaces have the series of one, and no name of theirs is in a scrape."""

    def work(number: int) -> None:
        with daemon.client(namespace=f"secret-tenant-{number % 10}") as client:
            thread = client.thread(f"secret-thread-{number}")
            state = thread.hydrate()
            state.slots["secret-slot"] = number
            thread.save(state, labels={"secret-label": str(number)})
            with pytest.raises(errors.VersionNotFound):
                thread.hydrate(at=99)

    with run_daemon(metrics=ANY_PORT) as daemon:
        work(0)
        before = scrape_until(daemon, lambda now: "stateward_threads" in now.names)  # the first census is over
        for number in range(1, 50):
            work(number)
        after = scrape(daemon)
    assert "secret" not in after.text
    assert after.values.keys() - before.values.keys() == set()


def test_labels_are_the_documented_ones() -> None:
    """No series has a label that is not in the list above, least of all a thread's or a process's."""
    with run_daemon(metrics=ANY_PORT) as daemon:
        found = scrape(daemon)
    for name, labels in found.values:
        family = re.sub(r"_(bucket|count|sum)$", "", name.removeprefix("stateward_"))
        assert {label for label, _ in labels} - {"le"} == LABELS.get(family, set()), name


def test_nobody_pays_who_does_not_ask() -> None:
    """A daemon without --metrics loads nothing of them, and its parts have nothing to measure with."""
    look = "print(*(each for each in sys.modules if 'prometheus' in each or '.metrics' in each))"
    program = f"import sys, stateward_sidecar.app; {look}"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.split() == []
    with run_daemon() as daemon, pytest.raises(KeyError):
        find_url(daemon)
