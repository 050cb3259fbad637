"""Histories made by hand: a thread that one client writes, version by version, and what is said of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.histories.checker import write_history

THREAD = "t"
Record = dict[str, Any]


def digest(version: int, line: str = "") -> str:
    """The digest of a version; of another line, another one."""
    return f"{line}{version:x}".rjust(32, "d")


class Story:
    """Records in the order in which they are told. Each operation takes the time from ``at`` to ``at`` + 1 second.

    Version n appends the token "n". With several machines, A writes, and archives what it writes.
    """

    def __init__(self, promise: str = "committed", **setup: Any) -> None:
        self.records: list[Record] = [
            {"kind": "setup", "seed": 0, "promise": promise, "staleness_ns": 2_000_000_000, **setup}
        ]
        self._numbers = 0

    def operation(
        self, do: str, at: float, *, took: float = 1.0, machine: str = "A", disk: int = 0, **facts: Any
    ) -> Story:
        """An operation with one attempt. What is no fact of the operation is one of its answer."""
        self._numbers += 1
        mine = {key: facts.pop(key) for key in ("token", "expected_version", "expected_digest") if key in facts}
        begun = int(at * 1e9)
        attempt = {"machine": machine, "disk": disk, "call": begun, "return": begun + int(took * 1e9), **facts}
        self.records.append(
            {"kind": "op", "id": self._numbers, "client": 0, "thread": THREAD, "do": do, "attempts": [attempt], **mine}
        )
        return self

    def append(self, version: int, at: float, token: str = "", line: str = "", **facts: Any) -> Story:
        """An append that was answered."""
        answer = {"outcome": "ok", "version": version, "digest": digest(version, line), "durability": "committed"}
        return self.operation("append", at, token=token or str(version), **{**answer, **facts})

    def save(self, version: int, at: float, **facts: Any) -> Story:
        """A compare-and-swap that was answered."""
        return self.append(version, at, expected_version=version - 1, **facts).does("save")

    def does(self, do: str) -> Story:
        self.records[-1]["do"] = do
        return self

    def again(self, at: float, **facts: Any) -> Story:
        """One more attempt of the last operation."""
        begun = int(at * 1e9)
        before = self.records[-1]["attempts"][-1]
        self.records[-1]["attempts"].append({**before, "call": begun, "return": begun + 10**9, **facts})
        return self

    def retried(self, at: float, **facts: Any) -> Story:
        """One more attempt of the last operation, also if something else was told since."""
        self.records.append(self.records.pop(max(n for n, each in enumerate(self.records) if each["kind"] == "op")))
        return self.again(at, **facts)

    def read(self, version: int, at: float, *, log: list[str] | None = None, line: str = "", **facts: Any) -> Story:
        """A read of the head."""
        answer = {"outcome": "ok", "version": version, "digest": digest(version, line), "sequence": version}
        answer |= {"archived_sequence": version, "owner": "", "log": tokens(version) if log is None else log}
        return self.operation("read", at, **{**answer, **facts})

    def final(self, version: int, machine: str = "A", log: list[str] | None = None, **facts: Any) -> Story:
        """What a machine shows at the end."""
        log = tokens(version) if log is None else log
        versions = [{"version": n, "digest": digest(n), "token": token} for n, token in enumerate(log, 1)]
        shown = {"version": version, "digest": digest(version) if version else "", "log": log, "versions": versions}
        self.records.append({"kind": "final", "machine": machine, "thread": THREAD, **shown, **facts})
        return self

    def orphan(self, log: list[str], name: str = "t@1", machine: str = "A", **facts: Any) -> Story:
        """An orphan with one version of its own, of the line "b"."""
        own = {"version": len(log), "digest": digest(len(log), "b"), "token": log[-1], "log": log}
        told = {"machine": machine, "thread": THREAD, "name": name, "reading": "at first", "versions": [own]}
        self.records.append({"kind": "orphan", **told, **facts})
        return self

    def tell(self, kind: str, **facts: Any) -> Story:
        """Anything else."""
        self.records.append({"kind": kind, **facts})
        return self

    def write(self, path: Path) -> Path:
        return write_history(path, self.records)


def tokens(version: int) -> list[str]:
    """What the thread holds at a version."""
    return [str(number) for number in range(1, version + 1)]
