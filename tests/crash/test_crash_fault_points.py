"""The danger: a crash in the middle of creating, deleting, forking or pruning leaves half a thread, or destroys the key
of a living one."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.crash.faulty_daemon import FaultyDaemon
from tests.end_to_end.recorded import verify_everything

from stateward import Client
from stateward.errors import ThreadNotFound, Unavailable, VersionPruned
from stateward.testing import run_daemon
from stateward_sidecar.storage import keystore, layout

VERSIONS = 40
LARGE_BYTES = 3_500_000  # incompressible: several pieces of a snapshot
CLEAN_TIMEOUT_S = 10.0


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data of a daemon at rest: a thread `base` with 40 versions and a tag, and nothing else."""
    directory = tmp_path_factory.mktemp("filled") / "data"
    with run_daemon(directory, log_level="warning") as daemon:
        with daemon.client() as client:
            base = client.thread("base")
            for number in range(1, VERSIONS + 1):
                base.append("log", {"n": number, "text": f"{number} " * 100}, request_id=f"base{number}", step=number)
            base.tags.set("seven", at=7)
        assert daemon.stop() == 0
    return directory


@pytest.fixture(scope="module")
def doomed(filled: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same, and a thread `doomed` of more rows than are removed at once."""
    directory = copy(filled, tmp_path_factory.mktemp("doomed") / "data")
    with run_daemon(directory, log_level="warning") as daemon:
        with daemon.client() as client:
            for number in range(600):
                client.thread("doomed").append("log", number, request_id=f"doomed{number}")
        assert daemon.stop() == 0
    return directory


def copy(data: Path, to: Path) -> Path:
    """Copies data and their key."""
    shutil.copytree(data, to)
    shutil.copy(f"{data}.key", f"{to}.key")
    return to


@pytest.fixture
def daemon(filled: Path, tmp_path: Path) -> Iterator[FaultyDaemon]:
    """A daemon with a copy of the data, not started."""
    copy(filled, tmp_path / "data")
    daemon = FaultyDaemon(_short(tmp_path), tmp_path / "data", log_level="warning")
    try:
        yield daemon
    finally:
        daemon.kill()


def _short(path: Path) -> Path:
    """A socket's path must be short, and pytest's directories are deep."""
    short = Path("/tmp", f"sw-{os.getpid()}-{abs(hash(path)) % 10**6}")
    short.mkdir(mode=0o700)
    return short


def die_at(daemon: FaultyDaemon, where: str, nth: int, action: Callable[[Client], Any], *, restart: bool = True) -> Any:
    """Does something during which the daemon dies, and starts it again. Returns the answer, None if there was none."""
    daemon.start_faulty(where, nth)
    answer = None
    with daemon.client(retry_timeout=0.0, blob_threshold=0) as client:  # large values are wanted in the state
        client.server_info()  # before its first answer a client is patient for longer
        with suppress(Unavailable):
            answer = action(client)
        daemon.wait_until_dead()
    if restart:
        daemon.start()
    return answer


def check_base(client: Client, gone: range = range(0)) -> None:
    """The thread `base` is as it was, but for pruned versions."""
    base = client.thread("base")
    for version in range(1, VERSIONS + 1):
        if version in gone:
            with pytest.raises(VersionPruned):
                base.hydrate(at=version)
        else:
            assert [each["n"] for each in base.hydrate(at=version).logs["log"]] == list(range(1, version + 1))
    assert base.hydrate(at="seven").version == 7
    assert base.hydrate().version == base.info().version == VERSIONS


def leftovers(data_dir: Path) -> dict[str, Any]:
    """What is in the store besides whole threads: rows of threads without a name, and keys without a thread."""
    with lmdb.open(str(data_dir), readonly=True, max_readers=512, map_size=1 << 36) as env, env.begin() as txn:
        keys = list(txn.cursor().iternext(keys=True, values=False))
        named = dict(layout.unpack_name(value) for key, value in txn.cursor() if key[:1] == b"N")
    slots = (data_dir / "keys").read_bytes()
    kinds = [slots[at] for at in range(2 * keystore.SLOT_BYTES, len(slots), keystore.SLOT_BYTES)]
    return {
        "nameless threads": sorted({layout.thread_of(key) for key in keys if key[:1] == b"T"} - named.keys()),
        "keys without a thread": kinds.count(keystore.THREAD) - len(named),
        "erased keys": kinds.count(keystore.ERASED),
    }


def uncleared(data_dir: Path) -> list[bytes]:
    """The rows of pruned versions that are still to be cleared away, and of snapshots that are."""
    with lmdb.open(str(data_dir), readonly=True, max_readers=512, map_size=1 << 36) as env, env.begin() as txn:
        return [key for key, _ in txn.cursor() if key[:1] in (b"H", b"P")]


def check_clean(daemon: FaultyDaemon) -> None:
    """Nothing is left of what was not finished, soon after the start; and all the rest is sound."""
    end = time.monotonic() + CLEAN_TIMEOUT_S
    expected = {"nameless threads": [], "keys without a thread": 0, "erased keys": 0}
    while (found := leftovers(daemon.data_dir)) != expected and time.monotonic() < end:
        time.sleep(0.05)
    assert verify_everything(daemon)[1] == []
    assert found == expected


@pytest.mark.parametrize(
    ("where", "is_kept"),
    [
        (">storage.keystore:KeyStore.sync", False),  # its key is durable, nothing else
        ("<storage.writer:Writer._finish", True),  # committed, not answered
    ],
)
def test_a_thread_whose_creation_dies_is_there_or_not(daemon: FaultyDaemon, where: str, is_kept: bool) -> None:
    """A first save that was not answered is wholly there or wholly not, and its retry makes version 1 once."""

    def create(client: Client) -> Any:
        return client.thread("new").append("log", "first", request_id="create", step=1)

    assert die_at(daemon, where, 1, create) is None
    with daemon.client() as client:
        assert client.thread("new").hydrate().version == (1 if is_kept else 0)
        made = create(client)
        assert (made.version, made.replayed) == (1, is_kept)
        assert list(client.thread("new").hydrate().logs["log"]) == ["first"]
        check_base(client)
    check_clean(daemon)


@pytest.mark.parametrize(
    ("where", "nth"),
    [
        (">storage.keystore:KeyStore.erase_thread", 1),  # the key is gone, the name is not
        ("<storage.writer:Writer._finish", 1),  # the name is gone, all rows are there
        ("<store.clean.delete:Deleter._purge_rows", 2),  # some rows are gone
    ],
)
def test_a_deletion_that_dies_is_finished_by_the_next_start(
    daemon: FaultyDaemon, doomed: Path, where: str, nth: int
) -> None:
    """A thread that was being deleted is gone after a crash too; its rows follow, and its name can be used again."""
    shutil.rmtree(daemon.data_dir)
    copy(doomed, daemon.data_dir)
    die_at(daemon, where, nth, lambda client: client.thread("doomed").delete())
    with daemon.client() as client:
        with pytest.raises(ThreadNotFound):
            client.thread("doomed").hydrate(must_exist=True)
        assert [thread.name for thread in client.threads()] == ["base"]
        client.thread("doomed").append("log", "anew", request_id="anew")
    check_clean(daemon)
    daemon.kill()
    daemon.start()
    with daemon.client() as client:
        state = client.thread("doomed").hydrate(must_exist=True)
        assert (state.version, list(state.logs["log"])) == (1, ["anew"])
        check_base(client)
    check_clean(daemon)


def test_a_deletion_that_dies_before_its_commit_has_done_nothing(daemon: FaultyDaemon) -> None:
    """A thread whose deletion was prepared and not committed keeps its key, and can be deleted later."""

    def delete_base(client: Client) -> None:
        client.thread("base").delete()

    die_at(daemon, ">storage.keystore:KeyStore.sync", 1, delete_base)
    with daemon.client() as client:
        check_base(client)
        check_clean(daemon)
        delete_base(client)
        assert not list(client.threads())
    check_clean(daemon)


def test_a_name_that_is_used_again_before_its_deletion_is_finished_stays(daemon: FaultyDaemon) -> None:
    """What the next start finishes of a deletion never touches the new thread that has its name meanwhile."""

    def delete_base(client: Client) -> None:
        client.thread("base").delete()

    die_at(daemon, ">storage.keystore:KeyStore.erase_thread", 1, delete_base, restart=False)
    daemon.start_faulty("~storage.writer:Writer.submit", 1)  # the first one to submit is who finishes the deletion
    with daemon.client() as client:
        client.thread("base").append("log", "anew", request_id="anew")
        check_clean(daemon)
        daemon.kill()
        daemon.start()
        assert list(client.thread("base").hydrate(must_exist=True).logs["log"]) == ["anew"]


@pytest.mark.parametrize(
    ("where", "nth", "is_kept"),
    [
        (">store.copies.hidden:Hidden._put_version", 1, False),
        (">store.copies.hidden:Hidden._put_version", 25, False),
        ("<store.copies.hidden:Hidden._reveal", 1, False),
        (">store.copies.hidden:Hidden._reveal", 1, False),
        (">store.copies.fork:Forker.fork", 1, True),
    ],
)
def test_half_a_copy_is_never_seen_and_leaves_nothing(
    daemon: FaultyDaemon, where: str, nth: int, is_kept: bool
) -> None:
    """A whole fork that dies is wholly there or not at all, its key included, and can be made again."""
    die_at(daemon, where, nth, lambda client: client.thread("base").fork("copy", all_versions=True))
    with daemon.client() as client:
        assert {thread.name for thread in client.threads()} == ({"base", "copy"} if is_kept else {"base"})
        check_base(client)
    check_clean(daemon)
    with daemon.client() as client:
        if is_kept:
            client.thread("copy").delete()
        copy = client.thread("base").fork("copy", all_versions=True)
        client.thread("base").delete()
        for version in range(1, VERSIONS + 1):
            assert len(copy.hydrate(at=version).logs["log"]) == version
        assert copy.hydrate(at="seven").version == 7
    check_clean(daemon)


@pytest.mark.parametrize("where", ["<store.clean.prune:Pruner._remove", ">store.clean.prune:Pruner._remove"])
def test_a_prune_that_dies_has_removed_nothing(daemon: FaultyDaemon, where: str) -> None:
    """Versions go together or not at all, and the prune can be made again."""
    die_at(daemon, where, 1, lambda client: client.thread("base").prune(keep_latest_per_branch=10))
    with daemon.client() as client:
        check_base(client)
        doomed = [version for version in range(1, VERSIONS - 9) if version != 7]
        assert list(client.thread("base").prune(keep_latest_per_branch=10).pruned_versions) == doomed
        daemon.kill()
        daemon.start()
        for version in doomed:
            with pytest.raises(VersionPruned):
                client.thread("base").hydrate(at=version)
        for version in (7, *range(VERSIONS - 9, VERSIONS + 1)):
            assert len(client.thread("base").hydrate(at=version).logs["log"]) == version
    check_clean(daemon)


@pytest.mark.parametrize(
    "where", [">store.clean.clear:Clearer._step", ">store.clean.clear:_strip", ">store.clean.clear:_drop_snapshots"]
)
def test_a_prune_that_dies_while_it_clears_away_is_finished(daemon: FaultyDaemon, where: str) -> None:
    """What was pruned stays so, all the rest is there, and the next start removes what is left."""
    die_at(daemon, where, 1, lambda client: client.thread("base").prune(keep_latest_per_branch=10))
    with daemon.client() as client:
        for version in (1, 8, VERSIONS - 10):
            with pytest.raises(VersionPruned):
                client.thread("base").hydrate(at=version)
        for version in (7, *range(VERSIONS - 9, VERSIONS + 1)):
            assert len(client.thread("base").hydrate(at=version).logs["log"]) == version
    check_clean(daemon)
    end = time.monotonic() + CLEAN_TIMEOUT_S
    while (left := uncleared(daemon.data_dir)) and time.monotonic() < end:
        time.sleep(0.05)
    assert left == []


@pytest.mark.parametrize(
    ("where", "nth"),
    [
        (">store.versions.snapshots:_put_piece", 1),
        (">store.versions.snapshots:_put_piece", 2),
        ("<store.versions.snapshots:Snapshots._finish", 1),
        (">store.versions.snapshots:Snapshots._finish", 1),
    ],
)
def test_half_a_snapshot_does_not_exist(daemon: FaultyDaemon, where: str, nth: int) -> None:
    """A state whose snapshot died half written is read from its edits, and gets its snapshot later."""
    large = os.urandom(LARGE_BYTES)

    def save(client: Client) -> Any:
        state = client.thread("base").hydrate()
        state.slots["large"] = large
        return client.thread("base").save(state, request_id="large")

    die_at(daemon, where, nth, save)
    with daemon.client() as client:
        base = client.thread("base")
        state = base.hydrate()
        assert state.version == VERSIONS + 1  # committed before its snapshot is begun
        assert state.slots["large"] == large
        for number in range(3):
            state.slots["large"] = large = os.urandom(LARGE_BYTES)
            base.save(state, step=number)
        assert base.hydrate().slots["large"] == large
        assert len(base.hydrate(at=VERSIONS).logs["log"]) == VERSIONS
    check_clean(daemon)
