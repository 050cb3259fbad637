"""Several entries in one write: all are put or none, beside other writes of the same batch."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from stateward_sidecar.storage.queue import Batch
from stateward_sidecar.store.thread.thread import ThreadDraft


@contextmanager
def all_or_none(batch: Batch, draft: ThreadDraft) -> Iterator[None]:
    """If a later entry fails, restores draft and batch to what they were before the first entry.

    The write's child transaction drops the rows. Only for entries that change nothing but the draft's head, sums and
    signals.
    """
    key = (draft.identity.namespace, draft.identity.name)
    is_known, before = key in batch.drafts, batch.drafts.get(key)
    head, row_sums, callbacks = draft.head, draft.row_sums.copy(), len(batch.after_commit)
    signals = draft.signals.copy()
    record_changes = len(draft.record_changes)
    try:
        yield
    except BaseException:
        draft.head, draft.row_sums, draft.signals = head, row_sums, signals
        del batch.after_commit[callbacks:], draft.record_changes[record_changes:]
        batch.drafts.pop(key, None)
        if is_known:
            batch.drafts[key] = before
        raise
