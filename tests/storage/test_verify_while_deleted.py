"""The danger: a thread is deleted while Verify reads it, and made again, and Verify calls it damaged or ends."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import findings, opened, save, write

from stateward.v1.admin_service_pb2 import VerifyRequest
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward_sidecar.store.check import verify
from stateward_sidecar.store.store import Store


def make(store: Store) -> None:
    for number in range(3):
        save(store, f"{number}")


def delete(store: Store) -> None:
    write(store, store.deleter.delete(DeleteThreadRequest(namespace="default", thread="t")))


def make_again(store: Store) -> None:
    delete(store)
    save(store, "again")


STEPS = ["_list_threads", "load_numbered", "_verify_entries", "_verify_rows"]


@pytest.mark.parametrize("before", [False, True])
@pytest.mark.parametrize("meanwhile", [delete, make_again])
@pytest.mark.parametrize("step", STEPS)
def test_a_thread_that_goes_meanwhile_is_no_finding(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str, meanwhile: Callable[[Store], None], *, before: bool
) -> None:
    """Whatever was read of it, before or after that step."""
    with opened(tmp_path) as store:
        make(store)
        place = verify if step == "load_numbered" else verify.Verifier
        real, left = getattr(place, step), [meanwhile]

        def go(*arguments: Any, **named: Any) -> Any:
            if before and left:
                left.pop()(store)
            found = real(*arguments, **named)
            if left:
                left.pop()(store)
            return found

        monkeypatch.setattr(place, step, go)
        answers = list(store.verifier.verify(VerifyRequest()))
        assert left == []
        assert [each.finding.message for each in answers if each.HasField("finding")] == []
        assert findings(store) == []


def test_a_slow_reader_keeps_no_transaction_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While findings wait for their reader, the map's old pages can be used again."""
    with opened(tmp_path) as store:
        make(store)
        begin, under_way = store.context.engine.read, [0]

        class Counted:
            def __enter__(self) -> Any:
                under_way[0] += 1
                self.reading = begin()
                return self.reading.__enter__()

            def __exit__(self, *error: object) -> Any:
                under_way[0] -= 1
                return self.reading.__exit__(*error)

        def clear_lists(txn: Any, batch: object) -> None:
            for table in (b"U", b"S", b"W"):
                for key, _ in list(verify.rows(txn, table)):
                    txn.delete(key)

        write(store, clear_lists)
        monkeypatch.setattr(store.context.engine, "read", Counted)
        found = 0
        for answer in store.verifier.verify(VerifyRequest()):
            assert under_way == [0]
            found += answer.HasField("finding")
        assert found >= 2
