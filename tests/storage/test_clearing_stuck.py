"""The danger: what was pruned stays on the disk, because of one damaged entry or because of how scattered it lies."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb
import pytest
from google.protobuf.empty_pb2 import Empty
from tests.daemon.store import findings, get, hydrate, opened, rest, save, save_many, write
from tests.messages import to_write
from tests.storage.test_prune_slow import cut, dictionaries, entry, words

from stateward._operations.threads import spans_of
from stateward.v1.effect_service_pb2 import DeleteEffectsRequest, EffectKeys, PutEffectsRequest
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import QueueFull, ShuttingDown
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread import blocks
from stateward_sidecar.store.thread.thread import rows
from stateward_sidecar.store.versions import snapshots


def prune(store: Store, *versions: int) -> None:
    what = spans_of(versions)
    store.pruner.prune(PruneThreadRequest(namespace="default", thread="t", versions=what))


def put(store: Store, request_id: str, *effects: tuple[str, str]) -> None:
    """Puts effects, as (anchor, key)."""
    request = PutEffectsRequest(namespace="default", thread="t", options=WriteOptions(request_id=request_id))
    for anchor, key in effects:
        request.effects.add(anchor=anchor, key=key).value.data = request_id.encode()
    write(store, store.effects.put(request))


def delete(store: Store, **fields: Any) -> int:
    request = to_write(DeleteEffectsRequest, namespace="default", thread="t", request_id="delete", **fields)
    return store.effect_deleter.delete(request).deleted


def left(store: Store) -> list[int]:
    """The sequences of the entries that are on the disk."""
    with store.context.engine.read() as txn:
        return [sequence for sequence, _ in blocks.entries(txn, get(store).identity.keys, 1)]


def damage(store: Store, sequence: int) -> None:
    def run(txn: lmdb.Transaction, batch: object) -> None:
        keys = get(store).identity.keys
        record = blocks.get_entry(txn, keys, sequence)
        assert record is not None
        blocks.shrink_entry(txn, keys, sequence, record[:-1] + bytes([record[-1] ^ 1]))

    write(store, run)


def test_a_damaged_husk_keeps_only_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entries around it go, and so does the row that names what to clear. Verify names the damage."""
    with opened(tmp_path) as store:
        for number in range(1, 13):
            save(store, str(number))
        prune(store, 2, 3, 4)
        damage(store, 3)
        for module in (clear, verify):
            monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 5)  # as if a thousand entries and an hour were over
        monkeypatch.setattr(clear, "REQUEST_WINDOW_S", 0)
        prune(store, 5, 6)
        assert left(store) == [1, 3, *range(7, 15)]
        with store.context.engine.read() as txn:
            assert list(rows(txn, b"P")) == []
        assert [finding.sequence for finding in findings(store)] == [3]


def test_scattered_entries_are_cleared_in_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The row that names what to clear has a range for each of them, so no step may read it or write it."""
    steps, looks = [0], [0]

    def counted(function: Callable[..., Any], count: list[int]) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            count[0] += 1
            return function(*arguments)

        return call

    with opened(tmp_path) as store:
        save(store, "0")
        put(store, "put", *(("ab"[number % 2], str(number)) for number in range(60)))
        monkeypatch.setattr(clear, "STEP_S", 0.0)
        monkeypatch.setattr(clear.Clearer, "_step", counted(clear.Clearer._step, steps))
        monkeypatch.setattr(clear, "read_uncleared", counted(clear.read_uncleared, looks))
        assert delete(store, anchor="a") == 30
        assert steps[0] >= 30
        assert looks[0] < 10
        assert findings(store) == []


@pytest.mark.parametrize("keys", [[], ["k1", "k2"]])
def test_saves_do_not_keep_free_effects_from_being_deleted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keys: list[str]
) -> None:
    """A save without a checkpoint id, and an effect with another key, do not concern the effects that are deleted."""
    with opened(tmp_path) as store:
        save(store, "0")
        put(store, "put", ("", "k1"), ("", "k2"), ("x", "k1"))
        plan = store.effect_deleter._plan

        def plan_then_save(*arguments: Any) -> Any:
            found = plan(*arguments)
            save(store, f"after {get(store).head.tip_sequence}")
            put(store, f"put {get(store).head.tip_sequence}", ("other" if not keys else "", "k3"))
            return found

        monkeypatch.setattr(store.effect_deleter, "_plan", plan_then_save)
        what = {"keys": EffectKeys(keys=keys)} if keys else {"all": Empty()}
        assert delete(store, anchor="", **what) == 2
        assert findings(store) == []


def test_an_effect_that_is_put_after_the_plan_is_planned_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The named effect changes after each plan: nothing is deleted by an old plan."""
    with opened(tmp_path) as store:
        save(store, "0")
        put(store, "put", ("", "k1"))
        plan, count = store.effect_deleter._plan, [0]

        def plan_then_put(*arguments: Any) -> Any:
            found = plan(*arguments)
            count[0] += 1
            put(store, f"again {count[0]}", ("", f"k{count[0] + 1}"))
            return found

        monkeypatch.setattr(store.effect_deleter, "_plan", plan_then_put)
        with pytest.raises(QueueFull):
            delete(store, anchor="", keys=EffectKeys(keys=[f"k{number}" for number in range(1, 40)]))
        assert findings(store) == []


def test_a_crash_between_steps_leaves_no_dictionary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Versions that were cleared before the crash, and that the row still names, need no snapshot any more."""
    monkeypatch.setattr(clear, "STEP_S", 0.0)
    monkeypatch.setattr(snapshots, "WEIGHT_MIN_BYTES", 1500)
    monkeypatch.setattr(snapshots, "WEIGHT_BY_SIZE", 1)
    dice = random.Random(1)
    with opened(tmp_path) as store:
        for _ in range(3):
            save_many(store, [entry(words(dice)) for _ in range(6)])
            hydrate(store)
            store.snapshots.consider(get(store), "main")
            rest(store)
        used = dictionaries(store)
        save_many(store, [entry(words(dice)) for _ in range(2)])
        step, left_steps = clear.Clearer._step, [10]

        def dying(*arguments: Any) -> Any:
            left_steps[0] -= 1
            if left_steps[0] < 0:
                raise ShuttingDown("dead")
            return step(*arguments)

        with monkeypatch.context() as dead:
            dead.setattr(clear.Clearer, "_step", dying)
            cut(store, keep_latest_per_branch=1)
    with opened(tmp_path) as store:
        rest(store)
        assert used
        assert not used & get(store).snapshots
        assert findings(store) == []
