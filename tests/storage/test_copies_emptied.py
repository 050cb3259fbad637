"""The danger: a copy of a state whose snapshot is not on this disk is taken for a copy of the empty state."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import lmdb
import pytest
from tests.daemon.store import findings, get, hydrate, opened, save, write

from stateward._operations.threads import spans_of
from stateward.v1.backup_service_pb2 import ExportThreadRequest, ImportBegin
from stateward.v1.checkpoint_service_pb2 import DiffCheckpointsRequest
from stateward.v1.thread_service_pb2 import ForkThreadRequest, PruneThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.thread import rows


def fork(store: Store, source: str, new: str, *, whole: bool = False) -> None:
    store.forker.fork(ForkThreadRequest(namespace="default", thread=source, new_thread=new, all_versions=whole))


def export(store: Store) -> list[bool]:
    """Exports the copy. Whether each of its versions is a whole state."""
    answers = store.exporter.open(ExportThreadRequest(namespace="default", thread="copy"))
    parts = [part for answer in answers for part in answer.parts]
    return [part.version.whole for part in parts if part.HasField("version")]


def restore(store: Store, source: str, new: str) -> None:
    made = store.importer.begin(ImportBegin(namespace="default", thread=new, options=WriteOptions(request_id=new)))
    for message in store.exporter.open(ExportThreadRequest(namespace="default", thread=source)):
        made.take(message.parts)
    made.finish()


MAKERS: dict[str, Callable[[Store], None]] = {
    "a fork": lambda store: fork(store, "t", "copy"),
    "a whole copy of a fork": lambda store: (fork(store, "t", "first"), fork(store, "first", "copy", whole=True))[1],
    "a restored fork": lambda store: (fork(store, "t", "first"), restore(store, "first", "copy"))[1],
}
READERS: dict[str, Callable[[Store], object]] = {
    "hydrate": lambda store: hydrate(store, "copy"),
    "hydrate version 1": lambda store: hydrate(store, "copy", 1),
    "save": lambda store: save(store, "more", "copy"),
    "diff": lambda store: store.reader.diff(
        DiffCheckpointsRequest(namespace="default", thread="copy", base={"version": 0}, target={"version": 2})
    ),
    "fork": lambda store: fork(store, "copy", "next"),
    "whole copy": lambda store: fork(store, "copy", "next", whole=True),
    "export": export,
    "prune": lambda store: store.pruner.prune(
        PruneThreadRequest(namespace="default", thread="copy", versions=spans_of([1]))
    ),
}


def make(directory: Path, maker: str) -> None:
    """Thread `copy` with the state of another one, and a version of its own."""
    with opened(directory) as store:
        for word in ("one", "two"):
            save(store, word)
        MAKERS[maker](store)
        save(store, "three", "copy")
        assert export(store) == [True, False]
        assert findings(store) == []


def lose(directory: Path) -> None:
    """The copy's first snapshot goes, as if it had not come from the archive."""
    with opened(directory) as store:
        keys = get(store, "copy").identity.keys

        def run(txn: lmdb.Transaction, batch: object) -> None:
            for key, _ in list(rows(txn, keys.snapshot_pieces(1))):
                txn.delete(key)

        write(store, run)


@pytest.mark.parametrize("maker", MAKERS)
def test_no_verb_takes_a_copy_without_its_snapshot_for_empty(tmp_path: Path, maker: str) -> None:
    """Each is CORRUPT and names the version, none makes anything of it, and Verify finds it."""
    make(tmp_path, maker)
    lose(tmp_path)
    with opened(tmp_path) as store:
        for name, verb in READERS.items():
            with pytest.raises(Corrupt, match="version 1 is a copied state, and its snapshot is missing"):
                verb(store)
            assert get(store, "copy").head.last_version == 2, name
            assert not get(store, "copy").pruned.pairs(), name
        assert {(found.thread, found.version) for found in findings(store)} >= {("copy", 1)}
