"""The danger: one bit of an object in the bucket, of a row, a key or a blob on the disk differs, and a machine shows
another state, list or count, and no error."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.archive.test_records_travel import left, put, value
from tests.daemon.driven import CALLER, MAP_BYTES, NAME, NAMESPACE, Driven, append
from tests.daemon.town import Town, town
from tests.daemon.unthreaded import run

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, ListCheckpointsRequest
from stateward.v1.thread_service_pb2 import CountThreadsRequest, ListThreadsRequest, ListThreadsResponse, SetTagRequest
from stateward_sidecar.errors import StatewardError

BLOB = bytes(range(256)) * 20
SAVES = 40
SAMPLE = 10
"""So many bits of each kind of object, in the short run."""
KINDS = {".pack", ".snap", ".index", ".blob", ".image", "HEAD", "root", "namespace key", "thread key", "_format"}


def kind_of(key: str) -> str:
    if key.startswith("v1/_keys/"):
        return {"r": "root", "n": "namespace key", "t": "thread key"}[key.split("/")[2][0]]
    name = key.rpartition("/")[2]
    parts = [part for part in name.split(".") if not part.isdigit()]  # a number is a slice of a large object
    return name if name in ("HEAD", "_format") else f".{parts[-1]}"


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Town, dict[str, Any]]]:
    """A bucket with objects of all kinds, and what a machine reads that has nothing else."""
    with town(tmp_path_factory.mktemp("bits")) as made:
        yield made, fill(made)


def fill(made: Town) -> dict[str, Any]:
    """Writes a thread to the bucket, and keeps the disk. Returns what a machine reads that has nothing else."""
    dice = random.Random(38)
    machine = made.machine("first")
    for number in range(SAVES):
        machine.put(append(dice.randbytes(700) + b"-%d" % number))
        if number % 4 == 3:
            machine.ship_now()
    machine.tag(SetTagRequest(namespace=NAMESPACE, thread=NAME, tag="good", version=VersionRef(version=7)))
    for number in range(30):
        put(machine, value(f"key-{number}", "v" * 40))
    machine.write_blob(NAME, BLOB)
    machine.archive_all()
    machine.wire.background()
    machine.stop()
    made.end(machine)
    made.back_up()
    (machine.disk.path / "lock.mdb").unlink(missing_ok=True)
    machine.disk.path.rename(made.home / "disk")
    return look(made)


def look(made: Town, path: Path | None = None) -> dict[str, Any]:
    """What a machine with an empty disk reads, or one with this disk: each answer, or the reason of its error."""
    if path is None:
        path = made.home / "fresh"
        shutil.rmtree(path, ignore_errors=True)
    try:
        machine = made.machine("fresh", path)
    except StatewardError as error:
        return {"start": ("error", type(error).__name__)}
    try:
        return {what: _ask(verb) for what, verb in _questions(machine)}
    finally:
        made.end(machine)


def _questions(machine: Driven) -> Iterator[tuple[str, Callable[[], Any]]]:
    """Some are answered from HEAD alone, and some need every pack."""
    for version in (0, SAVES, SAVES // 2, 1):
        at = VersionRef(version=version) if version else None
        request = HydrateRequest(namespace=NAMESPACE, thread=NAME, version=at)
        yield f"state {version}", lambda request=request: _without_owner(machine.hydrate(request))  # type: ignore[misc]
    yield "versions", lambda: [
        (each.version, each.digest, each.parent_version) for each in machine.list(
            ListCheckpointsRequest(namespace=NAMESPACE, thread=NAME, page_size=1000)
        ).checkpoints
    ]  # fmt: skip
    yield "records", lambda: left(machine)
    yield "blob", lambda: machine.read_blob(NAME, sha256(BLOB).digest())
    listing = ListThreadsRequest(namespace=NAMESPACE)
    yield "threads", lambda: _listed(run(machine.threads_.list_threads(listing, CALLER)))
    yield "count", lambda: run(
        machine.threads_.count_threads(CountThreadsRequest(namespace=NAMESPACE), CALLER)
    ).SerializeToString(deterministic=True)


def _listed(answer: ListThreadsResponse) -> Any:
    if answer.unreadable:  # a list says which threads it cannot show
        return "error", "unreadable"
    return [(each.thread, each.version, each.sequence, each.sequence_digest) for each in answer.threads]


def _without_owner(answer: Any) -> bytes:
    answer.ClearField("owner_id")
    return bytes(answer.SerializeToString(deterministic=True))


def _ask(verb: Callable[[], Any]) -> Any:
    try:
        return verb()
    except StatewardError as error:
        return "error", error.reason


def wrong(made: Town, sound: dict[str, Any], key: str, bit: int) -> list[str]:
    """Flips a bit, and returns what is answered otherwise without an error."""
    made.set_back()
    data = bytearray(made.bucket.objects[key])
    data[bit // 8] ^= 1 << bit % 8
    made.bucket.objects[key] = bytes(data)
    found = look(made)
    made.set_back()
    if is_error(found.get("state 0")):  # nothing was fetched, and lists show what is on this disk
        found = {what: answer for what, answer in found.items() if what not in ("threads", "count")}
    return [
        f"{what}: {key}, bit {bit}" for what, answer in found.items()
        if answer != sound.get(what) and not is_error(answer)
    ]  # fmt: skip


def is_error(answer: Any) -> bool:
    return isinstance(answer, tuple) and answer[:1] == ("error",)


def by_kind(made: Town) -> dict[str, list[str]]:
    found = defaultdict(list)
    for key in sorted(made._backup):
        found[kind_of(key)].append(key)
    return found


def test_the_bucket_has_objects_of_every_kind(filled: tuple[Town, dict[str, Any]]) -> None:
    """What is not in the bucket is not tested; and everything in it can be read."""
    made, sound = filled
    assert set(by_kind(made)) == KINDS
    assert not [what for what, answer in sound.items() if is_error(answer)]
    assert sound["blob"] == BLOB
    assert len(sound["versions"]) == SAVES
    assert len(sound["records"]) == 30


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_a_flipped_bit_of_an_object_is_found(filled: tuple[Town, dict[str, Any]], kind: str) -> None:
    """Every answer is as before, or an error."""
    made, sound = filled
    dice, faults = random.Random(kind), list[str]()
    for _ in range(SAMPLE):
        key = dice.choice(by_kind(made)[kind])
        faults += wrong(made, sound, key, dice.randrange(8 * len(made._backup[key])))
    assert faults == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_byte_of_every_object(filled: tuple[Town, dict[str, Any]], kind: str) -> None:
    """One bit of each byte; of objects below 200 bytes, every bit."""
    made, sound = filled
    dice, faults = random.Random(kind), list[str]()
    for key in by_kind(made)[kind]:
        size = len(made._backup[key])
        bits = range(8 * size) if size < 200 else [8 * at + dice.randrange(8) for at in range(size)]
        for bit in bits:
            faults += wrong(made, sound, key, bit)
    assert faults == []


# -- the disk ----------------------------------------------------------------------------------------------------------

ROW_KINDS = ["TA", "TG", "TJ", "TK", "TQ", "TR", "TS", "TV", "TZ", "N", "S", "U", "W", "Q"]
FILES = ["keys", "blobs"]


def row_kind(key: bytes) -> str:
    return f"T{chr(key[5])}" if key[:1] == b"T" else "M" if key[:1] == b"M" else chr(key[0])


@pytest.fixture(scope="module")
def disk(filled: tuple[Town, dict[str, Any]]) -> tuple[Town, dict[str, Any], dict[bytes, bytes]]:
    made, _ = filled
    file = str(made.home / "disk/data.mdb")
    with lmdb.open(file, subdir=False, map_size=MAP_BYTES) as env, env.begin() as txn:
        rows = {bytes(key): bytes(value) for key, value in txn.cursor()}
    return made, on_disk(made, lambda _: None), rows


def on_disk(made: Town, change: Callable[[Path], None]) -> dict[str, Any]:
    """What is answered from a copy of the disk after a change, while the bucket has nothing of it."""
    path = made.home / "copy"
    shutil.rmtree(path, ignore_errors=True)
    shutil.copytree(made.home / "disk", path)
    change(path)
    try:
        return look(made, path)
    finally:
        made.set_back()


def flip(path: Path, at: int, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1 << bit
    path.chmod(0o600)
    path.write_bytes(bytes(data))


def change_row(path: Path, key: bytes, bit: int) -> None:
    with lmdb.open(str(path / "data.mdb"), subdir=False, map_size=MAP_BYTES) as env, env.begin(write=True) as txn:
        data = bytearray(txn.get(key))
        data[bit // 8] ^= 1 << bit % 8
        txn.put(key, bytes(data))


def faults_of(sound: dict[str, Any], found: dict[str, Any], said: str) -> list[str]:
    return [f"{what}: {said}" for what, each in found.items() if each != sound.get(what) and not is_error(each)]


@pytest.mark.parametrize("kind", ROW_KINDS)
def test_a_flipped_bit_of_a_row_is_found(disk: tuple[Town, dict[str, Any], dict[bytes, bytes]], kind: str) -> None:
    """Every answer is as before, or an error: also of records and blobs, and with the archive beside them."""
    made, sound, rows = disk
    chosen = [key for key in rows if row_kind(key) == kind and rows[key]]
    assert chosen
    dice, faults = random.Random(kind), list[str]()
    for _ in range(SAMPLE):
        key = dice.choice(chosen)
        bit = dice.randrange(8 * len(rows[key]))
        found = on_disk(made, lambda path, key=key, bit=bit: change_row(path, key, bit))  # type: ignore[misc]
        faults += faults_of(sound, found, f"{key.hex()}, bit {bit}")
    assert faults == []


@pytest.mark.parametrize("kind", FILES)
def test_a_flipped_bit_of_a_file_is_found(disk: tuple[Town, dict[str, Any], dict[bytes, bytes]], kind: str) -> None:
    """Key slots, and blobs and segments."""
    made, sound, _ = disk
    dice, faults = random.Random(kind), list[str]()
    files = [path for path in sorted((made.home / "disk").rglob("*")) if path.is_file() and kind in path.parts]
    used = {path: [at for at, byte in enumerate(path.read_bytes()) if byte] for path in files}
    for _ in range(2 * SAMPLE):
        file = dice.choice(files)
        at, bit = dice.choice(used[file]), dice.randrange(8)
        place = file.relative_to(made.home / "disk")
        found = on_disk(made, lambda path, place=place, at=at, bit=bit: flip(path / place, at, bit))  # type: ignore[misc]
        faults += faults_of(sound, found, f"{place}, byte {at}, bit {bit}")
    assert faults == []


@pytest.mark.soak
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("kind", ROW_KINDS)
def test_every_bit_of_rows(disk: tuple[Town, dict[str, Any], dict[bytes, bytes]], kind: str) -> None:
    """All bits of rows below 64 bytes, and of the others one bit of each byte."""
    made, sound, rows = disk
    dice, faults = random.Random(kind), list[str]()
    for key in [key for key in rows if row_kind(key) == kind and rows[key]][:20]:
        size = len(rows[key].rstrip(b"\0"))
        for bit in range(8 * size) if size < 64 else [8 * at + dice.randrange(8) for at in range(size)]:
            found = on_disk(made, lambda path, key=key, bit=bit: change_row(path, key, bit))  # type: ignore[misc]
            faults += faults_of(sound, found, f"{key.hex()}, bit {bit}")
    assert faults == []
