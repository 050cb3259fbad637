"""Hostile clients of the local wire: what no client sends, each for some seconds, beside a caller who behaves.

    python -m tests.soak.hostile_frames ATTACK SOCKET SIZE

runs one of ``ATTACKS`` with SOCKET, that of gRPC, as `tests.soak.hostile` does with its own.
"""

from __future__ import annotations

import itertools
import os
import resource
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress

from tests.daemon.framed import CANCEL, HEAD, REQUEST, FramedConnection, FramesGone, FramesRefused
from tests.soak.hostile import MIB, append

from stateward.v1.checkpoint_service_pb2 import HydrateRequest

LASTS_S, LEAST_S = 8.0, 0.2
CONNECTIONS, PROCESSES = 2000, 4
SAVE, HYDRATE = "stateward.v1.CheckpointService.Save", "stateward.v1.CheckpointService.Hydrate"
# What a peer meets that is sent away, or that is not read.
SENT_AWAY = (OSError, FramesGone, FramesRefused)


class FramesAttack:
    """One hostile client, or a crowd of them."""

    def __init__(self, path: str, size: float) -> None:
        self.grpc_path, self.path, self.size = path, f"{path}~", size
        self._until_s = time.monotonic() + max(LASTS_S * size, LEAST_S)

    def count(self, count: int) -> int:
        return max(int(count * self.size), 2)

    def tries(self) -> Iterator[int]:
        """Once at least, and until the time is over."""
        for number in itertools.count():
            yield number
            if time.monotonic() > self._until_s:
                return

    def greeted(self, timeout_s: float = 5.0) -> FramedConnection:
        made = FramedConnection(self.path)
        made.socket.settimeout(timeout_s)
        return made

    def hold(self) -> None:
        time.sleep(max(self._until_s - time.monotonic(), 0))

    def send_each(self, data: Callable[[FramedConnection], bytes]) -> None:
        """Connects, sends this, and reads until it is sent away, again and again."""
        for _ in self.tries():
            with suppress(*SENT_AWAY), self.greeted(0.5) as made:
                made.socket.sendall(data(made))
                while True:
                    made.receive()

    def heads_of_four_gib(self) -> None:
        """Each answer says that it is too large; of its body comes a little."""
        self.send_each(lambda made: HEAD.pack(0xFFFFFFFF, 1, REQUEST, 0, made.numbers[SAVE], 0) + bytes(MIB))

    def half_messages(self) -> None:
        with ExitStack() as stack:
            for _ in range(self.count(100)):
                with suppress(*SENT_AWAY):
                    made = stack.enter_context(self.greeted(0.05))
                    made.socket.sendall(HEAD.pack(16 * MIB, 1, REQUEST, 0, made.numbers[SAVE], 0) + bytes(MIB))
                    made.socket.sendall(bytes(8 * MIB))
            self.hold()

    def unread_answers(self) -> None:
        """Large ones, and small ones without end."""
        large = HydrateRequest(thread="large", max_bytes=64 * MIB).SerializeToString()
        small = HydrateRequest(thread="history", max_bytes=64 * MIB).SerializeToString()
        with ExitStack() as stack:
            for number in range(self.count(40)):
                made = stack.enter_context(self.greeted(0.2))
                with suppress(TimeoutError):
                    for call in range(1, 500):
                        made.ask(HYDRATE, small if number % 2 else large, call)
            self.hold()

    def connections(self) -> None:
        """From four processes: two thousand together, at once, greeted or silent."""
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 2 * CONNECTIONS)), hard))
        children = [pid for _ in range(PROCESSES) if (pid := self._fork(self._crowd))]
        for pid in children:
            os.waitpid(pid, 0)

    def _crowd(self) -> None:
        with ExitStack() as stack:
            for number in range(self.count(CONNECTIONS // PROCESSES)):
                with suppress(*SENT_AWAY):
                    if number % 4:
                        stack.enter_context(self.greeted())
                    else:
                        silent = stack.enter_context(socket.socket(socket.AF_UNIX))
                        silent.settimeout(5.0)
                        silent.connect(self.path)
            self.hold()

    @staticmethod
    def _fork(work: Callable[[], None]) -> int:
        pid = os.fork()
        if not pid:
            try:
                work()
            finally:
                os._exit(0)
        return pid

    def numbers_used_twice(self) -> None:
        ask = HydrateRequest(thread="history", max_bytes=64 * MIB).SerializeToString()
        self.send_each(lambda made: 2 * (HEAD.pack(len(ask), 7, REQUEST, 0, made.numbers[HYDRATE], 0) + ask))

    def cancels(self) -> None:
        """Of what is not there, and of what has just begun."""
        save = append("cancelled", "once").SerializeToString()
        for _ in self.tries():
            with suppress(*SENT_AWAY), self.greeted(0.5) as made:
                for call in range(1, 2000):
                    made.socket.sendall(
                        HEAD.pack(0, call + 1, CANCEL, 0, 0, 0)
                        + HEAD.pack(len(save), call, REQUEST, 0, made.numbers[SAVE], 0) + save
                        + HEAD.pack(0, call, CANCEL, 0, 0, 0)
                    )  # fmt: skip

    def noise(self) -> None:
        """Before the greeting and behind it."""
        for number in self.tries():
            with suppress(*SENT_AWAY):
                if number % 2:
                    with self.greeted(0.5) as made:
                        made.socket.sendall(os.urandom(100_000))
                else:
                    with socket.socket(socket.AF_UNIX) as plain:
                        plain.connect(self.path)
                        plain.sendall(os.urandom(100_000))

    def slow_bytes(self) -> None:
        """Of a small and of a large message, a byte at a time, on many connections."""
        with ExitStack() as stack:
            opened = [stack.enter_context(self.greeted()) for _ in range(self.count(300))]
            number = opened[0].numbers[SAVE]
            frames = [HEAD.pack(size, 1, REQUEST, 0, number, 0) + bytes(50) for size in (60_000, 4 * MIB)]
            for at in self.tries():
                for each, frame in zip(opened, itertools.cycle(frames), strict=False):
                    with suppress(*SENT_AWAY):
                        each.socket.sendall(frame[at : at + 1] or b"\0")
                time.sleep(1.0 if self.size == 1 else 0.02)

    def stopped_peers(self) -> None:
        """Processes that stand still in the middle of a frame, with calls whose answers they owe to read."""
        children = [
            subprocess.Popen(
                [sys.executable, "-m", "tests.soak.hostile_frames", "_stop", self.grpc_path, str(self.size)],
                stdout=subprocess.PIPE, text=True,
            )
            for _ in range(self.count(8))
        ]  # fmt: skip
        try:
            for each in children:
                assert each.stdout is not None
                each.stdout.readline()
            self.hold()
        finally:
            for each in children:
                each.kill()
                each.communicate()

    def _stop(self) -> None:
        ask = HydrateRequest(thread="large", max_bytes=64 * MIB).SerializeToString()
        opened = [self.greeted() for _ in range(5)]
        for each in opened:
            each.ask(HYDRATE, ask, 1)
            each.socket.sendall(HEAD.pack(100, 2, REQUEST, 0, each.numbers[HYDRATE], 0) + bytes(50))
        print("stops", flush=True)
        os.kill(os.getpid(), signal.SIGSTOP)


ATTACKS = (
    "heads_of_four_gib", "half_messages", "unread_answers", "connections", "numbers_used_twice", "cancels", "noise",
    "slow_bytes", "stopped_peers",
)  # fmt: skip


if __name__ == "__main__":
    getattr(FramesAttack(sys.argv[2], float(sys.argv[3])), sys.argv[1])()
