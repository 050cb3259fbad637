"""The danger: somebody who has no key changes the object that says what an archive is, or sets it back, and sidecars
believe it; or one that nobody changed is refused."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.daemon.driven import KEY, Driven, append
from tests.daemon.town import Town, town

from stateward import errors
from stateward.storage.v1.archive_pb2 import ArchiveFormat
from stateward.testing import run_daemon
from stateward.v1.archive_service_pb2 import VerifyArchiveRequest
from stateward_sidecar.archive.fleet.inspect import Inspector
from stateward_sidecar.archive.objects.formats import ROTATED_FORMAT, open_format, pack_format, read_format
from stateward_sidecar.archive.objects.start import join
from stateward_sidecar.archive.requests.places import FORMAT_KEY, ROOT_KEY
from stateward_sidecar.codec.seal import NameKey
from stateward_sidecar.errors import Corrupt, StartError, StatewardError

NAMES = NameKey(b"n" * 32)
FORM = ArchiveFormat(format=1, min_reader=1, min_writer=1, create_time_us=1_800_000_000_000_000, archive_id=b"i" * 16)


@pytest.fixture
def first(driven: Town) -> Driven:
    """A machine with an archived thread."""
    machine = driven.machine("first")
    machine.put(append(after=0))
    machine.ship_now()
    return machine


def names_of(machine: Driven) -> NameKey:
    return machine.store.context.keystore.root_names


def found_by_verify(machine: Driven) -> list[str]:
    answers = Inspector(machine.archive.state).verify(VerifyArchiveRequest())
    return [answer.finding.message for answer in answers if answer.finding.message]


def test_every_bit_is_sealed() -> None:
    """Of the content, of the field and of the seal; and every end that is cut off, and every byte that is added."""
    data = pack_format(FORM, NAMES)
    assert open_format(data, NAMES) == read_format(data) == FORM
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(Corrupt, match="was changed without"):
            open_format(bytes(flipped), NAMES)
    longer = (data + b"\0", data + data, b"\0" + data, data + data[-34:])
    for changed in (*(data[:at] for at in range(len(data))), *longer):
        with pytest.raises(Corrupt, match="was changed without"):
            open_format(changed, NAMES)
    with pytest.raises(Corrupt, match="was changed without"):
        open_format(data, NameKey(b"m" * 32))


def test_what_a_newer_version_adds_is_sealed() -> None:
    """Fields that this version does not know are kept when it replaces the object, and none comes after the seal."""
    content = FORM.SerializeToString() + b"\x7a\x05newer"
    data = content + b"\x32\x20" + NAMES.sign(b"archive format", content)
    form = open_format(data, NAMES)
    form.min_reader = 2
    again = open_format(pack_format(form, NAMES), NAMES)
    assert again == form
    assert b"\x7a\x05newer" in again.SerializeToString()


CHANGES: dict[str, Callable[[ArchiveFormat], None]] = {
    "format": lambda form: setattr(form, "format", 2),
    "both raised": lambda form: (setattr(form, "min_reader", 2), setattr(form, "min_writer", 2)),  # type: ignore[dict-item,func-returns-value]
    "both lowered": lambda form: (setattr(form, "min_reader", 0), setattr(form, "min_writer", 0)),  # type: ignore[dict-item,func-returns-value]
    "newer than known": lambda form: setattr(form, "min_reader", ROTATED_FORMAT + 1),
    "time": lambda form: setattr(form, "create_time_us", form.create_time_us + 1),
    "id": lambda form: setattr(form, "archive_id", b"another id......"),
    "seal": lambda form: form.ClearField("seal"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_is_found(driven: Town, first: Driven, change: str) -> None:
    """By a sidecar that has joined and by one on an empty disk, at its start and by Verify; and nothing is collected.
    None of them changes anything, and with the right object all go on."""
    kept = driven.bucket.get(FORMAT_KEY).data
    form = ArchiveFormat.FromString(kept)
    CHANGES[change](form)
    driven.bucket.objects[FORMAT_KEY] = form.SerializeToString()
    before = dict(driven.bucket.objects)
    with pytest.raises(StartError):
        join(first.store, first.wire, first.bucket, KEY)
    with pytest.raises(StartError):
        driven.machine("second")
    assert [FORMAT_KEY in said for said in found_by_verify(first)] == [True]
    with pytest.raises(StatewardError, match=r"_format|nothing is removed"):
        first.collect(0)
    assert driven.bucket.objects == before
    driven.bucket.objects[FORMAT_KEY] = kept
    assert found_by_verify(first) == []
    first.collect(0)
    first.restart()
    assert driven.machine("third").state().checkpoint.version == 1


def test_that_of_another_archive_is_found(driven: Town, first: Driven, tmp_path: Path) -> None:
    """Also if the same key file opens both: the seal is of the root, and each archive has its own."""
    with town(tmp_path / "elsewhere") as other:
        other.machine("other")
        theirs = other.bucket.get(FORMAT_KEY).data
    kept = driven.bucket.get(FORMAT_KEY).data
    driven.bucket.objects[FORMAT_KEY] = theirs
    with pytest.raises(StartError, match="was changed without"):
        driven.machine("second")
    assert ["of another archive" in said for said in found_by_verify(first)] == [True]
    driven.bucket.objects[FORMAT_KEY] = pack_format(read_format(kept), NAMES)
    with pytest.raises(StartError, match="was changed without"):
        first.restart()


def test_an_older_one_is_found_by_who_has_joined_since(driven: Town, first: Driven) -> None:
    """An upgrade or a rotation raises the formats. Whoever has seen that takes no older object, and puts back the
    newest one if it is asked to."""
    older = driven.bucket.get(FORMAT_KEY).data
    raised = read_format(older)
    raised.format = raised.min_reader = raised.min_writer = ROTATED_FORMAT
    newer = driven.bucket.objects[FORMAT_KEY] = pack_format(raised, names_of(first))
    assert found_by_verify(first) == []
    first.restart()
    driven.bucket.objects[FORMAT_KEY] = older
    assert ["was changed since" in said for said in found_by_verify(first)] == [True]
    with pytest.raises(StartError, match="was changed since"):
        join(first.store, first.wire, first.bucket, KEY)
    with pytest.raises(StartError, match="was changed since"):  # it is no lost object
        join(first.store, first.wire, first.bucket, KEY, puts_back=True)
    driven.bucket.delete(FORMAT_KEY)
    join(first.store, first.wire, first.bucket, KEY, puts_back=True)
    assert driven.bucket.get(FORMAT_KEY).data == newer


# -- the first sidecar of an archive -----------------------------------------------------------------------------------


class Killed(Exception):
    """The end of a process."""


@pytest.fixture(params=[ROOT_KEY, FORMAT_KEY])
def made(request: pytest.FixtureRequest) -> str:
    """Each of the objects that a new archive gets."""
    return str(request.param)


def test_two_that_make_the_archive_at_the_same_moment(driven: Town, made: str) -> None:
    """Whichever comes first with which object: the seal is of the root that both have."""
    later: list[Driven] = []

    def start_another(method: str, key: str) -> None:
        if (method, key) == ("create", made) and not later:
            driven.mend()
            later.append(driven.machine("second"))

    driven.bucket.before = start_another
    first, second = driven.machine("first"), later[0]
    assert open_format(driven.bucket.get(FORMAT_KEY).data, names_of(first)).archive_id
    first.put(append(after=0))
    first.ship_now()
    assert second.state().checkpoint.version == 1
    for machine in (first.restart(), second.restart(), driven.machine("third")):
        assert found_by_verify(machine) == []


@pytest.mark.parametrize("is_there", [False, True])
def test_one_that_is_killed_while_it_makes_the_archive(driven: Town, made: str, is_there: bool) -> None:
    """Before an object is there or after it: the next one completes the archive, whichever disk it has."""

    def die(method: str, key: str) -> None:
        if (method, key) == ("create", made):
            raise Killed

    if is_there:
        driven.bucket.after = die
    else:
        driven.bucket.before = die
    with pytest.raises(Killed):
        driven.machine("first", driven.home / "first")
    assert (made in driven.bucket.objects) == is_there
    driven.mend()
    second = driven.machine("second")
    second.put(append(after=0))
    second.ship_now()
    assert found_by_verify(second) == []
    assert found_by_verify(driven.machine("third")) == []


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "key"
    path.write_text(random.Random(38).randbytes(32).hex())
    return path


def test_real_sidecars_that_make_the_archive_together(tmp_path: Path, key_file: Path) -> None:
    """Four processes start on an empty bucket at the same moment. All of them serve one archive."""
    archive = f"file://{tmp_path}/bucket"
    command = [sys.executable, "-m", "stateward_sidecar", "--key-file", str(key_file), "--archive", archive]
    with tempfile.TemporaryDirectory(prefix="sw-", dir="/tmp") as sockets:
        starting = [
            subprocess.Popen(
                [*command, "--data-dir", str(tmp_path / name), "--listen", f"unix://{sockets}/{name}"],
                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            )
            for name in "abcd"
        ]  # fmt: skip
        said = []
        for process in starting:
            assert process.stdout is not None
            said.append(process.stdout.readline())
        for process in starting:
            process.terminate()
            process.communicate(timeout=60)
    assert ["ready" in line for line in said] == [True] * 4
    for name in "abcde":
        with run_daemon(tmp_path / name, key_file=key_file, archive=archive) as daemon, daemon.client() as client:
            assert [each.finding for each in client.archive.verify() if each.finding is not None] == []


def test_a_daemon_says_it_in_a_line(tmp_path: Path, key_file: Path) -> None:
    """With the object and what to do. While it runs, it serves, and Verify and gc tell."""
    path, archive = tmp_path / "bucket/v1/_format", f"file://{tmp_path}/bucket"
    with run_daemon(tmp_path / "a", key_file=key_file, archive=archive) as daemon, daemon.client() as client:
        client.thread("t").append("log", 1, durability="archived")
        kept = path.read_bytes()
        form = read_format(kept)
        form.min_reader = form.min_writer = ROTATED_FORMAT
        path.write_bytes(form.SerializeToString())
        client.thread("t").append("log", 2, durability="archived")
        (found,) = [each.finding for each in client.archive.verify() if each.finding is not None]
        assert found.message.startswith("v1/_format was changed without the archive's key")
        with pytest.raises(errors.Corrupt, match="_format was changed"):
            list(client.archive.collect())
        daemon.stop()
        for data in (tmp_path / "a", tmp_path / "b"):
            with (
                pytest.raises(RuntimeError, match="--archive: v1/_format was changed without the archive's key"),
                run_daemon(data, key_file=key_file, archive=archive),
            ):
                pass
        path.write_bytes(kept)
        daemon.start()
        assert list(client.thread("t").hydrate().logs["log"]) == [1, 2]
