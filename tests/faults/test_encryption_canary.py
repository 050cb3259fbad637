"""The danger: a word that a user wrote lies readable in the data directory or in the log, as text, hex or base64."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from tests.daemon.wire import Wire, text
from tests.faults.rig import change_rows, read_rows

from stateward.testing import Daemon, run_daemon
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.admin_service_pb2 import GetStatsRequest
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, ListCheckpointsRequest, SaveRequest
from stateward.v1.diff_pb2 import Append, Diff, Edit, SetSlot
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import WriteOptions

WORDS = {
    word: f"canary-{word}-Quetzalcoatl"
    for word in (
        "namespace", "thread", "branch", "checkpoint", "tag", "request", "slot", "log", "message", "media", "metadata",
        "label", "value", "detail", "metric", "wait", "agent", "parent", "option", "setting", "copy", "whole", "large",
    )
}  # fmt: skip


def forms(word: str) -> Iterator[bytes]:
    """A word as it might be written down; base64 at each of its three places."""
    data = word.encode()
    yield data
    yield data.hex().encode()
    yield data.hex().upper().encode()
    yield word.encode("utf-16-le")
    for shift in range(3):
        coded = base64.b64encode(b"\0" * shift + data)
        yield coded[4 if shift else 0 : -4]


def search(directory: Path) -> list[str]:
    """Words that occur in a file of a directory, or in a file's name."""
    found = []
    for path in directory.rglob("*"):
        content = (path.read_bytes() if path.is_file() else b"") + path.name.encode()
        found += [
            f"{word} in {path.name}" for word, name in WORDS.items() if any(form in content for form in forms(name))
        ]
    return found


def fill(wire: Wire) -> None:
    """Uses every word where it belongs, and lets snapshots and large edits come about."""
    w = WORDS
    at = {"namespace": w["namespace"], "thread": w["thread"]}
    options = ThreadOptions(labels={w["option"]: w["setting"]}, parent_thread=w["parent"], agent=w["agent"])
    for version in range(12):
        entry = Value(media_type=w["media"], data=f"{w['message']} {'lorem ' * 400}{version}".encode())
        edits = [Edit(append=Append(log=w["log"], entries=[entry]))]
        if version == 3:
            large = (w["large"] + " ").encode() * 60_000
            edits.append(Edit(set_slot=SetSlot(slot=w["slot"], value=Value(media_type=w["media"], data=large))))
        wire.save(
            SaveRequest(
                **at,
                options=WriteOptions(request_id=f"{w['request']} {version}", expected_version=version, create=options),
                diff=Diff(edits=edits),
                checkpoint_id=f"{w['checkpoint']} {version}",
                labels={w["label"]: w["value"]},
                metadata=text(w["metadata"]),
                status_detail=w["detail"],
                metrics={w["metric"]: 1.0},
                wait_id=w["wait"],
            )
        )
    wire.save(
        SaveRequest(
            **at,
            branch=w["branch"],
            options=WriteOptions(expected_version=0),
            parent=VersionRef(version=6),
            diff=Diff(edits=[Edit(append=Append(log=w["log"], entries=[text(w["message"])]))]),
        )
    )
    wire.threads.SetTag(t.SetTagRequest(**at, tag=w["tag"], version=VersionRef(version=9)))
    wire.threads.ForkThread(t.ForkThreadRequest(**at, new_thread=w["copy"]))
    wire.threads.ForkThread(t.ForkThreadRequest(**at, new_thread=w["whole"], all_versions=True))


@pytest.fixture
def daemon() -> Iterator[Daemon]:
    with run_daemon(sweep_interval=0, log_level="debug", log_format="json") as running:
        yield running


def test_nothing_of_the_user_lies_in_clear_at_any_time(daemon: Daemon) -> None:
    """While the daemon runs, after prune, deletion, a kill and a restart: no word in any file or in the log."""
    wire = Wire(daemon.target)
    fill(wire)
    assert search(daemon.data_dir) == []
    at = {"namespace": WORDS["namespace"]}
    wire.threads.PruneThread(t.PruneThreadRequest(**at, thread=WORDS["thread"], keep_latest_per_branch=1))
    assert search(daemon.data_dir) == []
    for thread in ("thread", "copy"):
        wire.threads.DeleteThread(t.DeleteThreadRequest(**at, thread=WORDS[thread]))
    wire.admin.GetStats(GetStatsRequest())
    daemon.kill()
    assert search(daemon.data_dir) == []
    wire.close()
    daemon.start()
    wire = Wire(daemon.target)
    assert wire.thread(WORDS["namespace"], WORDS["whole"]).retained_versions == 13
    wire.close()
    assert daemon.stop() == 0
    assert search(daemon.data_dir.parent) == []


def test_refused_calls_leave_no_names_in_the_log(daemon: Daemon) -> None:
    """Errors of every kind, with names in their messages, are logged without them, also those of damaged data."""
    wire = Wire(daemon.target)
    fill(wire)
    wire.close()
    assert daemon.stop() == 0
    changes: dict[bytes, bytes | None] = {}
    rows = read_rows(daemon.data_dir)
    branched = {key[1:5] for key in rows if key[:1] == b"T" and key[5:6] == b"B"}
    for key, value in rows.items():
        is_sole_head = key[5:6] == b"A" and key[1:5] not in branched
        if key[:1] == b"T" and (key[5:6] in (b"B", b"G", b"X", b"C") or is_sole_head):
            changes[key] = value[:-1]
    change_rows(daemon.data_dir, changes)
    daemon.start()
    wire = Wire(daemon.target)
    at = {"namespace": WORDS["namespace"]}
    hydrates = [HydrateRequest(**at, thread=WORDS[name]) for name in ("thread", "copy", "whole", "agent")]
    hydrates.append(HydrateRequest(**at, thread=WORDS["thread"], version=VersionRef(tag=WORDS["tag"])))
    for request in hydrates:
        with pytest.raises(grpc.RpcError):
            wire.checkpoints.Hydrate(request, timeout=20, wait_for_ready=True)
    wire.threads.ListThreads(t.ListThreadsRequest(**at))
    wire.checkpoints.ListCheckpoints(ListCheckpointsRequest(**at, thread="-"))
    stream = wire.threads.Watch(t.WatchRequest(**at, thread="-", after_cursor="n.0"), timeout=0.5)
    with pytest.raises(grpc.RpcError):
        list(stream)
    assert wire.findings()
    wire.close()
    assert daemon.stop() == 0
    assert "CORRUPT" in daemon.stderr
    assert search(daemon.data_dir.parent) == []


def test_the_search_finds_what_is_there(tmp_path: Path) -> None:
    """A search that finds nothing proves something only if it would find it."""
    word = WORDS["message"].encode()
    for content in (word, b"xx" + word.hex().encode(), base64.b64encode(b"a" + word), base64.b64encode(b"ab" + word)):
        (tmp_path / "file").write_bytes(b"\0" * 5000 + content + b"\xff")
        assert search(tmp_path) == ["message in file"]
