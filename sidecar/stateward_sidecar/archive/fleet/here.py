"""Compares a HEAD that was read with what this disk knows of the thread. Changes nothing."""

from __future__ import annotations

from stateward.storage.v1.archive_pb2 import ArchiveHead
from stateward_sidecar.archive.objects.desk import Desk
from stateward_sidecar.archive.objects.judge import Local, Verdict, judge
from stateward_sidecar.store.thread.thread import Thread


def known_head(desk: Desk, thread: Thread) -> ArchiveHead:
    """Returns HEAD as this disk last wrote or accepted it; empty if it never did."""
    hold = desk.holds.get(thread.number)
    if hold is not None:
        return hold.head
    return thread.archive.head if thread.archive is not None else ArchiveHead()


def judge_here(desk: Desk, thread: Thread, known: ArchiveHead, head: ArchiveHead) -> Verdict:
    """Judges by HEAD alone, without the entries in the bucket. ``known``: see ``known_head``."""
    local = Local(
        thread.identity.uid, known, thread.head.tip_sequence, thread.floor_sequence,
        lambda sequence: desk.outbox.digest_at(thread.identity, sequence), desk.boots, desk.former,
    )  # fmt: skip
    return judge(local, head).verdict
