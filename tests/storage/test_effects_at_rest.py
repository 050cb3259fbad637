"""The danger: the values of deleted effects stay on the disk, or what names them grows without end."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from tests.daemon.clocks import MovedClock
from tests.daemon.store import findings, get, opened, save, write
from tests.daemon.wire import text

from stateward.storage.v1.journal_pb2 import ENTRY_KIND_EFFECT
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import ListEffectsRequest, PutEffectsRequest
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_service_pb2 import PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.clean import clear
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.context import REQUEST_WINDOW_S

PLACE = {"namespace": "default", "thread": "t"}
LARGE = Value(media_type="application/octet-stream", data=os.urandom(3 << 20))


def put(store: Store, number: int, value: Value, **fields: object) -> None:
    effect = Effect(anchor=f"c{number}", key="k", value=value, on_conflict=Effect.CONFLICT_RULE_REPLACE, **fields)
    effect.anchor = effect.anchor if number else "free"
    options = WriteOptions(request_id=os.urandom(8).hex())
    write(store, store.effects.put(PutEffectsRequest(**PLACE, effects=[effect], options=options)))


def fill(store: Store, count: int, first: int = 0) -> None:
    """Versions with an effect each, which is replaced once."""
    for number in range(first + 1, first + count + 1):
        save(store, f"{number}", checkpoint_id=f"c{number}")
        put(store, number, text("first"))
        put(store, number, text("second") if number % 3 else LARGE)


def entries(store: Store) -> dict[int, bool]:
    """The entries of effects that are on the disk, and whether each has its value."""
    thread, found = get(store), {}
    with store.context.engine.read() as txn:
        for entry in replay.read_entries(txn, thread.identity, 1):
            if entry.header.kind == ENTRY_KIND_EFFECT:
                pieces = bool(entry.header.parts_id) and txn.stat()["entries"] > 0
                cursor = txn.cursor()
                prefix = thread.identity.keys.edits_pieces(entry.header.parts_id)
                has_pieces = pieces and cursor.set_range(prefix) and bytes(cursor.key()).startswith(prefix)
                found[entry.header.sequence] = has_pieces or not (entry.is_husk or entry.header.parts_id)
    return found


def prune(store: Store, keep: int) -> None:
    store.pruner.prune(PruneThreadRequest(**PLACE, keep_latest_per_branch=keep))


def anchors(store: Store) -> set[str]:
    asked = ListEffectsRequest(**PLACE, without_values=True, page_size=1000)
    return {each.effect.anchor for each in store.effect_list.read(asked).effects}


def test_values_go_with_the_edits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that were replaced, and large ones; later the entries go, and a restart changes nothing."""
    for module in (clear, verify):
        monkeypatch.setattr(module, "REQUEST_WINDOW_ENTRIES", 4)
    clock = MovedClock()
    with opened(tmp_path, clock) as store:
        put(store, 0, text("free"))
        fill(store, 12)
        bytes_before = get(store).head.stored_bytes
        prune(store, 2)
        thread = get(store)
        assert list(entries(store).values()) == [True] + 20 * [False] + 4 * [True]
        assert anchors(store) == {"free", "c11", "c12"}
        assert thread.head.effects == 3
        assert thread.head.stored_bytes < bytes_before - 3 * len(LARGE.data)
        assert findings(store) == []
        clock.ahead_s = REQUEST_WINDOW_S + 10
        fill(store, 2, 12)
        prune(store, 2)
        assert [has_value for has_value in entries(store).values() if not has_value] == []
        assert anchors(store) == {"free", "c13", "c14"}
        # 26 entries of effects, husks of versions, entries of prunes: all of them is one range.
        assert len(get(store).pruned.effects.pairs()) == 1
        assert findings(store) == []
    with opened(tmp_path, clock) as store:
        assert anchors(store) == {"free", "c13", "c14"}
        assert findings(store) == []


def test_a_crash_before_the_clearing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The effects are gone with the commit of the prune; the next start removes their values."""
    with opened(tmp_path) as store:
        fill(store, 6)
        monkeypatch.setattr(type(store.pruner), "_clear_up", lambda *_: None)
        prune(store, 2)
        assert anchors(store) == {"c5", "c6"}
        assert list(entries(store).values()) == 12 * [True]
    monkeypatch.undo()
    with opened(tmp_path) as store:
        store.pruner.resume()
        assert list(entries(store).values()) == 8 * [False] + 4 * [True]
        assert findings(store) == []


def test_verify_finds_a_deleted_effect_that_is_back(tmp_path: Path) -> None:
    """A row that was set back, with the sum of the effects."""
    with opened(tmp_path) as store:
        fill(store, 3)
        thread = get(store)
        prefix = thread.identity.keys.all_of(b"E")
        with store.context.engine.read() as txn:
            cursor = txn.cursor()
            assert cursor.set_range(prefix)
            rows = [(bytes(key), bytes(value)) for key, value in cursor if bytes(key).startswith(prefix)]
        prune(store, 1)
        write(store, lambda txn, batch: [txn.put(key, value) for key, value in rows])
        assert any("effect" in each.message for each in findings(store))
