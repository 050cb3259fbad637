"""Writes the golden data of a format: `python -m tests.golden.make`.

Nothing was released yet. So a change of the stored bytes makes `format_1.tar.gz` anew with this command, in the same
commit, and the tests beside it show that the new bytes are read. Stored bytes have messages of the contract in them,
too: values, edits, settings, statuses and questions.

From the first release on, a file is never written again. A change of the format raises the numbers (`engine.FORMAT`,
`heads.FORMAT`, `exporting.FORMAT`), the reader of the old format stays, and this command writes one file more.
"""

from __future__ import annotations

import hashlib
import json
import random
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

from stateward import Client, Delete, Effect, Put, Retention, Status, ThreadOptions
from stateward.testing import run_daemon
from stateward_sidecar.storage.engine import FORMAT

GOLDEN = Path(__file__).parent
LONG_S = 90 * 365 * 86400
BACKUP = "backup.jsonl.gz"
NAMES = ("agent-1", "copy-of-60", "whole-copy", "large", "store", "work")


def main() -> None:
    """Fills a store and its archive with every kind of row, and packs them with key, backup and what they must hold."""
    with tempfile.TemporaryDirectory() as directory:
        root = Path(directory) / "golden"
        root.mkdir()
        flags = {"archive": f"file://{root / 'bucket'}", "owner_id": "golden"}
        with run_daemon(data_dir=root / "data", **flags) as daemon, daemon.client(blob_threshold=0) as client:
            fill(client)
            with daemon.client(blob_threshold=4096) as other:
                fill_work(other)
            expected = {name: read_all(client, name) for name in NAMES}
            back_up(daemon.target, root / BACKUP)
            daemon.stop()
        (root / "expected.json").write_text(json.dumps(expected, indent=1))
        for left in ("lock.mdb", "LOCK"):
            (root / "data" / left).unlink(missing_ok=True)
        with tarfile.open(GOLDEN / f"format_{FORMAT}.tar.gz", "w:gz") as archive:
            for path in sorted(root.rglob("*")):
                archive.add(path, path.relative_to(root), recursive=False)


def back_up(target: str, path: Path) -> None:
    """Exports all threads."""
    command = [Path(sys.executable).with_name("stateward"), "--target", target, "export", "--all", "--versions", "-o"]
    subprocess.run([*command, path], check=True)


def fill(client: Client) -> None:
    """Makes threads with versions, branches, tags, labels, snapshots, large values, records, prunes and copies."""
    thread = client.thread("agent-1")
    state = thread.hydrate()
    for step in range(120):
        state.logs["messages"].append({"step": step, "content": f"what the tool said in step {step}: " + "value " * 40})
        state.slots["plan"] = {"next": step + 1}
        status = Status.COMPLETED if step == 119 else Status.RUNNING
        thread.save(state, step=step, status=status, labels={"kind": "step"} if step % 50 == 0 else None)
    state.logs["messages"][3]["content"] = "elided"
    thread.save(state, checkpoint_id="after-eliding")
    thread.tags.set("middle", at=60)
    branch = thread.branch("retry", at=60)
    other = branch.hydrate()
    other.slots["plan"] = {"next": "another way"}
    branch.save(other)
    thread.fork("copy-of-60", at=60)
    thread.fork("whole-copy", all_versions=True)
    large = client.thread("large")
    state = large.hydrate()
    state.slots["page"] = "".join(f"{number:07}" for number in range(100_000))
    large.save(state)
    thread.prune(keep_latest_per_branch=5)
    fill_records(client)


def fill_records(client: Client) -> None:
    """Makes records beside versions, and a scope of its own that was rewritten until records were moved."""
    client.thread("agent-1").records.put("beside", {"n": 1}, attributes={"n": 1, "text": "é", "yes": True, "half": 0.5})
    store = client.records("store")
    store.write([Put(f"a/{number}", number, ttl=LONG_S) for number in range(40)])
    dice = random.Random(1)
    for number in range(110):
        store.write([Put(f"b/{number % 5}", dice.randbytes(3000)), Delete(f"a/{number % 10}")])


def fill_work(client: Client) -> None:
    """Makes a thread with effects, of which some were replaced or went with their versions, a blob, a lease, signals, a
    question, a head that went back and a branch that was deleted; and a thread that is gone."""
    thread = client.thread("work")
    options = ThreadOptions(labels={"team": "red"}, ttl=LONG_S, retention=Retention(keep_last=9), agent="worker")
    state = thread.hydrate()
    dice = random.Random(2)
    for step in range(6):
        state.slots["page"] = dice.randbytes(10_000)
        anchor = f"step-{step}"
        made = [Effect("write", step, anchor=anchor), Effect("stays", step, anchor=anchor, keep_when_pruned=True)]
        thread.effects.put(made, create=options)
        thread.effects.put([Effect("write", "again", anchor=anchor)])
        thread.save(state, checkpoint_id=anchor, step=step, attributes={"cost": 0.5})
    thread.effects.run("free", lambda: "done once")
    thread.prune(keep_latest_per_branch=4)
    side = thread.branch("side", at=5)
    side.save(side.hydrate())
    thread.branches.delete("side")
    thread.branches.move("main", 5)
    with thread.lease() as lease:
        thread.append("notes", "under a lease", lease=lease)
    thread.signals.send("note", {"waits": True})
    thread.ask(thread.hydrate(), "Go on?", {"type": "boolean"})
    client.thread("gone").append("notes", "of a thread that goes")
    client.thread("gone").delete()


def read_all(client: Client, name: str) -> dict[str, Any]:
    """Every retained version of a thread, and what lies beside them, as JSON holds it."""
    found: dict[str, Any] = {}
    for checkpoint in client.thread(name).checkpoints.list():
        state = client.thread(name, branch=checkpoint.branch).hydrate(at=checkpoint.version)
        slots = {slot: summary(value) for slot, value in state.slots.items()}
        logs = {log: summary(list(entries)) for log, entries in state.logs.items()}
        found[str(checkpoint.version)] = {"digest": checkpoint.digest.hex(), "slots": slots, "logs": logs}
    records = {
        each.key: [each.revision, summary(each.value), dict(each.attributes), each.expire_time is not None]
        for each in client.thread(name).records.list()
    }
    effects = {f"{each.anchor} {each.key}": summary(each.value) for each in client.thread(name).effects.list()}
    signals = [[each.name, each.payload] for each in client.thread(name).signals.list()]
    branches = {each.name: [each.version, each.base_version] for each in client.thread(name).info().branches}
    facts = {"records": records, "effects": effects, "signals": signals, "branches": branches}
    return found | {fact: value for fact, value in facts.items() if value}


def summary(value: Any) -> Any:
    """A value as JSON holds it, or what stands for a long one."""
    text = json.dumps(value, sort_keys=True, default=bytes.hex)
    return json.loads(text) if len(text) < 200 else f"sha256 {hashlib.sha256(text.encode()).hexdigest()}"


if __name__ == "__main__":
    main()
