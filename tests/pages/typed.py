"""The command `stateward` of a reader, with the reader's streams, directory and environment, begun warm.

    python -I -S tests/pages/typed.py SOCKET ARGUMENT…

gives all of that to the process of the tests that listens there, hands on signals, and ends as the command ends.
"""

import array
import json
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
EXIT_BY_SIGNAL = 128


def hand_over(path: str, arguments: list[str]) -> int:
    """Returns the exit code, as a shell names it."""
    request = {"arguments": arguments, "environment": dict(os.environ), "directory": os.getcwd()}  # noqa: PTH109
    data = json.dumps(request).encode()
    with socket.socket(socket.AF_UNIX) as there:
        there.connect(path)
        for number in FORWARDED:
            signal.signal(number, lambda number, _: there.sendall(bytes((number,))))
        there.sendall(len(data).to_bytes(4, "big"))
        streams = array.array("i", [0, 1, 2])
        there.sendmsg([data[:1]], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, streams)])
        there.sendall(data[1:])
        return there.recv(1)[0]


class Counter:
    """Begins the commands that are handed over. `begin` takes what `subprocess.Popen` takes."""

    def __init__(self, path: Path, begin: Callable[..., Any]) -> None:
        self._begin = begin
        self._socket = socket.socket(socket.AF_UNIX)
        self._socket.bind(str(path))
        self._socket.listen()
        self._thread = threading.Thread(target=self._accept)
        self._thread.start()

    def close(self) -> None:
        """Takes no more commands, and waits for the end of those that were taken."""
        self._socket.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._socket.close()

    def _accept(self) -> None:
        taken = []
        while True:
            try:
                there, _ = self._socket.accept()
            except OSError:
                break
            taken.append(threading.Thread(target=self._run, args=[there]))
            taken[-1].start()
        for each in taken:
            each.join()

    def _run(self, there: socket.socket) -> None:
        with there:
            size = int.from_bytes(there.recv(4, socket.MSG_WAITALL), "big")
            first, streams, _, _ = socket.recv_fds(there, 1, 3)
            request = json.loads(first + there.recv(size - 1, socket.MSG_WAITALL))
            process = self._begin(
                [sys.executable, "-m", "stateward.cli", *request["arguments"]],
                env=request["environment"], cwd=request["directory"],
                **dict(zip(("stdin", "stdout", "stderr"), streams, strict=True)),
            )  # fmt: skip
            for each in streams:
                os.close(each)
            listens = threading.Thread(target=self._forward, args=[there, process])
            listens.start()
            code = process.wait()
            with suppress(OSError):
                there.sendall(bytes((code if code >= 0 else EXIT_BY_SIGNAL - code,)))
                there.shutdown(socket.SHUT_RDWR)
            listens.join()

    def _forward(self, there: socket.socket, process: Any) -> None:
        """Signals of the one who typed, and a kill when it was killed."""
        with suppress(OSError):
            while number := there.recv(1):
                process.send_signal(number[0])
        process.kill()


if __name__ == "__main__":
    sys.exit(hand_over(sys.argv[1], sys.argv[2:]))
