"""The danger: the power-loss model misses writes or cannot fail, so a daemon that answers before its data are durable
passes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from tests.daemon.segments import count_segments
from tests.soak.device import PAGE_BYTES, SECTOR_BYTES, Chance, Device
from tests.soak.life import Recorded, record
from tests.soak.losses import Losses, choose_cuts, lose
from tests.soak.recording import Kind, Operation, build, why_not

from stateward_sidecar.storage.secretfiles import read_key_file

pytestmark = pytest.mark.skipif(bool(why_not()), reason=why_not() or "recording works here")
WORK_S = 1.5


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("recorder"))


@pytest.fixture(scope="module")
def recorded(library: Path, tmp_path_factory: pytest.TempPathFactory) -> Recorded:
    return record(tmp_path_factory.mktemp("recorded") / "life", library, "quick", WORK_S, lives=1, has_archive=True)


def test_the_recorder_sees_all_that_happens_to_the_files(recorded: Recorded, tmp_path: Path) -> None:
    """Replaying everything that was recorded gives the daemon's files, byte by byte; nothing is mapped for writing."""
    device = Device(recorded.root)
    for operation in recorded.operations:
        device.apply(operation)
    assert device.differences(recorded.root) == []
    device.write_all(tmp_path / "again")
    for path in sorted(recorded.root.rglob("*")):
        if path.is_file() and path.name != "lock.mdb":
            assert (tmp_path / "again" / path.relative_to(recorded.root)).read_bytes() == path.read_bytes()
    key = read_key_file(recorded.root / "config" / "key")
    assert count_segments(tmp_path / "again" / "state" / "data", key) > 3, "losses are to fall on segments, too"
    kinds = {operation.kind for operation in recorded.operations}
    assert {Kind.CREATE, Kind.WRITE, Kind.SYNC, Kind.LINK, Kind.UNLINK, Kind.MKDIR, Kind.ALLOCATE} <= kinds
    assert any(operation.is_dsync for operation in recorded.operations), "LMDB writes its meta page through O_DSYNC"
    assert sum(operation.kind is Kind.SYNC for operation in recorded.operations) > 10


def test_what_was_answered_is_there_after_losses(recorded: Recorded) -> None:
    """Of a few losses at all kinds of moments, none costs an answered save."""
    losses = Losses()
    lose(recorded, choose_cuts(recorded, 5, "quick"), losses)
    assert losses.findings == []
    assert losses.done["versions"] > 0


def test_a_disk_that_ignores_syncs_is_found_out(recorded: Recorded) -> None:
    """The same recording on a disk on which syncs do nothing loses answered saves: the checks can fail."""
    losses = Losses()
    lose(recorded, choose_cuts(recorded, 3, "liar"), losses, ignores_syncs=True)
    assert losses.findings


def test_a_daemon_that_does_not_sync_is_found_out(library: Path, tmp_path: Path) -> None:
    """A daemon whose LMDB is opened without syncs answers too early, and the model finds a lost answered save."""
    unsynced = record(tmp_path / "life", library, "unsynced", WORK_S, lives=1, program="tests.soak.unsynced_daemon")
    losses = Losses()
    lose(unsynced, choose_cuts(unsynced, 4, "unsynced"), losses)
    assert losses.findings


def operations(*steps: tuple[Kind, int, int, bytes]) -> list[Operation]:
    return [
        Operation(kind, file, (0, end), "f" if kind is Kind.CREATE else "", offset=at, data=data, length=len(data))
        for end, (kind, file, at, data) in enumerate(steps, 1)
    ]


def outcomes(root: Path, scratch: Path, steps: list[Operation], unit_bytes: int) -> set[bytes | None]:
    """All contents of file `f` that losses left in many throws; None = it is not there."""
    device, found = Device(root), set[bytes | None]()
    for step in steps:
        device.apply(step)
    for seed in range(60):
        place = scratch / str(seed)
        device.write_after_loss(place, Chance(random.Random(seed), unit_bytes, 0.5))
        found.add((place / "f").read_bytes() if (place / "f").exists() else None)
    return found


def test_only_syncs_make_things_durable(tmp_path: Path) -> None:
    """Without a sync any sector may be old or new; a file's sync saves its content, its directory's sync its name."""
    root = tmp_path / "root"
    root.mkdir()
    number, old, new = root.stat().st_ino, b"a" * PAGE_BYTES, b"b" * PAGE_BYTES
    begun = [(Kind.CREATE, 7, 0, b""), (Kind.WRITE, 7, 0, old), (Kind.SYNC, 7, 0, b"")]
    named = [*begun, (Kind.SYNC, number, 0, b"")]

    def found(*steps: tuple[Kind, int, int, bytes], unit_bytes: int = SECTOR_BYTES) -> set[bytes | None]:
        scratch = tmp_path / str(len(list(tmp_path.iterdir())))
        scratch.mkdir()
        return outcomes(root, scratch, operations(*steps), unit_bytes)

    assert found(*begun) == {None, old}
    assert found(*named) == {old}
    torn = found(*named, (Kind.WRITE, 7, 0, new))
    assert len(torn) > 10
    assert all(each is not None and len(each) == PAGE_BYTES for each in torn)
    assert found(*named, (Kind.WRITE, 7, 0, new), unit_bytes=PAGE_BYTES) == {old, new}
    assert found(*named, (Kind.WRITE, 7, 0, new), (Kind.SYNC, 7, 0, b"")) == {new}
    assert found(*named, (Kind.WRITE, 7, PAGE_BYTES, new), unit_bytes=PAGE_BYTES) >= {old, old + new, old + bytes(4096)}


def test_a_write_with_dsync_saves_itself_alone(tmp_path: Path) -> None:
    """O_DSYNC makes its own bytes durable, and not what was written to the file before."""
    steps = operations(
        (Kind.CREATE, 7, 0, b""),
        (Kind.WRITE, 7, 0, b"a" * SECTOR_BYTES),
        (Kind.WRITE, 7, SECTOR_BYTES, b"b" * SECTOR_BYTES),
        (Kind.SYNC, tmp_path.stat().st_ino, 0, b""),
    )
    through = Operation(Kind.WRITE, 7, (0, 9), offset=SECTOR_BYTES, data=b"c" * SECTOR_BYTES, is_dsync=True)
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    after = outcomes(tmp_path, scratch, [*steps, through], SECTOR_BYTES)
    assert after == {first * SECTOR_BYTES + b"c" * SECTOR_BYTES for first in (b"\0", b"a")}
