"""Writes a golden data directory: `python -m tests.golden.make FILE.tar.gz`. Only for a new format."""

from __future__ import annotations

import json
import random
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from stateward import Client, Delete, Put, Status
from stateward.testing import run_daemon


def main() -> None:
    """Fills a store with every kind of row, and packs it with its key and what it must hold."""
    target = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "golden"
        root.mkdir()
        with run_daemon(data_dir=root / "data") as daemon, daemon.client(blob_threshold=0) as client:
            expected = fill(client)
            daemon.stop()
        (root / "expected.json").write_text(json.dumps(expected, indent=1))
        (root / "data" / "lock.mdb").unlink()
        with tarfile.open(target, "w:gz") as archive:
            for path in sorted(root.rglob("*")):
                archive.add(path, path.relative_to(root))
        shutil.rmtree(root)


def fill(client: Client) -> dict[str, dict[str, Any]]:
    """Makes threads with versions, branches, tags, labels, snapshots, large values, prunes and copies."""
    thread = client.thread("agent-1")
    state = thread.hydrate()
    for step in range(120):
        state.logs["messages"].append({"step": step, "content": f"what the tool said in step {step}: " + "value " * 40})
        state.slots["plan"] = {"next": step + 1}
        status = Status.COMPLETED if step == 119 else Status.RUNNING
        thread.save(state, step=step, status=status, labels={"kind": "step"} if step % 50 == 0 else None)
    state.logs["messages"][3]["content"] = "elided"
    thread.save(state, checkpoint_id="after-eliding")
    thread.tag("middle", version=60)
    branch = thread.branch("retry", at=60)
    other = branch.hydrate()
    other.slots["plan"] = {"next": "another way"}
    branch.save(other)
    thread.fork("copy-of-60", version=60)
    thread.fork("whole-copy", whole=True)
    large = client.thread("large")
    state = large.hydrate()
    state.slots["page"] = "".join(f"{number:07}" for number in range(300_000))
    large.save(state)
    thread.prune(keep_latest_per_branch=5)
    fill_records(client)
    return {name: read_all(client, name) for name in ("agent-1", "copy-of-60", "whole-copy", "large", "store")}


def fill_records(client: Client) -> None:
    """Makes records beside versions, and a scope of its own that was rewritten until records were moved."""
    client.thread("agent-1").records.put("beside", {"n": 1}, attributes={"n": 1, "text": "é", "yes": True, "half": 0.5})
    store = client.records("store")
    store.write([Put(f"a/{number}", number, ttl=90 * 365 * 86400) for number in range(40)])
    dice = random.Random(1)
    for number in range(110):
        store.write([Put(f"b/{number % 5}", dice.randbytes(3000)), Delete(f"a/{number % 10}")])


def read_all(client: Client, name: str) -> dict[str, Any]:
    """Every retained version of a thread, as JSON holds it."""
    found: dict[str, Any] = {}
    for checkpoint in client.thread(name).checkpoints():
        state = client.thread(name, branch=checkpoint.branch).hydrate(version=checkpoint.version)
        slots = {slot: summary(value) for slot, value in state.slots.items()}
        logs = {log: summary(list(entries)) for log, entries in state.logs.items()}
        found[str(checkpoint.version)] = {"digest": checkpoint.digest.hex(), "slots": slots, "logs": logs}
    records = {
        each.key: [each.revision, summary(plain(each.value)), dict(each.attributes), each.expire_time is not None]
        for each in client.thread(name).records.list()
    }
    return found | ({"records": records} if records else {})


def plain(value: Any) -> Any:
    """A value as JSON holds it."""
    return value.hex() if isinstance(value, bytes) else value


def summary(value: Any) -> Any:
    """A value, or what stands for a long one."""
    text = json.dumps(value, sort_keys=True)
    if len(text) < 200:
        return value
    import hashlib

    return f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


if __name__ == "__main__":
    main()
