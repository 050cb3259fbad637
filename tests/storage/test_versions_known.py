"""The danger: a client that has a version gets changes that do not lead from there, because heads moved meanwhile."""

from __future__ import annotations

import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import findings, get, opened, save, write
from tests.daemon.wire import appends, put_over, sets
from tests.storage.test_branches_old import delete, move
from tests.storage.test_prune_slow import cut

from stateward.v1.checkpoint_service_pb2 import HydrateRequest, HydrateResponse
from stateward.v1.diff_pb2 import Diff, Edit
from stateward.v1.state_pb2 import State
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.errors import InvalidField
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.store import Store

STEPS, LOOKS = 60, 8
FILLING = sets("filling", "f" * 5000)  # so that the changes are usually less than the state
Known = tuple[int, bytes, State]


def hydrate(store: Store, **fields: Any) -> HydrateResponse:
    request = HydrateRequest(namespace="default", thread="t", **fields)
    return HydrateResponse.FromString(store.read(store.reader.hydrate, request))


def content(state: State) -> bytes:
    state.partial = False
    return state.SerializeToString(deterministic=True)


def changes(dice: random.Random) -> Diff:
    """A slot is set, and perhaps deleted; or a log grows, and is perhaps trimmed or deleted."""
    name, value = dice.choice(["a", "b"]), f"{dice.random()}"
    slot = [sets(name, value).edits[0], Edit(delete_slot={"slot": name})]
    ends = [Edit(delete_log={"log": name}), Edit(trim_log={"log": name, "keep_last": 1})]
    log = [appends(value, log=name).edits[0], dice.choice(ends)]
    return Diff(edits=[each for pair in (slot, log) for each in pair[: dice.choice([0, 1, 1, 1, 2])]])


def step(store: Store, dice: random.Random, number: int) -> None:
    """A save to a branch from anywhere, a move, a deletion, a prune, or the thread is made again."""
    thread = get(store)
    branch, kind = dice.choice(["main", "main", "x"]), dice.random()
    free = thread.pruned.missing(thread.head.last_version)
    if kind < 0.15 and branch in thread.branches:
        with suppress(InvalidField):  # a version of another branch
            move(store, dice.choice(list(free)), branch)
    elif kind < 0.19 and "x" in thread.branches:
        delete(store, "x")
    elif kind < 0.25:
        cut(store, keep_latest_per_branch=dice.randrange(2, 9))
    elif kind < 0.29:
        write(store, store.deleter.delete(DeleteThreadRequest(namespace="default", thread="t")))
        save(store, f"again {number}", diff=FILLING)
    else:
        fields: dict[str, Any] = {"branch": branch}
        if branch not in thread.branches or kind < 0.37:
            fields["parent"] = {"version": dice.choice(list(free))}
        save(store, f"{number}", diff=changes(dice), **fields)


@pytest.mark.parametrize("seed", range(4))
def test_a_known_version_and_its_changes_are_the_whole(tmp_path: Path, seed: int) -> None:
    """Whatever was moved, deleted and pruned since: from any version that was ever read, to any that can be read."""
    dice, known, based = random.Random(seed), list[Known](), 0
    with opened(tmp_path) as store:
        save(store, "first", diff=FILLING)
        for number in range(STEPS):
            step(store, dice, number)
            thread = get(store)
            versions = list(thread.pruned.missing(thread.head.last_version))
            for _ in range(LOOKS):
                target: dict[str, Any] = {"branch": dice.choice(list(thread.branches))}
                if dice.random() < 0.5:
                    target["version"] = {"version": dice.choice(versions)}
                if dice.random() < 0.2:
                    store.context.cache.drop_thread(thread.number)
                whole = hydrate(store, **target)
                before = dice.choice(known) if known else (0, b"", State())
                if before[0]:
                    found = hydrate(store, known_version=before[0], known_digest=before[1], **target)
                    assert found.checkpoint == whole.checkpoint
                    state = put_over(before[2], found, found.state) if found.base_version else found.state
                    assert content(state) == content(whole.state), (number, target, before[:2])
                    based += bool(found.base_version)
                known.append((whole.checkpoint.version, whole.checkpoint.digest, whole.state))
                if len(known) > 100:
                    known.pop(dice.randrange(100))
        assert findings(store) == []
    assert based > STEPS * LOOKS / 10


def test_edits_that_are_far_larger_than_the_state_are_not_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A large slot came and went since the known version. The event loop reads such changes, and would stand still."""
    with opened(tmp_path) as store:
        save(store, "first", diff=sets("a", "1"))
        known = hydrate(store).checkpoint
        save(store, "large", diff=sets("b", "b" * 3_000_000))
        save(store, "gone", diff=Diff(edits=[Edit(delete_slot={"slot": "b"})]))
        read_edits, read = replay.read_edits, list[int]()

        def count(*arguments: Any) -> bytes:
            edits = read_edits(*arguments)
            read.append(len(edits))
            return edits

        monkeypatch.setattr(replay, "read_edits", count)
        answer = hydrate(store, known_version=known.version, known_digest=known.digest)
        assert answer.base_version == 0
        assert list(answer.state.slots) == ["a"]
        assert max(read) < 1000
