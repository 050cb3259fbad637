"""The danger: a signal comes while a streaming call begins, and the client can never be closed again."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import grpc._channel
import pytest

from stateward import Client
from stateward.testing import Daemon
from stateward.transfer import ThreadUpload

CLOSE_S = 30.0
CALLS: dict[str, Callable[[Client], Any]] = {
    "history": lambda client: next(client.thread("t").history()),
    "writer": lambda client: client.thread("t").writer().__enter__(),
    "restore": lambda client: ThreadUpload(client, "copy", "request"),
    "blob": lambda client: client.thread("t").blobs.write(b"x" * 100_000),
}


@pytest.mark.parametrize("what", CALLS)
def test_a_signal_before_grpc_has_a_thread_for_the_call(
    real_daemon: Daemon | str, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    """KeyboardInterrupt reaches the program, and the client is closed all the same."""
    if isinstance(real_daemon, str):
        pytest.skip(real_daemon)
    monkeypatch.setenv("STATEWARD_WIRE", "grpc")
    start, states = grpc._channel._run_channel_spin_thread, list[Any]()

    def interrupted(state: Any) -> None:
        states.append(state)
        if len(states) == 1:
            os.kill(os.getpid(), signal.SIGINT)
        start(state)

    client = Client(real_daemon.target, namespace=f"interrupted {what}")
    client.thread("t").append("l", 1)
    monkeypatch.setattr(grpc._channel, "_run_channel_spin_thread", interrupted)
    with pytest.raises(KeyboardInterrupt):
        CALLS[what](client)
    closing = threading.Thread(target=client.close, daemon=True)
    closing.start()
    closing.join(CLOSE_S)
    is_closed = not closing.is_alive()
    if not is_closed:
        start(states[0])  # else the process would wait for ever, too
    assert is_closed
