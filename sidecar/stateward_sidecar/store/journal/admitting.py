"""What lets a new write pass, the same for every verb: the owner, the lease, and the expected head of main.

A verb answers a retry first. Save, MoveBranch and DeleteBranch expect the head of their own branch instead.
"""

from __future__ import annotations

from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.store.journal.expecting import check_main
from stateward_sidecar.store.journal.guards import check_lease
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.thread import ThreadDraft


def admit(context: Context, draft: ThreadDraft, options: WriteOptions, *, needs_lease: bool) -> None:
    """Raises an error unless a new write may pass: NotOwner, Fenced, LeaseHeld, VersionMismatch and others.

    ``needs_lease``: while a lease lives, the write needs its token. A token that is given is always checked.
    """
    draft.check_writable()
    if needs_lease or options.lease_token:
        check_lease(context, draft, options.lease_token)
    check_main(draft, options)


def check_deletion(context: Context, draft: ThreadDraft, options: WriteOptions) -> None:
    """Raises LeaseHeld or VersionMismatch if a thread may not be deleted. Whoever holds its lease may be gone."""
    if options.lease_token:
        check_lease(context, draft, options.lease_token)
    check_main(draft, options)
