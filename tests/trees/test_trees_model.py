"""The danger: some order of snapshots, prunes, copies, sweeps and starts loses an object that a version names, or keeps
one for ever. Random histories are compared with dicts."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.store import rest, write
from tests.messages import to_write
from tests.trees.test_trees_swept import HOUR_S, NAMESPACE, Barn
from tests.trees.yard import Made, make

from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.thread_service_pb2 import DeleteThreadRequest, ForkThreadRequest
from stateward.v1.workspace_service_pb2 import ObjectsBegin
from stateward_sidecar.errors import QuotaExceeded
from stateward_sidecar.store.clean import objectsweep
from stateward_sidecar.store.thread.context import Limits
from stateward_sidecar.store.trees import packs
from stateward_sidecar.store.trees.incoming import open_objects

STEPS = 120
# So small that a history of a minute has everything.
SMALL: list[tuple[Any, str, Any]] = [
    (packs, "PACK_BYTES", 24 << 10), (packs, "PACK_OBJECTS_MAX", 12), (objectsweep, "INTERVAL_S", 0),
    (objectsweep, "INLINE_BYTES", 12 << 10), (objectsweep, "INLINE_LISTS", 5), (objectsweep, "ROWS_A_WRITE", 7),
    (objectsweep, "LISTS_A_WRITE", 3), (objectsweep, "RECORDS_A_STEP", 11),
]  # fmt: skip


class History:
    """A store, and what each retained version of its threads names."""

    def __init__(self, directory: Path, seed: int, limit: int = 0) -> None:
        self.dice = random.Random(seed)
        self.limit = limit
        self.barn = Barn(directory)
        self.limit_it()
        self.trees: dict[str, dict[int, Made]] = {}
        self.now: dict[str, dict[bytes, Any]] = {"t0": {}}
        self.made = 0

    def limit_it(self) -> None:
        self.barn.store.context.limits = Limits(workspace_bytes=self.limit)

    def content(self) -> bytes:
        """New bytes, or some that were there before."""
        if self.dice.random() < 0.3:
            return b"often %d" % self.dice.randrange(5)
        return os.urandom(self.dice.randrange(1, 3000))

    def change(self, tree: dict[bytes, Any]) -> dict[bytes, Any]:
        """A tree in which some files were written, moved or removed."""
        found = {name: dict(inner) if isinstance(inner, dict) else inner for name, inner in tree.items()}
        for _ in range(self.dice.randrange(1, 5)):
            place = found
            if self.dice.random() < 0.6:
                place = found.setdefault(b"d%d" % self.dice.randrange(3), {})
            if place and self.dice.random() < 0.4:
                place.pop(self.dice.choice(sorted(place)))
            else:
                place[b"f%d" % self.dice.randrange(6)] = self.content()
        return found

    def snapshot(self) -> None:
        name = self.dice.choice(sorted(self.now))
        if self.dice.random() < 0.8:
            self.now[name] = self.change(self.now[name])
        made = make(self.now[name])
        size = sum(map(len, made.chunks.values()))
        try:
            version = self.barn.keep(made, name, inline=size < 20_000 and self.dice.random() < 0.6)
        except QuotaExceeded:
            assert self.limit
            return
        self.trees.setdefault(name, {})[version] = made

    def upload(self) -> None:
        """Objects that no version names; sometimes by two clients at once."""
        name = self.dice.choice(sorted(self.trees) or ["t0"])
        made = make(self.change({}))
        try:
            self.barn.send(made, name)
        except QuotaExceeded:
            assert self.limit
            return
        begin = ObjectsBegin(namespace=NAMESPACE, thread=name)
        thread = self.barn.store.blobs.find_thread(begin)
        assert thread is not None
        again = make(self.change(self.now[name]))
        both = [self.barn.store.begin_objects(thread, begin) for _ in range(2)]
        full = list[tuple[Any, Any]]()
        with suppress(QuotaExceeded):
            for each in both:
                full += [(each, pack) for pack in each.add(open_objects(again.objects(), "objects"))]
                full += [(each, pack) for pack in each.finish()]
        for sending, pack in full:
            try:
                write(self.barn.store, lambda txn, batch, pack=pack, sending=sending: sending.commit(pack, txn, batch))
            except QuotaExceeded:
                sending.discard_pack(pack)
        for each in both:
            each.end()

    def prune(self) -> None:
        name = self.dice.choice(sorted(self.trees) or [""])
        versions = sorted(self.trees.get(name, ()))[:-1]
        if versions:
            going = self.dice.sample(versions, self.dice.randrange(1, len(versions) + 1))
            self.barn.prune(*sorted(going), thread=name)
            for version in going:
                del self.trees[name][version]

    def fork(self) -> None:
        if not self.trees:
            return
        name, self.made = self.dice.choice(sorted(self.trees)), self.made + 1
        new, version = f"t{self.made}", self.dice.choice(sorted(self.trees[name]))
        is_whole = self.dice.random() < 0.5
        fields: dict[str, Any] = {"all_versions": True} if is_whole else {"version": VersionRef(version=version)}
        self.barn.store.forker.fork(
            to_write(ForkThreadRequest, namespace=NAMESPACE, thread=name, new_thread=new, **fields)
        )
        self.trees[new] = dict(self.trees[name]) if is_whole else {1: self.trees[name][version]}
        self.barn.version[new] = self.barn.version[name] if is_whole else 1
        self.now[new] = dict(self.now[name])

    def delete(self) -> None:
        if len(self.trees) > 2:
            name = self.dice.choice(sorted(self.trees))
            request = DeleteThreadRequest(namespace=NAMESPACE, thread=name)
            write(self.barn.store, self.barn.store.deleter.delete(request))
            for known in (self.trees, self.now, self.barn.version):
                known.pop(name, None)  # type: ignore[attr-defined]
            self.now.setdefault("t0", {})

    def sweep(self) -> None:
        self.barn.sweep_later(self.dice.choice([60, HOUR_S / 2, HOUR_S]), self.dice.randrange(1, 4))
        self.forget_dropped()
        self.check()

    def forget_dropped(self) -> None:
        """Old versions may have lost their trees to the limit; the newest never."""
        for name, versions in self.trees.items():
            with self.barn.store.context.engine.read() as txn:
                thread = self.barn.store.threads.get(txn, NAMESPACE, name)
            gone = [version for version in versions if version in thread.pruned.trees]
            assert self.limit or not gone
            left = versions.keys() - set(gone)
            assert not gone or max(gone) < thread.branches["main"].version
            assert not gone or not left or max(gone) < min(left)  # the oldest go first
            for version in gone:
                del versions[version]

    def restart(self) -> None:
        rest(self.barn.store)
        self.barn.store.close()
        self.barn.open()
        self.limit_it()

    def check(self) -> None:
        """Every retained version has its tree."""
        for name, versions in self.trees.items():
            for version, made in versions.items():
                assert self.barn.is_whole(made, version, name), f"version {version} of {name}"

    def run(self) -> None:
        acts = [self.snapshot] * 8 + [self.upload, self.prune, self.prune, self.fork, self.delete, self.restart]
        acts += [self.sweep] * 3
        for _ in range(STEPS):
            self.dice.choice(acts)()
        self.check()
        self.barn.check()

    def end(self) -> None:
        """When time has passed, each thread has what its versions name, and nothing else."""
        self.barn.sweep_later(times=6)
        rest(self.barn.store)
        self.forget_dropped()
        self.check()
        self.barn.check()
        packs_left = 0
        for name, versions in self.trees.items():
            stat = self.barn.stat(name)
            chunks = {digest for made in versions.values() for digest in made.chunks}
            directories = {digest for made in versions.values() for digest in made.directories}
            assert (stat.chunks, stat.directories) == (len(chunks), len(directories))
            packs_left += stat.packs
            with self.barn.store.context.engine.read() as txn:
                head = self.barn.store.threads.get(txn, NAMESPACE, name).head
            assert head.object_bytes == stat.stored_bytes
        assert self.barn.files() == packs_left


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for module, name, value in SMALL:
        monkeypatch.setattr(module, name, value)
    return tmp_path


@pytest.mark.parametrize("limit_kib", [0, 60])
@pytest.mark.parametrize("seed", range(3))
def test_random_histories(directory: Path, seed: int, limit_kib: int) -> None:
    """Each retained version has its tree after each sweep, unless the limit took the oldest. In the end nothing else is
    left."""
    history = History(directory, seed, limit_kib << 10)
    try:
        history.run()
        history.end()
    finally:
        history.barn.store.close()
