"""The agents' processes."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from tests.soak.onlookers import Tail


@dataclass
class AgentProcess:
    """An agent's present process and its ledger."""

    number: int
    tail: Tail
    command: list[str]
    stderr: Path
    process: subprocess.Popen[bytes] | None = field(default=None, repr=False)

    def start(self) -> None:
        with self.stderr.open("ab") as stderr:
            self.process = subprocess.Popen(self.command, stdin=subprocess.PIPE, stderr=stderr)

    def signal(self, number: int) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.communicate()

    def tell_to_end(self) -> None:
        """It ends after what it is doing."""
        assert self.process is not None
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None

    def finish(self, timeout_s: float) -> int:
        """Waits for its end, and returns its exit code."""
        assert self.process is not None
        try:
            self.process.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
        return self.process.returncode


def make_agents(directory: Path, target: str, count: int, seed: int, threads: int) -> list[AgentProcess]:
    """None of them is started."""
    agents = []
    for number in range(count):
        path = directory / f"{number}.ledger"
        command = [sys.executable, "-m", "tests.soak.agent", target, str(number), str(seed), str(path), str(threads)]
        agents.append(AgentProcess(number, Tail(path), command, directory / f"{number}.stderr"))
    return agents
