"""The danger: a wait with a limit that lasts as long as its calls, where the daemon says nothing."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest

from stateward._operations.signals import AnswerReader
from stateward._operations.steps import Pause, ThreadRef
from stateward.testing import Daemon, missing_daemon, run_daemon

TIMEOUT_S = 0.6
# What a machine with other work to do may need on top. One call may last for a minute.
SLACK_S = 15.0


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    if reason := missing_daemon():
        pytest.skip(reason)
    with run_daemon() as running:
        yield running


@pytest.mark.parametrize("is_told", [True, False], ids=["told-what", "asks-what"])
@pytest.mark.parametrize("how", ["stopped", "dead"])
def test_the_daemon_is_silent(daemon: Daemon, open_client: Any, how: str, is_told: bool) -> None:
    """It is a TimeoutError when the time is over, whether the daemon hangs or is gone, and also where not even the
    question can be read."""
    client = open_client(daemon.target)
    thread = client.thread("t")
    wait_id = thread.ask(thread.hydrate(), "ok?")
    if how == "stopped":
        os.kill(daemon.pid, signal.SIGSTOP)
    else:
        daemon.kill()
    begun = time.monotonic()
    with pytest.raises(TimeoutError, match=r"within 0\.6 s"):
        thread.wait_for_answer(wait_id if is_told else None, timeout=TIMEOUT_S)
    assert TIMEOUT_S - 0.1 < time.monotonic() - begun < TIMEOUT_S + SLACK_S


def test_a_long_pause(daemon: Daemon) -> None:
    """A pause before the next try, however long the daemon asks for, ends with the wait."""
    with daemon.client() as client:
        begun = time.monotonic()
        reader = AnswerReader(ThreadRef("default", "t", "main"), "w")
        stream = client._session.open(reader, until=begun + 0.05)
        stream._perform(Pause(60.0))
        assert time.monotonic() - begun < 0.05 + SLACK_S


def test_no_time_at_all(daemon: Daemon) -> None:
    """With a timeout of 0 the blocking client still finds an answer that is there."""
    with daemon.client() as client:
        thread = client.thread("t")
        wait_id = thread.ask(thread.hydrate(), "ok?")
        with pytest.raises(TimeoutError):
            thread.wait_for_answer(timeout=0)
        sent = client.thread("t").approve()
        assert thread.wait_for_answer(wait_id, timeout=0) == sent
        assert thread.wait_for_answer(timeout=0) == sent
