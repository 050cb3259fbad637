"""The danger: a copy or a backup of a thread lacks objects of its trees, or loses them with the original."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.conftest import run
from tests.daemon.process import Fleet, eventually, fleet
from tests.daemon.wire import TIMEOUT_S, refused
from tests.messages import to_write
from tests.trees.test_trees_travel import archived
from tests.trees.yard import TreeWire, chunk, grown, make, naming

from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin, ImportThreadRequest, ThreadPart
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest
from stateward.v1.workspace_pb2 import TreeObjects

FIRST, SECOND = grown(1, 60, large=True), grown(2, 15)


@pytest.fixture
def begun(yard: TreeWire) -> TreeWire:
    """With two versions: a tree in packs, and one with more that came in the save."""
    yard.keep(make(FIRST))
    yard.keep(make({**FIRST, **SECOND}), 1, inline=True)
    return yard


def fork(yard: TreeWire, new: str, **fields: Any) -> None:
    yard.threads.ForkThread(to_write(ForkThreadRequest, thread="t", new_thread=new, **fields), timeout=60)


def test_a_fork_has_its_tree(begun: TreeWire) -> None:
    """Of one version, with only the packs that it needs; under second names, so it takes no room for them."""
    fork(begun, "old", version={"version": 1})
    fork(begun, "new")
    fork(begun, "all", all_versions=True)
    begun.threads.DeleteThread(DeleteThreadRequest(thread="t"), timeout=TIMEOUT_S)
    assert begun.restored(thread="old") == FIRST
    assert begun.restored(thread="new") == {**FIRST, **SECOND}
    assert begun.restored(1, "all") == FIRST
    assert begun.restored(2, "all") == {**FIRST, **SECOND}
    for name in ("old", "new", "all"):
        assert begun.findings("", name) == []
        assert begun.missing(make(FIRST), name) == []
        begun.keep(make({b"on": b"and on"}), begun.thread("", name).version, name)
    begun.daemon.kill()
    begun.daemon.start()
    assert begun.restored(1, "all") == FIRST
    assert begun.restored(1, "old") == FIRST


def test_a_fork_of_a_version_without_a_tree_takes_no_objects(begun: TreeWire) -> None:
    """Whatever the other versions have."""
    plain = naming(make({}).ref, 2)
    plain.ClearField("workspace")
    begun.save(plain)
    before = len(begun.files())
    fork(begun, "copy")
    assert begun.stat("copy").chunks == 0
    assert len(begun.files()) == before


def exported(yard: TreeWire, thread: str = "t") -> list[ThreadPart]:
    answers = yard.backups.ExportThread(ExportThreadRequest(thread=thread), timeout=60)
    return [part for answer in answers for part in answer.parts]


def imported(yard: TreeWire, parts: list[ThreadPart], name: str) -> Iterator[ImportThreadRequest]:
    yield ImportThreadRequest(begin=to_write(ImportBegin, thread=name, request_id=name))
    for part in parts:
        yield ImportThreadRequest(parts=[part])


def test_a_backup_has_every_tree(begun: TreeWire) -> None:
    """A thread that is made of it has the same trees, and shares nothing with the original."""
    parts = exported(begun)
    assert max(part.ByteSize() for part in parts) < 2 << 20
    begun.threads.DeleteThread(DeleteThreadRequest(thread="t"), timeout=TIMEOUT_S)
    begun.backups.ImportThread(imported(begun, parts, "back"), timeout=60)
    assert begun.restored(1, "back") == FIRST
    assert begun.restored(2, "back") == {**FIRST, **SECOND}
    assert begun.findings("", "back") == []
    again = exported(begun, "back")
    assert sum(len(part.objects.objects) for part in again) == sum(len(part.objects.objects) for part in parts)


def test_backups_that_are_wrong(begun: TreeWire) -> None:
    """An object that is missing, changed or not counted is named, and nothing is left."""
    parts = exported(begun)
    places = [at for at, part in enumerate(parts) if part.WhichOneof("part") == "objects"]
    before = begun.files()
    lacking = parts[: places[-1]] + parts[places[-1] + 1 :]
    refusal = refused(begun.backups.ImportThread, imported(begun, lacking, "lacking"))
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "parts.version.checkpoint.workspace")
    changed = ThreadPart()
    changed.CopyFrom(parts[places[0]])
    changed.objects.objects[0].data += b"x"
    refusal = refused(
        begun.backups.ImportThread, imported(begun, [*parts[: places[0]], changed, *parts[places[0] + 1 :]], "changed")
    )
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "parts.objects.objects[0].digest")
    more = ThreadPart(objects=TreeObjects(objects=[chunk(b"one more")]))
    refusal = refused(
        begun.backups.ImportThread, imported(begun, [*parts[: places[0]], more, *parts[places[0] :]], "more")
    )
    assert (refusal.reason, refusal.field) == ("INVALID_FIELD", "parts.end.objects")
    eventually(lambda: begun.files() == before)
    for name in ("lacking", "changed", "more"):
        assert refused(begun.backups.ExportThread, ExportThreadRequest(thread=name)).reason == "THREAD_NOT_FOUND"


def test_the_command_keeps_trees_in_its_file(begun: TreeWire, tmp_path: Path) -> None:
    """`stateward export --versions` and `stateward import`."""
    file, target = tmp_path / "backup.jsonl", ["--target", begun.daemon.target]
    assert run(*target, "export", "--versions", "t", "--output", str(file)).code == 0
    begun.threads.DeleteThread(DeleteThreadRequest(thread="t"), timeout=TIMEOUT_S)
    assert run(*target, "import", str(file)).code == 0
    assert begun.restored(1) == FIRST
    assert begun.restored(2) == {**FIRST, **SECOND}


def test_a_fork_on_another_machine(tmp_path: Path) -> None:
    """It fetches the packs that the copy needs, and the copy outlives the original."""
    with fleet(tmp_path) as machines:
        lost = on_another(machines)
        lost.kill()
        other = TreeWire(machines.machine("other"))
        fork(other, "copy")
        assert other.restored(thread="copy") == FIRST
        assert exported(other)
        other.close()


def on_another(machines: Fleet) -> Any:
    """A machine that has archived a tree."""
    machine = machines.machine("first")
    yard = TreeWire(machine)
    archived(yard, FIRST)
    yard.close()
    return machine
