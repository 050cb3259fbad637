"""Opens a thread for a write, and makes the thread if it is missing.

A blob, an effect or a lease may make a thread before it has a version.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import lmdb

from stateward.storage.v1.head_pb2 import ThreadHead
from stateward.storage.v1.journal_pb2 import EntryMetadata, ThreadCreation
from stateward.v1.thread_pb2 import ThreadOptions
from stateward_sidecar.errors import LeaseHeld
from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.journal.expecting import Expects, check_head, find_draft
from stateward_sidecar.store.journal.journal import index_expiry, index_options
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import ThreadDraft
from stateward_sidecar.store.thread.threads import Threads


@contextmanager
def opened(
    context: Context, threads: Threads, txn: lmdb.Transaction, batch: Batch, request: Expects
) -> Iterator[ThreadDraft]:
    """Gives the draft of the thread that a request writes, and makes the thread if it is missing.

    Raises UidMismatch or ThreadNotFound if the request expects another creation, and LeaseHeld or VersionMismatch if it
    expects a lease or a version of a thread that is missing.

    The caller answers a retry, and then calls ``check_writable``: what was written once is answered by whoever has it.
    The first entry of a new thread must describe it: see ``describe_creation``.
    """
    draft = find_draft(threads, txn, batch, request)
    if draft is not None:
        yield draft
        return
    _check_new(request)
    draft = threads.create(txn, batch, request.namespace, request.thread)
    try:
        yield draft
    except BaseException:
        context.keystore.give_up(draft.identity.uid)
        raise


def _check_new(request: Expects) -> None:
    """Raises LeaseHeld or VersionMismatch if a write expects what a new thread does not have. ``admit`` would say the
    same, but only after the name was claimed in the archive."""
    options, name = request.options, request.thread
    if options.lease_token:
        raise LeaseHeld(
            f"token {options.lease_token} is not valid: there is no thread {name!r}", thread=name, token=0,
            remaining_s=0,
        )  # fmt: skip
    if options.HasField("expected_version"):
        expected, digest = options.expected_version, options.expected_digest
        check_head(f"thread {name!r} is at", 0, b"", expected, digest, thread=name)


def describe_creation(draft: ThreadDraft, metadata: EntryMetadata, options: ThreadOptions) -> None:
    """Adds name and settings of the thread to the metadata of its first entry. Does nothing for later entries."""
    if draft.head.tip_sequence == 0:
        identity = draft.identity
        metadata.creation.CopyFrom(ThreadCreation(namespace=identity.namespace, thread=identity.name, options=options))


def settle_options(
    txn: lmdb.Transaction, draft: ThreadDraft, old: ThreadHead, new: ThreadHead, options: ThreadOptions
) -> None:
    """Writes the settings of a new thread."""
    index_options(txn, draft.identity, new.options, options)
    new.options.CopyFrom(options)
    index_expiry(txn, draft.identity.number, old, new)
