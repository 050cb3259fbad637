"""The danger: the row of main's head that format 1 left is lost or counted twice, whatever verb comes first."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest
from tests.storage.inside import as_format_1, findings, get, hydrate, opened, save, write
from tests.storage.test_old_branches import delete, move
from tests.storage.test_revived_keys import archived
from tests.storage.test_slow_prunes import cut, line

from stateward.storage.v1.archive_pb2 import ArchiveRow
from stateward.v1.admin_service_pb2 import VerifyRequest
from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import PutEffectsRequest
from stateward.v1.thread_service_pb2 import (
    DeleteTagRequest,
    DeleteThreadRequest,
    ForkThreadRequest,
    SetTagRequest,
    UpdateThreadRequest,
)
from stateward_sidecar.errors import ThreadNotFound
from stateward_sidecar.store.exporting import Exporter
from stateward_sidecar.store.install import Installer
from stateward_sidecar.store.orphans import Orphans
from stateward_sidecar.store.store import Store

PUT = PutEffectsRequest(namespace="default", thread="t", effects=[Effect(anchor="a", key="k")])
UPDATE = UpdateThreadRequest(
    namespace="default", thread="t", options={"agent": "other"}, update_mask={"paths": ["agent"]}, request_id="u"
)


def install(store: Store, here: Path) -> None:
    """The thread went on elsewhere, and this disk has a copy of format 1."""
    with opened(here) as other:
        save(other, "elsewhere")
        delete(other, "x")
        move(other, 3)
        incoming = archived(other)
    Installer(store.context, store.threads).install(incoming(store))


def restore(store: Store, _: Path) -> None:
    parts = Exporter(store.context, store.threads).open(ExportThreadRequest(namespace="default", thread="t"))
    made = store.importer.begin(ImportBegin(namespace="default", thread="restored", request_id="r"))
    for message in parts:
        made.take(message.parts)
    made.finish()


def fork(store: Store, _: Path, *, whole: bool) -> None:
    store.forker.fork(ForkThreadRequest(namespace="default", thread="t", new_thread="copy", whole=whole))


def make_again(store: Store, _: Path) -> None:
    write(store, store.deleter.delete(DeleteThreadRequest(namespace="default", thread="t")))
    save(store, "again")


def set_aside(store: Store, _: Path) -> None:
    Orphans(store.context, store.threads).set_aside(get(store), 2, ArchiveRow())
    save(store, "again")


VERBS: dict[str, Callable[[Store, Path], object]] = {
    "save": lambda store, _: save(store, "next"),
    "save to x": lambda store, _: save(store, "next", branch="x"),
    "move": lambda store, _: move(store, 3),
    "move x": lambda store, _: move(store, 5, "x"),
    "delete x": lambda store, _: delete(store, "x"),
    "prune heads": lambda store, _: cut(store, versions={"versions": [4]}, move_heads=True),
    "prune": lambda store, _: cut(store, keep_latest_per_branch=1),
    "fork": partial(fork, whole=False),
    "whole fork": partial(fork, whole=True),
    "restore": restore,
    "install": install,
    "delete": make_again,
    "tag": lambda store, _: set_tag(store, is_set=True),
    "settings": lambda store, _: write(store, store.settings.update(UPDATE)),
    "effect": lambda store, _: write(store, store.effects.put(PUT)),
    "set aside": set_aside,
}


def move_back(store: Store, _: Path) -> None:
    thread = get(store)
    move(store, thread.pruned.missing(thread.head.last_version)[0])


@pytest.mark.parametrize(
    "verb",
    [lambda store: delete(store, "x"), lambda store: save(store, "next"), lambda store: set_tag(store, is_set=False)],
    ids=["a branch", "main", "a tag"],
)
def test_a_row_that_goes_while_it_is_verified_is_no_finding(tmp_path: Path, verb: Callable[[Store], object]) -> None:
    """Verify has read the thread's rows and its journal when the row goes."""
    with opened(tmp_path) as store:
        line(store, 4)
        save(store, "x", branch="x", parent={"version": 2})
        set_tag(store, is_set=True)
        as_format_1(store)
        answers = store.verifier.verify(VerifyRequest(namespace="default", thread="t"))
        assert next(answers).records
        verb(store)
        assert [each.finding.message for each in answers if each.HasField("finding")] == []


def set_tag(store: Store, *, is_set: bool) -> None:
    at = {"namespace": "default", "thread": "t", "tag": "here"}
    setting = store.settings
    write(store, setting.set_tag(SetTagRequest(**at)) if is_set else setting.delete_tag(DeleteTagRequest(**at)))


def heads(store: Store) -> dict[str, object]:
    """Where all branches of all threads are, as the disk has it."""
    found: dict[str, object] = {}
    for name in ("t", "copy", "restored", "t@0"):
        with suppress(ThreadNotFound):
            store.threads.forget(get(store, name))
            thread = get(store, name)
            branches = sorted((each.name, each.version, each.newest_version) for each in thread.branches.values())
            found[name] = branches, thread.head.main_version, hydrate(store, name).checkpoint.version
    return found


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS.keys())
def test_a_thread_of_format_1_goes_on(tmp_path: Path, verb: Callable[[Store, Path], object]) -> None:
    """Whatever is done first and next, it has the heads of a thread of this format, and Verify finds nothing."""
    with opened(tmp_path / "made") as store:
        line(store, 4)
        save(store, "x", branch="x", parent={"version": 2})
        save(store, "x too", branch="x")
    seen: list[list[object]] = []
    for is_old in (False, True):
        seen.append([])
        here, elsewhere = tmp_path / f"here {is_old}", tmp_path / f"elsewhere {is_old}"
        shutil.copytree(tmp_path / "made", here)
        shutil.copytree(tmp_path / "made", elsewhere)
        for step in (verb, lambda store, _: save(store, "later"), move_back):
            with opened(here) as store:
                if is_old:
                    as_format_1(store)
                    assert findings(store) == []
                step(store, elsewhere)
                seen[-1].append(heads(store))
                assert findings(store) == []
    assert seen[0] == seen[1]
