"""The danger: the history of a thread was replaced, and its proof says that it continues what somebody kept."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import lmdb
import pytest
from tests.cli.conftest import run
from tests.daemon.town import town

from stateward import AsyncClient, Client, errors
from stateward._operations.proving import prove
from stateward._operations.steps import ThreadRef
from stateward.models import Checkpoint
from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_service_pb2 import GetCheckpointResponse
from stateward.v1.thread_service_pb2 import EntryDigest, ReadDigestsResponse
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.check import proof


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("proofs") / "data") as running:
        yield running


@pytest.fixture
def client(daemon: Daemon) -> Iterator[Client]:
    with daemon.client() as made:
        yield made


def fill(client: Client, name: str, count: int) -> list[Checkpoint]:
    return [client.thread(name).append("m", "x" * 50, number) for number in range(count)]


def test_a_proof_has_every_entry(daemon: Daemon, client: Client) -> None:
    """Of each kind, from each version on; by both halves of the client; each continues the one before it."""
    versions = fill(client, "job", 3)
    thread = client.thread("job")
    thread.tags.set("good", at=1)
    thread.effects.run("pay", lambda: 1)
    thread.records.put("a", 1)
    thread.signals.send("hurry")
    whole = thread.checkpoints.prove()
    assert [each.sequence for each in whole.entries] == list(range(1, thread.info().sequence + 1))
    assert [each.version for each in whole.entries[:4]] == [1, 2, 3, 0]
    assert whole.entries[0].previous_digest == b""
    assert all(b.previous_digest == a.digest for a, b in pairwise(whole.entries))
    assert whole.entries[-1].digest == thread.info().sequence_digest
    for number, version in enumerate(versions, 1):
        assert thread.checkpoints.prove(version).entries == whole.entries[number:]
        assert thread.checkpoints.prove((version.version, version.digest)).uid == whole.uid

    async def prove_async() -> Any:
        async with AsyncClient(daemon.target) as other:
            return await other.thread("job").checkpoints.prove(versions[0])

    assert asyncio.run(prove_async()).entries == whole.entries[1:]


def test_a_long_journal_is_read_in_pages(client: Client) -> None:
    """An answer has 500 entries, and the next one continues it."""
    with client.thread("long").writer() as writer:
        state = writer.reset()
        for number in range(1100):
            state.slots["n"] = number
            writer.send(state)
        writer.flush()
    entries = client.thread("long").checkpoints.prove().entries
    assert len(entries) >= 1100
    assert all(b.previous_digest == a.digest for a, b in pairwise(entries))


def test_what_was_pruned_keeps_its_digest(client: Client) -> None:
    """A pruned version counts as before, and the proof says that nobody could compute its digest again."""
    fill(client, "pruned", 6)
    thread = client.thread("pruned")
    before = thread.checkpoints.prove().entries
    thread.prune(versions=[2, 3])
    after = {each.sequence: each for each in thread.checkpoints.prove().entries}
    for each in before:
        if each.sequence in after:
            assert after[each.sequence].digest == each.digest
            assert after[each.sequence].without_content == (each.version in (2, 3))
    assert after.keys() >= {1, 4, 5, 6}


def test_what_is_not_there_is_not_proved(daemon: Daemon, client: Client) -> None:
    """Another digest, a version that never was, and a thread that was deleted and made again."""
    versions = fill(client, "wrong", 3)
    thread = client.thread("wrong")
    for kept in ((2, bytes(16)), (2, versions[0].digest), (9, versions[0].digest)):
        with pytest.raises((errors.VersionMismatch, errors.VersionNotFound)):
            thread.checkpoints.prove(kept)
    thread.delete()
    fill(client, "wrong", 3)
    with pytest.raises((errors.VersionMismatch, errors.VersionNotFound)):
        client.thread("wrong").checkpoints.prove((2, versions[1].digest))


def test_the_command(daemon: Daemon, client: Client) -> None:
    """It shows the digests and what to keep; that fits the next time, and fails once the store was set back."""
    fill(client, "kept", 3)
    at = ("--target", daemon.target)
    found = run("audit-proof", "kept", *at)
    assert found.code == 0
    keep = found.out.splitlines()[-1].removeprefix("keep ")
    again = run("audit-proof", "kept", "--from", keep, "--json", *at)
    assert (again.code, json.loads(again.out)["entries"], json.loads(again.out)["keep"]) == (0, [], keep)
    assert run("audit-proof", "kept", "--from", "2:xy", *at).code == 1
    daemon.stop()
    copy = daemon.data_dir.with_name("copy")
    shutil.copytree(daemon.data_dir, copy)
    daemon.start()
    last = fill(client, "kept", 1)[0]
    daemon.stop()
    shutil.rmtree(daemon.data_dir)
    copy.rename(daemon.data_dir)
    daemon.start()
    fill(client, "kept", 1)  # another version of this number
    assert run("audit-proof", "kept", "--from", keep, *at).code == 0
    assert run("audit-proof", "kept", "--from", f"{last.version}:{last.digest.hex()}", *at).code == 1


def test_changed_entries_are_not_proved(tmp_path: Path) -> None:
    """A journal whose rows were changed at rest: CORRUPT."""
    with run_daemon(tmp_path / "data") as daemon:
        with daemon.client() as client:
            fill(client, "job", 5)
        daemon.stop()
        file = str(tmp_path / "data/data.mdb")
        with lmdb.open(file, subdir=False, map_size=1 << 30) as env, env.begin(write=True) as txn:
            rows = [(bytes(key), bytes(value)) for key, value in txn.cursor() if key[:1] == b"T" and key[5:6] == b"J"]
            key, value = rows[0]
            changed = bytearray(value)
            changed[len(value.rstrip(b"\0")) - 20] ^= 1
            txn.put(key, bytes(changed))
        daemon.start()
        with daemon.client() as client, pytest.raises(errors.Corrupt):
            client.thread("job").checkpoints.prove()


def test_a_daemon_that_leaves_one_out_is_found() -> None:
    """The client compares the digests itself."""
    digests = [bytes([number]) * 16 for number in range(6)]

    def entry(number: int, before: int) -> EntryDigest:
        return EntryDigest(sequence=number, previous_digest=digests[before], digest=digests[number])

    for entries, is_fine in (
        ([entry(2, 1), entry(3, 2)], True),
        ([entry(2, 0), entry(3, 2)], False),
        ([entry(2, 1), entry(3, 1)], False),
    ):
        steps = prove(ThreadRef("default", "job", "main"), (1, digests[1]))
        next(steps)
        found = GetCheckpointResponse()
        found.checkpoint.sequence, found.checkpoint.digest, found.checkpoint.uid = 1, digests[1], "0" * 32
        steps.send(found)
        answer = ReadDigestsResponse(uid="0" * 32, entries=entries, newest_sequence=3)
        with pytest.raises(StopIteration if is_fine else errors.Corrupt):
            steps.send(answer)


def test_the_daemon_computes_each_digest_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has the key can seal an entry with any digest: one that is not that of its content is CORRUPT, and so is
    an entry that does not follow the one that the caller kept."""
    with town(tmp_path) as made:
        machine = made.machine("first")
        for word in ("a", "b", "c"):
            machine.put(word)
        prover = proof.Prover(machine.store.context)
        whole = prover.prove(machine.thread(), 0, b"")
        assert [each.sequence for each in whole.entries] == [1, 2, 3]
        first = whole.entries[0]
        assert list(prover.prove(machine.thread(), 1, first.digest).entries) == list(whole.entries[1:])
        with pytest.raises(Corrupt, match="does not follow"):
            prover.prove(machine.thread(), 1, bytes(16))
        monkeypatch.setattr(proof, "entry_digest", lambda *_: bytes(16))
        with pytest.raises(Corrupt, match="does not match its content"):
            prover.prove(machine.thread(), 0, b"")
