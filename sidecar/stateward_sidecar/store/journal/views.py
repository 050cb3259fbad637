"""Makes messages of the contract from stored messages; receipts of writes too.

Makes messages of the contract from stored messages.

The receipt of a write: what a client keeps of the journal's entry.
"""

from __future__ import annotations

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveRow
from stateward.storage.v1.head_pb2 import BranchHead, ThreadHead
from stateward.v1.checkpoint_pb2 import (
    DURABILITY_ARCHIVED,
    DURABILITY_COMMITTED,
    WORK_STATUS_RUNNING,
    Checkpoint,
    Durability,
)
from stateward.v1.checkpoint_service_pb2 import HydrateResponse
from stateward.v1.lease_pb2 import Lease
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, Branch, Tag, ThreadInfo
from stateward.v1.thread_pb2 import ThreadInfo as ThreadMessage
from stateward.v1.thread_service_pb2 import GetThreadResponse
from stateward.v1.write_pb2 import Receipt
from stateward_sidecar.codec.entry import Entry, stored_bytes
from stateward_sidecar.errors import Corrupt
from stateward_sidecar.store.journal.finding import digest_at
from stateward_sidecar.store.journal.telling import show_told
from stateward_sidecar.store.thread.cache import Facts
from stateward_sidecar.store.thread.thread import MAIN, Identity, Thread, ThreadDraft
from stateward_sidecar.store.thread.times import SECOND_US, expire_second


def read_facts(thread: Thread, entry: Entry) -> Facts:
    """The facts of a version from its entry, which this authenticates. Raises Corrupt."""
    identity = thread.identity
    try:
        metadata = entry.open_metadata(identity.cipher, identity.uid)
    except Corrupt as error:
        raise error.locate(identity.name, entry.header.version) from None
    return Facts(entry.header, metadata.checkpoint, stored_bytes(entry))


def view_entry(thread: Thread, entry: Entry) -> Checkpoint:
    """A checkpoint from its entry. Raises Corrupt."""
    return _view(thread, read_facts(thread, entry), thread.head)


def hydrate_start(thread: Thread, facts: Facts) -> bytes:
    """The checkpoint in the answer to a hydrate, serialized. It is made once for each durability level, and for each
    status that is told of it."""
    head, header = thread.head, facts.header
    told = head.told.sequence if head.told.version == header.version else 0
    if thread.pruned.trees.last and header.version in thread.pruned.trees:
        told = -told - 1  # its tree was dropped, so it is shown in another way
    key = reached(thread, header.sequence), thread.name, told
    if facts.start is None or facts.start[:3] != key:
        facts.start = *key, HydrateResponse(checkpoint=_view(thread, facts, head)).SerializeToString()
    return facts.start[3]


def _view(thread: Thread, facts: Facts, head: ThreadHead) -> Checkpoint:
    identity, header, body = thread.identity, facts.header, facts.body
    view = Checkpoint(
        namespace=identity.namespace, thread=identity.name, uid=identity.uid.hex(), version=header.version,
        parent_version=header.parent_version, branch=body.branch or MAIN, checkpoint_id=body.checkpoint_id,
        digest=header.digest, status=body.status or WORK_STATUS_RUNNING, status_detail=body.status_detail,
        schema_version=body.schema_version, edit_bytes=body.sent_bytes or header.edit_bytes,
        stored_bytes=facts.stored_bytes,
        sequence=header.sequence, durability=reached(thread, header.sequence), wait_id=body.wait_id,
        acknowledged_signals=len(header.acked_sequences),
    )  # fmt: skip
    view.labels.update(body.labels)
    view.metrics.update(body.metrics)
    if body.attributes:
        view.attributes.MergeFrom(body.attributes)
    view.create_time.FromMicroseconds(header.create_time_us)
    if body.parent_checkpoint_id:
        view.parent_checkpoint_id = body.parent_checkpoint_id
    if body.HasField("step"):
        view.step = body.step
    if body.HasField("metadata"):
        view.metadata.CopyFrom(body.metadata)
    if body.HasField("question"):
        view.question.CopyFrom(body.question)
    if body.HasField("workspace"):
        if header.version in thread.pruned.trees:
            view.workspace_dropped = True
        else:
            view.workspace.CopyFrom(body.workspace)
    show_told(view, head, header.version)
    return view


def reached(thread: Thread, sequence: int) -> Durability:
    """Returns the durability level that an entry has reached."""
    return DURABILITY_ARCHIVED if sequence <= thread.archived_sequence else DURABILITY_COMMITTED


def view_head(identity: Identity, head: ThreadHead) -> ThreadMessage:
    """A thread as lists show it."""
    options = head.options
    view = ThreadMessage(
        namespace=identity.namespace, thread=identity.name, uid=identity.uid.hex(), version=head.main_version,
        version_digest=head.main_digest, status_detail=head.status_detail, wait_id=head.wait_id,
        parent_thread=options.parent_thread, agent=options.agent, sequence=head.tip_sequence,
        last_version=head.last_version, retained_versions=head.retained_versions, stored_bytes=head.stored_bytes,
        sequence_digest=head.tip_digest,
    )  # fmt: skip
    view.status = head.status or WORK_STATUS_RUNNING
    view.labels.update(options.labels)
    view.metrics.update(head.metrics)
    view.create_time.FromMicroseconds(head.create_time_us)
    view.update_time.FromMicroseconds(head.update_time_us)
    if head.HasField("step"):
        view.step = head.step
    if options.HasField("ttl"):
        view.ttl.CopyFrom(options.ttl)
        view.expire_time.FromMicroseconds(expire_second(head) * SECOND_US)
    if options.HasField("retention"):
        view.retention.CopyFrom(options.retention)
    if head.HasField("forked_from"):
        view.forked_from.CopyFrom(head.forked_from)
    if head.HasField("question"):
        view.question.CopyFrom(head.question)
    view.effects, view.pending_signals = head.effects, head.pending_signals
    view.records, view.record_bytes = head.records, head.record_bytes
    return view


def view_thread(thread: Thread) -> ThreadMessage:
    """A thread, with what the archive knows of it."""
    return add_archive(view_head(thread.identity, thread.head), thread.archive, thread.archived_sequence)


def describe_thread(thread: Thread, lease: Lease | None) -> GetThreadResponse:
    """A thread with its branches and tags, and the lease that somebody holds."""
    return GetThreadResponse(
        thread=view_thread(thread),
        branches=[view_branch(branch) for _, branch in sorted(thread.branches.copy().items())],
        tags=[Tag(name=name, version=version) for name, version in sorted(thread.tags.items())], lease=lease,
    )  # fmt: skip


def add_archive(view: ThreadMessage, row: ArchiveRow | None, archived_sequence: int) -> ThreadMessage:
    """Adds owner, access and archived sequence to a view, if there is an archive row. Returns the view."""
    if row is not None:
        view.access, view.archived_sequence = row.access, archived_sequence
        view.owner_id, view.owner_epoch = row.head.owner_id, row.head.epoch
        if row.access == THREAD_ACCESS_ORPHAN:
            view.orphan.thread, view.orphan.common_sequence = row.orphan_of, row.common_sequence
            view.orphan.epoch = row.head.epoch
    return view


def view_branch(branch: BranchHead) -> Branch:
    """A branch."""
    return Branch(
        name=branch.name, version=branch.version, version_digest=branch.digest, base_version=branch.base_version,
        moved_version=branch.moved_version, newest_version=branch.newest_version, first_version=branch.first_version,
    )  # fmt: skip


def receipt_of(txn: lmdb.Transaction, draft: ThreadDraft, sequence: int, *, replayed: bool = False) -> Receipt:
    """Returns the receipt of an entry. ``replayed``: a call before this one wrote it."""
    head = draft.head
    digest = head.tip_digest if sequence == head.tip_sequence else digest_at(txn, draft.identity, sequence)
    return _receipt(draft, sequence, digest, replayed=replayed)


def newest_receipt(draft: ThreadDraft) -> Receipt:
    """Returns the receipt of the newest entry, which a write has just made, or which it left the newest."""
    return _receipt(draft, draft.head.tip_sequence, draft.head.tip_digest)


def _receipt(draft: ThreadDraft, sequence: int, digest: bytes, *, replayed: bool = False) -> Receipt:
    thread = draft.thread
    return Receipt(
        uid=draft.identity.uid_text, sequence=sequence, digest=digest, durability=reached(thread, sequence),
        archived_sequence=thread.archived_sequence, replayed=replayed,
    )  # fmt: skip


def receipt_of_thread(thread: ThreadInfo, *, replayed: bool) -> Receipt:
    """Returns the receipt of a thread that was made as a whole."""
    is_archived = 0 < thread.sequence <= thread.archived_sequence
    return Receipt(
        uid=thread.uid, sequence=thread.sequence, digest=thread.sequence_digest,
        durability=DURABILITY_ARCHIVED if is_archived else DURABILITY_COMMITTED,
        archived_sequence=thread.archived_sequence, replayed=replayed,
    )  # fmt: skip
