"""An agent in a process of its own, whose files Stateward keeps: its memory is its own, too.

    python -m tests.bench.agent TARGET

Reads one JSON object a line, the name and the arguments of a method of `Works`, and answers with one.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from tests.bench.rounds import take_turns

from stateward import Client, Snapshot


class Works:
    """What the agent does when it is told to. Times are seconds."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._client = Client(target)
        self._client.server_info()  # what is imported late is there

    def open(self, thread: str, root: str) -> float:
        """Works on a directory from here on. Like a new process it knows of it only what is on the disk."""
        self._client.close()
        self._client = Client(self._target)
        self._client.server_info()
        self._thread = self._client.thread(thread)
        self._workspace = self._thread.workspace(root)
        self._taken: Snapshot | None = None
        return 0.0

    def keep(self) -> float:
        """Takes a snapshot and saves it."""
        begun = time.perf_counter()
        self._taken = self._workspace.snapshot()
        self.sent_bytes = self._taken.sent_bytes
        self._thread.append("messages", "kept", workspace=self._taken)
        return time.perf_counter() - begun

    def save(self, size_bytes: int) -> float:
        """Saves a message, without a snapshot. It compresses to half of its size."""
        text = os.urandom(size_bytes // 2).hex()
        begun = time.perf_counter()
        self._thread.append("messages", text)
        return time.perf_counter() - begun

    def restore(self, target: str) -> float:
        """Writes the files of the newest version into an empty directory."""
        begun = time.perf_counter()
        self._workspace.fork_into(target)
        return time.perf_counter() - begun

    def rewind(self, back: int) -> float:
        """Brings the directory to the files of so many versions ago."""
        version = self._thread.hydrate().version - back
        begun = time.perf_counter()
        self._workspace.plan(version).apply()
        return time.perf_counter() - begun

    def sent(self) -> int:
        """Returns how many bytes of objects the last snapshot sent."""
        return self.sent_bytes

    def saves(self, rounds: int) -> dict[str, Any]:
        """Saves in turn, with and without an unchanged tree, on two threads. Returns times, and bytes for a save."""
        assert self._taken is not None
        threads = {"plain": self._client.thread("plain"), "tree": self._client.thread(self._thread.name)}
        options: dict[str, Any] = {"plain": {}, "tree": {"workspace": self._taken}}
        for name, thread in threads.items():
            thread.append("messages", "begun", **options[name])
        before = {name: thread.info() for name, thread in threads.items()}

        def prepare(name: str) -> Any:
            text = "a message " * 40 + str(time.perf_counter())
            return lambda: threads[name].append("messages", text, **options[name])

        times = take_turns({name: partial(prepare, name) for name in threads}, rounds)
        found: dict[str, Any] = {}
        for name, thread in threads.items():
            after = thread.info()
            calls = after.version - before[name].version
            found[name] = {"times": times[name], "bytes": (after.stored_bytes - before[name].stored_bytes) / calls}
        return found


class Agent:
    """The running process, as the bench talks with it."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process
        self.pid = process.pid

    def do(self, name: str, **arguments: Any) -> Any:
        """Calls a method of `Works`. Raises RuntimeError with what it said if it ended."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([name, arguments]) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the agent ended while it did {name}, with {self._process.wait()}")
        return json.loads(line)


def environment(cache: Path) -> dict[str, str]:
    """Variables of a process that remembers below `cache` what it knows of directories."""
    cache.mkdir(exist_ok=True)
    return {**os.environ, "XDG_CACHE_HOME": str(cache)}


@contextmanager
def running(target: str, cache: Path) -> Iterator[Agent]:
    """Runs an agent that remembers below `cache` what it knows of directories."""
    command = [sys.executable, "-m", "tests.bench.agent", target]
    process = subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(cache),
        cwd=Path(__file__).resolve().parents[2], start_new_session=True,
    )  # fmt: skip
    try:
        yield Agent(process)
    finally:
        process.kill()
        process.communicate()


def main(target: str) -> None:
    """Works until its input ends."""
    works = Works(target)
    for line in sys.stdin:
        name, arguments = json.loads(line)
        print(json.dumps(getattr(works, name)(**arguments)), flush=True)


if __name__ == "__main__":
    with suppress(KeyboardInterrupt):
        main(sys.argv[1])
