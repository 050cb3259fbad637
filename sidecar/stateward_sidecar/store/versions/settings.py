"""Changes tags and settings of a thread. Each change is a small entry of the journal."""

from __future__ import annotations

from collections.abc import Callable

import lmdb

from stateward.storage.v1.journal_pb2 import (
    EntryMetadata,
)
from stateward.v1.thread_pb2 import Tag, ThreadOptions
from stateward.v1.thread_pb2 import ThreadInfo as ThreadMessage
from stateward.v1.thread_service_pb2 import (
    DeleteTagRequest,
    DeleteTagResponse,
    SetTagRequest,
    SetTagResponse,
    UpdateThreadRequest,
    UpdateThreadResponse,
)
from stateward_sidecar.codec.entry import draft as draft_content
from stateward_sidecar.errors import QuotaExceeded, VersionNotFound
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.admitting import check_head
from stateward_sidecar.store.journal.finding import digest_of_version, resolve_or_head
from stateward_sidecar.store.journal.journal import append, commit_entry, index_expiry, index_options
from stateward_sidecar.store.journal.kind import Kind
from stateward_sidecar.store.journal.opening import Change, begin_change
from stateward_sidecar.store.journal.views import add_archive, newest_receipt, receipt_of, view_head
from stateward_sidecar.store.kinds.ref import TAG_DELETED, TAG_SET
from stateward_sidecar.store.kinds.setting import OPTIONS
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import MAIN, ThreadDraft, delete_row, write_row
from stateward_sidecar.store.thread.threads import Threads

# The most tags of a thread. GetThread shows them in one answer, which every client can receive.
TAGS_MAX = 5000


def _view(draft: ThreadDraft) -> ThreadMessage:
    return add_archive(view_head(draft.identity, draft.head), draft.archive, draft.thread.archived_sequence)


class Settings:
    """The verbs. Each returns a function for the writer."""

    def __init__(self, context: Context, threads: Threads) -> None:
        self._context = context
        self._threads = threads

    def set_tag(self, request: SetTagRequest) -> Callable[[lmdb.Transaction, Batch], SetTagResponse]:
        """Makes or moves a tag."""

        def run(txn: lmdb.Transaction, batch: Batch) -> SetTagResponse:
            change = begin_change(self._context, self._threads, txn, batch, request)
            draft = change.draft
            if change.replayed_sequence:
                old = self._metadata(txn, draft, change.replayed_sequence).tag
                receipt = receipt_of(txn, draft, change.replayed_sequence, replayed=True)
                return SetTagResponse(receipt=receipt, tag=old)
            self._check_tagged(txn, draft, request)
            ref = request.version if request.HasField("version") else None
            version = resolve_or_head(txn, draft, ref, request.branch or MAIN, "version")
            _check_room(draft, request)
            tag = Tag(name=request.tag, version=version)
            self._append_tag(txn, batch, change, tag, TAG_SET)
            return SetTagResponse(receipt=newest_receipt(draft), tag=tag)

        return run

    def delete_tag(self, request: DeleteTagRequest) -> Callable[[lmdb.Transaction, Batch], DeleteTagResponse]:
        """Removes a tag."""

        def run(txn: lmdb.Transaction, batch: Batch) -> DeleteTagResponse:
            change = begin_change(self._context, self._threads, txn, batch, request)
            draft = change.draft
            if change.replayed_sequence:
                old = self._metadata(txn, draft, change.replayed_sequence).tag
                receipt = receipt_of(txn, draft, change.replayed_sequence, replayed=True)
                return DeleteTagResponse(receipt=receipt, tag=old)
            version = draft.tag(request.tag)
            if version is None:
                raise VersionNotFound(
                    f"thread {request.thread!r} has no tag {request.tag!r}", thread=request.thread, tag=request.tag
                )
            self._check_tagged(txn, draft, request)
            tag = Tag(name=request.tag, version=version)
            self._append_tag(txn, batch, change, tag, TAG_DELETED)
            return DeleteTagResponse(receipt=newest_receipt(draft), tag=tag)

        return run

    def update(self, request: UpdateThreadRequest) -> Callable[[lmdb.Transaction, Batch], UpdateThreadResponse]:
        """Changes settings."""

        def run(txn: lmdb.Transaction, batch: Batch) -> UpdateThreadResponse:
            change = begin_change(self._context, self._threads, txn, batch, request)
            draft = change.draft
            if change.replayed_sequence:
                receipt = receipt_of(txn, draft, change.replayed_sequence, replayed=True)
                return UpdateThreadResponse(receipt=receipt, thread=_view(draft))
            options = ThreadOptions()
            options.CopyFrom(draft.head.options)
            for path in request.update_mask.paths:
                options.ClearField(path)
            given = ThreadOptions()
            request.update_mask.MergeMessage(request.update, given, replace_message_field=True)
            options.MergeFrom(given)
            metadata = EntryMetadata(request_hash=change.request_hash, fingerprint=change.fingerprint, options=options)
            entry = append(
                self._context, txn, draft, OPTIONS, draft_content(metadata),
                request_hash=change.request_hash,
            )  # fmt: skip
            old = draft.head
            entry.head.options.CopyFrom(options)
            index_expiry(txn, draft.identity.number, old, entry.head)
            index_options(txn, draft.identity, old.options, options)
            commit_entry(self._context, txn, batch, draft, entry, {})
            self._threads.keep_draft(batch, draft)
            return UpdateThreadResponse(receipt=newest_receipt(draft), thread=_view(draft))

        return run

    @staticmethod
    def _check_tagged(txn: lmdb.Transaction, draft: ThreadDraft, request: SetTagRequest | DeleteTagRequest) -> None:
        if not request.HasField("expected_tagged_version"):
            return
        current = draft.tag(request.tag) or 0
        is_asked = request.expected_tagged_digest and current == request.expected_tagged_version
        digest = digest_of_version(txn, draft, current) if is_asked else b""
        check_head(
            f"tag {request.tag!r} names", current, digest, request.expected_tagged_version,
            request.expected_tagged_digest, thread=request.thread, tag=request.tag,
        )  # fmt: skip

    def _append_tag(self, txn: lmdb.Transaction, batch: Batch, change: Change, tag: Tag, kind: Kind) -> None:
        draft = change.draft
        metadata = EntryMetadata(request_hash=change.request_hash, fingerprint=change.fingerprint, tag=tag)
        entry = append(
            self._context, txn, draft, kind, draft_content(metadata),
            request_hash=change.request_hash,
        )  # fmt: skip
        key = draft.identity.keys.tag(draft.identity.hash_id(b"tag", tag.name))
        if kind is TAG_SET:
            sums = dict([write_row(txn, draft, entry.head, key, tag)])
        else:
            sums = dict([delete_row(txn, draft, entry.head, key)])
        commit_entry(self._context, txn, batch, draft, entry, sums)
        draft.tags[tag.name] = tag.version if kind is TAG_SET else None
        self._threads.keep_draft(batch, draft)

    def _metadata(self, txn: lmdb.Transaction, draft: ThreadDraft, sequence: int) -> EntryMetadata:
        entry = replay.read_entry(txn, draft.identity, sequence)
        return entry.open_metadata(draft.identity.cipher, draft.identity.uid)


def _check_room(draft: ThreadDraft, request: SetTagRequest) -> None:
    """Raises QuotaExceeded if the thread has as many tags as it may have: GetThread shows all of them in one answer."""
    if draft.tag(request.tag) is not None or len(draft.thread.tags) + len(draft.tags) < TAGS_MAX:
        return
    if len(draft.all_tags()) >= TAGS_MAX:
        raise QuotaExceeded(
            f"tag: thread {request.thread!r} has {TAGS_MAX:,} tags already; delete some first", field="tag",
            thread=request.thread, limit=TAGS_MAX,
        )  # fmt: skip
