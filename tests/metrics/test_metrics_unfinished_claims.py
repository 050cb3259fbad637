"""The danger: a call whose outcome nobody knows, and that no figure shows."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.daemon.clocks import MovedClock
from tests.daemon.store import opened, write

from stateward.v1.effect_pb2 import EFFECT_STATE_DONE
from stateward.v1.effect_service_pb2 import BeginEffectRequest, CompleteEffectRequest
from stateward.v1.lease_pb2 import Holder
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.codec.seal import Cipher, open_record, seal_record
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.measures import events
from stateward_sidecar.store.clean.census import Census, Counted
from stateward_sidecar.store.store import Store

TERM_S = 60


def begin(store: Store, key: str) -> int:
    holder = Holder(name="agent", incarnation="1")
    asked = BeginEffectRequest(
        namespace="default",
        thread="pays",
        key=key,
        holder=holder,
        options=WriteOptions(request_id=key, create=ThreadOptions()),
    )
    return int(write(store, store.effects.begin(asked)).claim_token)


def count(census: Census) -> Counted:
    found = census.take()
    assert found is not None
    return found


def test_a_claim_whose_term_ended(tmp_path: Path) -> None:
    """It counts as under way until its term ends, then as uncertain; one that was completed counts as neither."""
    clock = MovedClock()
    with opened(tmp_path / "data", clock) as store:
        census = Census(store.context, store.threads)
        begin(store, "lost")
        done = CompleteEffectRequest(
            namespace="default", thread="pays", key="done", claim_token=begin(store, "done"), state=EFFECT_STATE_DONE
        )
        write(store, store.effects.complete(done))
        found = count(census)
        assert (found.in_progress, found.uncertain) == (1, 0)
        clock.ahead_s += TERM_S
        found = count(census)
        assert (found.in_progress, found.uncertain) == (0, 1)


def test_a_claim_from_before_a_restart(tmp_path: Path) -> None:
    """Nobody knows when its term began, so it gets a whole term from the first census on, as a caller would give it."""
    clock = MovedClock()
    with opened(tmp_path / "data", clock) as store:
        begin(store, "lost")
    with opened(tmp_path / "data", clock) as store:
        census = Census(store.context, store.threads)
        for later_s, expected in ((0, (1, 0)), (TERM_S - 1, (1, 0)), (1, (0, 1))):
            clock.ahead_s += later_s
            found = count(census)
            assert (found.in_progress, found.uncertain) == expected


def test_many_threads_and_effects(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A census goes on after each row where it stopped, and counts each once."""
    monkeypatch.setattr("stateward_sidecar.store.clean.census.ROWS", 3)
    monkeypatch.setattr("stateward_sidecar.store.clean.census.REST_S", 0)
    with opened(tmp_path / "data") as store:
        for number in range(10):
            begin(store, f"key-{number}")
        found = count(Census(store.context, store.threads))
        assert (found.threads, found.in_progress, found.unreadable) == (1, 10, 0)


def test_bytes_that_were_changed_at_rest() -> None:
    """Each time that sealed bytes do not pass authentication is counted, whoever reads them."""
    cipher, before = Cipher(b"k" * 32), events.unopened
    record = bytearray(seal_record(cipher, b"XX", b"plain"))
    record[-1] ^= 1
    with pytest.raises(Corrupt):
        open_record(cipher, b"XX", bytes(record))
    assert events.unopened == before + 1
