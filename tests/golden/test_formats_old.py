"""The danger: a later version cannot read the data of an earlier one, or spoils them with its first change."""

from __future__ import annotations

import json
import subprocess
import sys
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.faults.rig import kind
from tests.golden.make import BACKUP, GOLDEN, read_all

from stateward import Client
from stateward.testing import Daemon, run_daemon
from stateward_sidecar.storage.engine import FORMAT

FILES = sorted(GOLDEN.glob("format_*.tar.gz"))
# Not there: orphans, edits in pieces, which take a megabyte, and rows that a store has only for a while.
KINDS = {
    "D", "E", "G", "K", "L", "N", "Q", "R", "S", "TA", "TB", "TC", "TE", "TG", "TI", "TJ", "TK", "TQ", "TR", "TS", "TV",
    "TX", "TY", "TZ", "U", "W", "Marchive", "Mboots", "Mformat", "Mplace", "Mthread",
}  # fmt: skip
Verb = Callable[[Client, str], Any]


@pytest.fixture(params=FILES, ids=lambda path: path.name)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """What a format's file holds."""
    with tarfile.open(request.param) as packed:
        packed.extractall(tmp_path, filter="data")
    return tmp_path


@contextmanager
def started(golden: Path, name: str = "data", **flags: Any) -> Iterator[tuple[Daemon, Client]]:
    """A daemon with the key and the archive of the format's data."""
    flags = {"archive": f"file://{golden / 'bucket'}", **flags}
    with (
        run_daemon(data_dir=golden / name, key_file=golden / "data.key", **flags) as daemon,
        daemon.client(blob_threshold=0) as client,
    ):
        yield daemon, client


def expected(golden: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((golden / "expected.json").read_text())
    return found


def read(client: Client, golden: Path) -> dict[str, Any]:
    return {name: read_all(client, name) for name in expected(golden)}


def findings(client: Client) -> list[Any]:
    return [step.finding for step in client.verify() if step.finding is not None]


def write(client: Client, golden: Path) -> None:
    """Writes to each thread, into the archive."""
    for name in expected(golden):
        client.thread(name).append("written", "by this version", durability="archived")
        assert list(client.thread(name).hydrate().logs["written"]) == ["by this version"]


def test_this_version_has_a_file() -> None:
    """With a row of every kind. Make it again with `python -m tests.golden.make`."""
    assert GOLDEN / f"format_{FORMAT}.tar.gz" in FILES


def test_the_data_have_rows_of_every_kind(golden: Path) -> None:
    """What is not in the data is not tested: a new kind of row must come into `make.py`."""
    with lmdb.open(str(golden / "data"), map_size=1 << 30, lock=False, readonly=True) as env, env.begin() as txn:
        assert {kind(bytes(key)) for key, _ in txn.cursor()} - {"H", "O", "P"} == KINDS


def test_a_store_is_read_and_written(golden: Path) -> None:
    """Every version comes back with its digest, and what lies beside it; all verifies, and goes on."""
    with started(golden) as (daemon, client):
        assert read(client, golden) == expected(golden)
        assert findings(client) == []
        write(client, golden)
        before = read(client, golden)
        daemon.kill()
        daemon.start()
        assert read(client, golden) == before
        assert findings(client) == []


def test_an_archive_is_read_and_written(golden: Path) -> None:
    """A machine that has nothing but the key takes every thread, and goes on."""
    with started(golden, "empty") as (_, client):
        assert read(client, golden) == expected(golden)
        write(client, golden)
        assert findings(client) == []
        assert [step.finding for step in client.archive.verify() if step.finding is not None] == []


def test_a_backup_is_restored(golden: Path) -> None:
    """Whatever the threads had. Only the digests are new."""

    def bare(threads: dict[str, Any]) -> dict[str, Any]:
        for facts in threads.values():
            for fact in facts.values():
                if isinstance(fact, dict):
                    fact.pop("digest", None)
        return threads

    with run_daemon() as daemon, daemon.client(blob_threshold=0) as client:
        command = [Path(sys.executable).with_name("stateward"), "--target", daemon.target, "import", golden / BACKUP]
        subprocess.run(command, check=True)
        assert bare(read(client, golden)) == bare(expected(golden))
        assert findings(client) == []


def main_of(client: Client, name: str) -> list[int]:
    """The versions of main, newest first."""
    return [each.version for each in client.thread(name).checkpoints.list() if each.branch == "main"]


def move_main(client: Client, name: str) -> None:
    before = main_of(client, name)[1]
    assert client.thread(name).branches.move("main", before).version == before
    assert client.thread(name).hydrate().version == before


def prune_main(client: Client, name: str) -> None:
    head, before = main_of(client, name)[:2]
    client.thread(name).prune(versions=[head], move_heads=True)
    assert client.thread(name).hydrate().version == before


def copy_whole(client: Client, name: str) -> None:
    client.thread(name).fork("another", all_versions=True)
    assert read_all(client, "another").keys() == read_all(client, name).keys()


def make_again(client: Client, name: str) -> None:
    client.thread(name).delete()
    client.thread(name).append("messages", "new")
    assert client.thread(name).hydrate().version == 1


ROUNDS: list[dict[str, Verb]] = [
    {
        "agent-1": move_main,
        "whole-copy": prune_main,
        "copy-of-60": lambda client, name: client.thread(name).tags.set("here"),
        "large": lambda client, name: client.thread(name).signals.send("note"),
        "work": prune_main,
    },
    {
        "agent-1": lambda client, name: client.thread(name).branches.delete("retry"),
        "whole-copy": copy_whole,
        "copy-of-60": make_again,
        "large": lambda client, name: client.thread(name).records.put("key", 1),
        "work": move_main,
    },
]


@pytest.mark.parametrize("verbs", ROUNDS)
def test_the_first_change(golden: Path, verbs: dict[str, Verb]) -> None:
    """Each verb finds what the format wrote: nothing is found before and after the next save, and a restart reads what
    was there."""
    with started(golden) as (daemon, client):
        for name, verb in verbs.items():
            verb(client, name)
        assert findings(client) == []
        daemon.kill()
        daemon.start()
        for name in verbs:
            client.thread(name).append("written", "by this version")
        before = {name: read_all(client, name) for name in verbs}
        daemon.kill()
        daemon.start()
        assert {name: read_all(client, name) for name in verbs} == before
        assert findings(client) == []
