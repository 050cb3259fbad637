"""What a sweep asks before it writes an entry: whether a thread is still ours."""

from __future__ import annotations

from stateward.v1.thread_pb2 import THREAD_ACCESS_OWNED
from stateward_sidecar.errors import Fenced, NotOwner, ThreadNotFound
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import Thread


def is_still_ours(context: Context, thread: Thread) -> bool:
    """Reads HEAD of a thread of ours. Returns False if another sidecar has taken or deleted the thread since this
    process last looked: an entry of this disk would only become an orphan.

    While the bucket is away, the thread is used as it is here, as for a save. Raises Corrupt and others.
    """
    hooks = context.archive
    if hooks is None or thread.access != THREAD_ACCESS_OWNED or hooks.is_away():
        return True
    try:
        hooks.own((thread.identity.namespace, thread.name), True)
    except (NotOwner, Fenced, ThreadNotFound):
        return False
    return True
