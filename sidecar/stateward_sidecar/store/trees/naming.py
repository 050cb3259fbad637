"""The tree that a save names, on its way through the writer.

``prepare`` works outside the writer: it checks the tree, and compresses the objects that come along. ``settle`` works
inside: it raises what ``prepare`` found, unless the save is a retry, and checks again only if objects were removed
meanwhile. The objects get an entry before that of the version, in the same transaction: no file, and no second sync.
"""

from __future__ import annotations

from functools import partial

import lmdb

from stateward.storage.v1.journal_pb2 import EntryHeader
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.thread_pb2 import ThreadOptions
from stateward_sidecar.codec.entry import EntryContent
from stateward_sidecar.codec.objects import ObjectList, pack_object
from stateward_sidecar.errors import StatewardError
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal.opening import describe_creation, settle_options
from stateward_sidecar.store.kinds.version import VERSION
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread, ThreadDraft
from stateward_sidecar.store.thread.threads import Threads
from stateward_sidecar.store.trees.incoming import open_objects
from stateward_sidecar.store.trees.objectread import ObjectReader
from stateward_sidecar.store.trees.packs import Listed, put_listed
from stateward_sidecar.store.trees.treecheck import Named, TreeChecker


def names_tree(thread: Thread | ThreadDraft, header: EntryHeader) -> bool:
    """Whether an entry is that of a retained version whose tree was not dropped, if it names one."""
    version = header.version
    return header.kind == VERSION.number and version not in thread.pruned and version not in thread.pruned.trees


class NamedTree:
    """The tree of one save."""

    def __init__(self, context: Context, request: SaveRequest) -> None:
        self._context = context
        self._request = request
        self._error: StatewardError | None = None
        self._line = -1  # the thread for which it was checked; -1 = it was not, 0 = a new thread
        self._removals = context.trees.removals  # before ``prepare`` has its transaction, so that no removal is missed
        self._fresh: dict[Named, bytes] | None = None
        self._listed: Listed | None = None
        self._content: EntryContent | None = None

    def is_known(self, thread: Thread) -> bool:
        """Whether nothing is to be done: the tree is known to be whole."""
        request = self._request
        return not request.objects and self._context.trees.knows(thread.number, request.workspace.digest)

    def prepare(self, txn: lmdb.Transaction, thread: Thread | None) -> None:
        """Checks the tree, and makes the entry of its objects. Raises InvalidField, HistoryElsewhere, Corrupt;
        ``settle`` raises the same error again."""
        try:
            self._prepare(txn, thread)
        except StatewardError as error:
            self._error = error
            raise

    def _prepare(self, txn: lmdb.Transaction, thread: Thread | ThreadDraft | None) -> None:
        memory, request = self._context.trees, self._request
        line = thread.identity.number if thread is not None else 0
        reader = ObjectReader(self._context, thread) if thread is not None else None
        if self._fresh is None:
            self._fresh = open_objects(request.objects, "objects")
        if not memory.knows(line, request.workspace.digest):
            TreeChecker(txn, reader, self._fresh).check(request.workspace, memory.newest(line))
        objects, data = ObjectList(), list[bytes]()
        for (is_directory, digest), content in self._fresh.items():
            if reader is None or reader.find(txn, digest, is_directory=is_directory) is None:
                packed = pack_object(digest, content, is_directory=is_directory)
                objects.add(packed)
                data.append(packed.data)
        self._listed = Listed(objects, None, b"".join(data)) if len(objects) else None
        self._content = self._listed.content() if self._listed is not None and line else None
        self._line = line

    def settle(self, txn: lmdb.Transaction, draft: ThreadDraft | None) -> None:
        """Runs in the writer. Raises as ``prepare`` if the tree is not whole."""
        if self._error is not None:
            raise self._error
        memory, line = self._context.trees, draft.identity.number if draft is not None else 0
        if not self._request.objects and line and memory.knows(line, self._request.workspace.digest):
            self._removals = memory.removals
            return
        if self._line != line or self._removals != memory.removals:
            self._removals = memory.removals
            self._prepare(txn, draft)

    @property
    def has_objects(self) -> bool:
        """Whether the save brings objects that the thread lacks."""
        return self._listed is not None

    def put(
        self, threads: Threads, txn: lmdb.Transaction, batch: Batch, draft: ThreadDraft, options: ThreadOptions
    ) -> None:
        """Puts the entry of the objects. ``options``: those of a new thread, which this entry then describes."""
        assert self._listed is not None
        is_new, old_head, content = draft.head.tip_sequence == 0, draft.head, self._content
        if is_new or content is None:
            metadata = self._listed.metadata()
            describe_creation(draft, metadata, options)
            content = self._listed.content(metadata)
        put_listed(self._context, txn, batch, draft, self._listed, content, is_bounded=True)
        if is_new:
            settle_options(txn, draft, old_head, draft.head, options)
        threads.keep_draft(batch, draft)

    def note(self, batch: Batch, number: int) -> None:
        """Has the tree known as whole after the commit."""
        batch.after_commit.append(
            partial(self._context.trees.note, number, self._request.workspace.digest, self._removals)
        )
