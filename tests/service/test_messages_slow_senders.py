"""The danger: clients that send most of a large message and then nothing more, until there is no memory left."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import grpc
import pytest
from tests.daemon.process import eventually

from stateward._operations.failures import error_from_rpc as explain
from stateward.errors import QueueFull
from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.diff_pb2 import Diff, Edit, SetSlot
from stateward.v1.state_pb2 import Value
from stateward.v1.write_pb2 import WriteOptions

SENDERS, BYTES, SENT_BYTES = 8, 52 << 20, 50 << 20
# Without a bound they take 480 MiB and more; with it as many as fit into the budget for requests.
TAKEN_BYTES_MAX = 330 << 20
SLOW_AFTER_S = 1.1
OPTIONS = (("grpc.max_send_message_length", -1), ("grpc.use_local_subchannel_pool", 1))


class Strait:
    """A way to the daemon on which so many bytes arrive, and then nothing more."""

    def __init__(self, path: Path, daemon: Path) -> None:
        self.path = path
        self._daemon = daemon
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(path))
        self._listener.listen()
        self._ends = [self._listener]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        with suppress(OSError):
            near, _ = self._listener.accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(str(self._daemon))
            self._ends += [near, far]
            threading.Thread(target=self._answer, args=(near, far), daemon=True).start()
            left = SENT_BYTES
            while left > 0 and (data := near.recv(min(left, 1 << 18))):
                far.sendall(data)
                left -= len(data)
            while near.recv(1 << 18):
                """The rest is lost."""

    @staticmethod
    def _answer(near: socket.socket, far: socket.socket) -> None:
        with suppress(OSError):
            while data := far.recv(1 << 18):
                near.sendall(data)

    def close(self) -> None:
        for end in self._ends:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)  # wakes who reads
            end.close()


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with run_daemon(memory_limit="512MiB") as running:
        yield running


def own_bytes(pid: int) -> int:
    line = next(line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("RssAnon"))
    return int(line.split()[1]) << 10


@pytest.mark.slow
def test_what_they_sent_is_bounded_and_hinders_nobody(daemon: Daemon, tmp_path: Path) -> None:
    """The oldest are refused in words as soon as others need the memory; a save beside them is answered at once."""
    edits = [Edit(set_slot=SetSlot(slot="s", value=Value(data=bytes(BYTES))))]
    data = SaveRequest(
        thread="slow", options=WriteOptions(request_id="slow"), diff=Diff(edits=edits)
    ).SerializeToString()
    with ExitStack() as stack, daemon.client() as client:
        calls = []
        for number in range(SENDERS):
            strait = Strait(tmp_path / str(number), daemon.socket)
            channel = stack.enter_context(grpc.insecure_channel(f"unix:{strait.path}", OPTIONS))
            stack.callback(strait.close)  # before its channel, which would wait for what it cannot send
            save = channel.unary_unary("/stateward.v1.CheckpointService/Save")
            calls.append(save.future(data, timeout=60))
            time.sleep(SLOW_AFTER_S)
        begun = time.monotonic()
        client.thread("t").append("log", 1)
        assert time.monotonic() - begun < SLOW_AFTER_S
        assert own_bytes(daemon.pid) < TAKEN_BYTES_MAX
        eventually(calls[0].done)
        refused = [call for call in calls if call.done()]
        assert calls[-1] not in refused
        for call in refused:
            error = call.exception()
            found = explain(error.code().name, error.details(), error.trailing_metadata())
            assert isinstance(found, QueueFull)
        assert client.thread("t").hydrate().version == 1
