"""`stateward.open()` beside `Client()` and a daemon that was started by hand: to the first answer."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from unittest.mock import patch

from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.report import Section
from tests.bench.sections import Effort

import stateward
from stateward import Client
from stateward.opening.places import find_place
from stateward.opening.stopping import stop_daemon
from stateward.testing import Daemon

BY_HAND, BY_OPEN = "Client()", "stateward.open()"
RUNS, COLD = "a daemon runs", "no daemon runs"
REPETITIONS, QUICK_REPETITIONS = 5, 1
CALLS = 40
END_S = 30.0


def measure(field: Field, _payload: Payload, effort: Effort) -> Iterator[Section]:
    """In turn, so that a noisy machine hits both; medians."""
    section = Section("open", "to the first answer of a client")
    with field.own_daemon("open") as daemon, _own_home(field, daemon):
        ways = (lambda: Client(daemon.target), lambda: stateward.open(data_dir=daemon.data_dir))
        times = [[_answered(way) for way in ways] for _ in range(4 if effort.quick else CALLS)]
        _add(section, RUNS, times)
        cold = [_start_both(daemon) for _ in range(QUICK_REPETITIONS if effort.quick else REPETITIONS)]
        _add(section, COLD, cold)
    section.notes.append("without a daemon, the first row starts one with the command, and waits for its ready line")
    yield section


def _add(section: Section, case: str, times: list[list[float]]) -> None:
    by_hand, by_open = (statistics.median(each) for each in zip(*times, strict=True))
    section.add(f"stateward, {BY_HAND}", case, first_answer_s=by_hand)
    section.add(f"stateward, {BY_OPEN}", case, first_answer_s=by_open, x_by_hand=by_open / by_hand)


def _answered(make: Callable[[], Client]) -> float:
    begin = time.perf_counter()
    with make() as client:
        client.thread("nobody").hydrate()
        return time.perf_counter() - begin


def _start_both(daemon: Daemon) -> list[float]:
    """Seconds to the first answer, with a daemon that is started by hand, and by `open`."""
    daemon.stop()
    begin = time.perf_counter()
    daemon.start()
    by_hand = time.perf_counter() - begin + _answered(lambda: Client(daemon.target))
    daemon.stop()
    try:
        by_open = _answered(lambda: stateward.open(data_dir=daemon.data_dir, idle_exit=0))
    finally:
        stop_daemon(find_place(daemon.data_dir), END_S, kills=True)
        daemon.start()
    return [by_hand, by_open]


@contextmanager
def _own_home(field: Field, daemon: Daemon) -> Iterator[None]:
    """Nothing of the user's own: key, log and settings are the bench's."""
    variables = {name: value for name, value in os.environ.items() if not name.startswith(("STATEWARD_", "XDG_"))}
    variables |= {"HOME": str(field.work), "STATEWARD_KEY_FILE": str(daemon.key_file)}
    with patch.dict(os.environ, variables, clear=True):
        yield
