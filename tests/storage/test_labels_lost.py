"""The danger: a list by labels leaves a thread out, or shows one without the label, and Verify does not notice."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import findings, get, opened, save, settle, write

from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ListThreadsRequest, UpdateThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.storage import layout
from stateward_sidecar.store.read import listing
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.thread import rows

LABELS = {"team": ("red", "blue"), "env": ("prod", "test"), "rare": ("yes",)}


def options(number: int) -> dict[str, str]:
    dice = random.Random(number)
    return {
        key: dice.choice(values) for key, values in LABELS.items() if dice.random() < (0.1 if key == "rare" else 0.8)
    }


def listed(store: Store, **asked: Any) -> tuple[list[str], int]:
    """The names of a list, and the number of its pages."""
    request, found, pages = ListThreadsRequest(namespace="default", **asked), list[str](), 0
    while True:
        answer = store.lister.threads(request)
        found, pages = found + [each.thread for each in answer.threads], pages + 1
        if not answer.next_page_token:
            return found, pages
        request.page_token = answer.next_page_token


def check(store: Store) -> None:
    """Every list by labels is what the whole list shows of them, in the same order, whatever the pages."""
    answer = store.lister.threads(ListThreadsRequest(namespace="default", page_size=1000))
    for asked in (
        {"team": "red"},
        {"team": "red", "env": "prod"},
        {"rare": "yes"},
        {"rare": "yes", "team": "blue"},
        {"team": ""},
    ):
        fit = [each.thread for each in answer.threads if asked.items() <= dict(each.labels).items()]
        for size in (1, 7, 1000):
            assert listed(store, labels=asked, page_size=size)[0] == fit
        done = [each.thread for each in answer.threads if each.status == 4 and each.thread in fit]
        assert listed(store, labels=asked, statuses=[4], page_size=2)[0] == done
    assert findings(store) == []


def fill(store: Store, threads: int = 60) -> None:
    for number in range(threads):
        status: Any = 4 if number % 3 else 1
        save(store, f"t{number}", f"t{number}", status=status, create=ThreadOptions(labels=options(number)))


def relabel(store: Store, name: str, labels: dict[str, str]) -> None:
    request = UpdateThreadRequest(namespace="default", thread=name, options=WriteOptions(request_id=f"{name}{labels}"))
    request.update.labels.update(labels)
    request.update_mask.paths.append("labels")
    write(store, store.settings.update(request))


def index_rows(store: Store) -> int:
    with store.context.engine.read() as txn:
        return len(list(rows(txn, b"G")))


@pytest.mark.parametrize("few", [0, 3, 500])
def test_lists_by_label_are_lists_filtered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, few: int) -> None:
    """If few or many threads have a label, after changes of labels and deletions too."""
    monkeypatch.setattr(listing, "FEW", few)
    monkeypatch.setattr(listing, "IN_VAIN_MAX", 5)
    with opened(tmp_path) as store:
        fill(store)
        check(store)
        for number in range(0, 60, 5):
            relabel(store, f"t{number}", options(number + 1000))
        for number in range(3, 60, 7):
            save(store, f"again{number}", f"t{number}")
        check(store)
        for number in range(1, 60, 2):
            write(store, store.deleter.delete(DeleteThreadRequest(namespace="default", thread=f"t{number}")))
        check(store)
        for number in range(0, 60, 2):
            relabel(store, f"t{number}", {})
        settle(store)
        assert index_rows(store) == 0
    with opened(tmp_path) as store:
        check(store)


def test_a_list_does_not_read_what_has_not_the_label(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One thread of many is found in one page, of which no other head is read."""
    with opened(tmp_path) as store:
        for number in range(300):
            save(store, f"t{number}", f"t{number}", create=ThreadOptions(labels={"rare": "yes"} if number == 7 else {}))
        head, read = store.threads.head, list[int]()
        monkeypatch.setattr(store.threads, "head", lambda txn, number: read.append(number) or head(txn, number))
        for few in (500, 0):
            monkeypatch.setattr(listing, "FEW", few)
            assert listed(store, labels={"rare": "yes"}) == (["t7"], 1)
            assert set(read) == {get(store, "t7").number}


def test_verify_finds_lost_and_wrong_rows(tmp_path: Path) -> None:
    """A row that is gone, one of a label that the thread has not, and one of no thread."""
    with opened(tmp_path) as store:
        save(store, "1", "a", create=ThreadOptions(labels={"team": "red"}))
        save(store, "2", "b", create=ThreadOptions(labels={"team": "blue"}))
        with store.context.engine.read() as txn:
            keys = [key for key, _ in rows(txn, b"G")]
        number = get(store, "a").number
        mine = next(key for key in keys if layout.labelled_thread(key) == number)
        write(store, lambda txn, _: txn.delete(mine))
        assert [(each.thread, each.message) for each in findings(store)] == [
            ("a", "the thread is missing in the list of its namespace")
        ]
        write(store, lambda txn, _: txn.put(mine, layout.PRESENT))
        assert findings(store) == []
        for tail in (get(store, "b").number, 99):
            wrong = layout.labelled_key(mine[:-4], tail)
            write(store, lambda txn, _, key=wrong: txn.put(key, layout.PRESENT))
            assert [each.message for each in findings(store)] == [
                f"thread number {tail} is at a wrong place in a list of its namespace"
            ]
            assert listed(store, labels={"team": "red"})[0] == ["a"]
            write(store, lambda txn, _, key=wrong: txn.delete(key))
