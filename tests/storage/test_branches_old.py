"""The danger: a list of one old branch reads the whole thread, and a head that went back is lost with the process."""

from __future__ import annotations

import itertools
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import findings, get, hydrate, make_store, opened, save, save_many, write
from tests.storage.test_prune_slow import cut, entry

from stateward._operations.threads import numbers_of, spans_of
from stateward.v1.checkpoint_service_pb2 import ListCheckpointsRequest
from stateward.v1.thread_service_pb2 import DeleteBranchRequest, MoveBranchRequest
from stateward_sidecar.codec.snapshot import to_snapshot
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.store import Store

LINE = 400


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the journal entries that are read."""
    count, original = [0], replay.unpack

    def counted(*arguments: Any) -> Any:
        count[0] += 1
        return original(*arguments)

    monkeypatch.setattr(replay, "unpack", counted)
    return count


def listed(store: Store, branch: str = "", size: int = 100) -> list[int]:
    """All pages of a branch."""
    found = list[int]()
    request = ListCheckpointsRequest(namespace="default", thread="t", branch=branch, page_size=size)
    while True:
        page = store.lister.checkpoints(request)
        found += [each.version for each in page.checkpoints]
        if not page.next_page_token:
            return found
        request.page_token = page.next_page_token


def move(store: Store, version: int, branch: str = "main") -> None:
    """Moves a head."""
    asked = MoveBranchRequest(namespace="default", thread="t", branch=branch, version={"version": version})
    write(store, store.mover.move(asked))


def delete(store: Store, branch: str) -> None:
    """Deletes a branch."""
    write(store, store.mover.delete(DeleteBranchRequest(namespace="default", thread="t", branch=branch)))


def test_an_old_branch_is_listed_by_its_own_versions(tmp_path: Path, reads: list[int]) -> None:
    """Also if it is scattered over the thread, and page by page, and after its head went back."""
    with opened(tmp_path) as store:
        save_many(store, (entry(b"m", branch="old" if number % 100 == 5 else "") for number in range(LINE)))
        old = [306, 206, 106, 6]
        for size in (100, 1):
            before = reads[0]
            assert listed(store, "old", size) == old
            assert reads[0] - before < 20
        move(store, 106, "old")
        before = reads[0]
        assert listed(store, "old", 2) == old
        assert listed(store, "no such branch") == []
        assert reads[0] - before < 20


def cut_heads(store: Store, doomed: list[int], made: dict[str, list[int]]) -> None:
    """Prunes versions, heads too: a branch falls back to its newest earlier version, or is no longer ``made``."""
    old = {name: head.version for name, head in get(store).branches.items()}
    with suppress(InvalidField):  # main would have nothing left
        cut(store, versions=spans_of(doomed), move_heads=True)
    thread = get(store)
    for name, head in old.items():
        left = [version for version in made[name] if version <= head and version not in thread.pruned]
        assert [thread.branches[name].version if name in thread.branches else None] == (left or [None])[-1:]
        if not left:
            del made[name]


def test_lists_are_complete(tmp_path: Path) -> None:
    """Whatever was saved, moved, deleted and pruned, a list has a branch's retained versions, and Verify is clean."""
    for seed in range(6):
        dice, made = random.Random(seed), {"main": [1]}
        with opened(tmp_path / str(seed)) as store:
            save(store, "first")
            for number in range(120):
                branch, last = dice.choice(["main", "main", "a", "b"]), get(store).head.last_version
                kind, free = dice.random(), get(store).pruned.missing(last)
                mine = [version for version in made.get(branch, []) if version in set(free)]
                if kind < 0.05 and branch != "main" and branch in made:
                    delete(store, branch)
                    del made[branch]
                elif kind < 0.15 and mine:
                    move(store, dice.choice(mine), branch)
                elif kind < 0.22 and len(free) > 5:
                    cut_heads(store, dice.sample(list(free), 3), made)
                elif kind < 0.25:
                    cut(store, keep_latest_per_branch=dice.randrange(1, 9))
                else:
                    fields: dict[str, Any] = {"branch": branch}
                    if kind < 0.3 or branch not in made:
                        fields["parent"] = {"version": dice.choice(list(free))}
                    save(store, f"{number}", **fields)
                    made.setdefault(branch, []).append(last + 1)
            for again in (False, True):
                if again:
                    store.threads.forget(get(store))
                pruned = get(store).pruned
                assert get(store).branches.keys() == made.keys()
                for branch, versions in made.items():
                    left = [version for version in reversed(versions) if version not in pruned]
                    assert hydrate(store, version=left[0]).checkpoint.version == left[0]
                    assert listed(store, branch) == listed(store, branch, 2) == left
                assert findings(store) == []


def test_a_restart_knows_the_moves(tmp_path: Path) -> None:
    """Heads, deletions and the mark for readers are rows of the commit."""
    with opened(tmp_path) as store:
        save_many(store, (entry(b"m", branch="" if number % 2 else "x") for number in range(10)))
        move(store, 4)
        delete(store, "x")
    store = make_store(tmp_path)
    store.start()
    try:
        thread = get(store)
        assert {name: (head.version, head.newest_version) for name, head in thread.branches.items()} == {
            "main": (4, 10)
        }
        assert (thread.head.main_version, hydrate(store).checkpoint.version) == (4, 4)
        save(store, "next")
        assert get(store).branches["main"].moved_version == 11
        assert findings(store) == []
    finally:
        store.close()


def test_a_head_that_goes_back_needs_what_it_had(tmp_path: Path) -> None:
    """Snapshots and dictionaries of the older head are used again, and stay through a prune of what was let go."""
    dice = random.Random(1)
    with opened(tmp_path) as store:
        save_many(store, (entry(dice.randbytes(3000)) for _ in range(20)))
        for version in (8, 16):
            with store.context.engine.read() as txn:
                tree = replay.state_at(txn, get(store), version, store.context.cache)
                digest = replay.read_version(txn, get(store), version).header.digest
            store.snapshots.store(get(store), version, digest, to_snapshot(tree), get(store).branches["main"])
        before = hydrate(store, version=10).state
        move(store, 10)
        assert get(store).branches["main"].snapshot_version == 8
        cut(store, keep_latest_per_branch=2)
        store.threads.forget(get(store))
        assert hydrate(store).state == before
        save(store, "next")
        cut(store, keep_latest_per_branch=1)
        store.threads.forget(get(store))
        assert len(hydrate(store).state.logs["m"].entries) == 10
        assert findings(store) == []


def test_a_base_is_pruned_while_the_thread_is_busy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A save between the plan and its commit is no reason to refuse a prune that names the base of a branch."""
    with opened(tmp_path) as store:
        save_many(store, (entry(b"m") for _ in range(6)))
        save(store, "x", branch="x", parent={"version": 3})
        before = hydrate(store, version=7).state
        commit, numbers = store.pruner._commit_request, itertools.count()

        def busy(*arguments: Any) -> Any:
            save(store, f"meanwhile {next(numbers)}")
            return commit(*arguments)

        monkeypatch.setattr(store.pruner, "_commit_request", busy)
        assert list(numbers_of(cut(store, versions=spans_of([3])).pruned)) == [3]
        assert get(store).head.last_version == 8
        store.threads.forget(get(store))
        assert hydrate(store, version=7).state == before
        assert findings(store) == []
