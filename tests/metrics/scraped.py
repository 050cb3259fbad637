"""A scrape of a daemon's metrics, as Prometheus would make it."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from stateward.testing import Daemon

ANY_PORT = "127.0.0.1:0"
WAIT_S = 10.0


def find_url(daemon: Daemon) -> str:
    """Where the last start of a daemon serves its metrics, by its log."""
    lines = [json.loads(line) for line in daemon.stderr.splitlines() if line.startswith("{")]
    return str(next(line["metrics"] for line in reversed(lines) if line["event"] == "ready"))


@dataclass(frozen=True)
class Scrape:
    """What one scrape has found."""

    text: str
    # By name of the series and its labels.
    values: dict[tuple[str, frozenset[tuple[str, str]]], float]
    # Names of families, with the suffixes that expressions use.
    names: frozenset[str]

    def __call__(self, name: str, **labels: str) -> float:
        """The sum of the series with these labels; fails if there is none."""
        wanted = set(labels.items())
        found = [value for (each, theirs), value in self.values.items() if each == name and wanted <= theirs]
        assert found, f"no series {name} {labels}"
        return sum(found)


def scrape(daemon: Daemon) -> Scrape:
    """Reads all series once."""
    with urllib.request.urlopen(find_url(daemon), timeout=10) as answer:
        text = answer.read().decode()
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    values = {(each.name, frozenset(each.labels.items())): each.value for each in samples}
    assert len(values) == len(samples)  # no series twice
    return Scrape(text, values, frozenset(each.name for each in samples))


def scrape_until(daemon: Daemon, is_right: Callable[[Scrape], bool]) -> Scrape:
    """Scrapes until something is so; fails if it never is."""
    end = time.monotonic() + WAIT_S
    while time.monotonic() < end:
        found = scrape(daemon)
        if is_right(found):
            return found
        time.sleep(0.05)
    raise AssertionError(found.text)
