"""Finds the version that a VersionRef names."""

from __future__ import annotations

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward_sidecar.codec.entry import Entry
from stateward_sidecar.errors import Corrupt, InvalidField, VersionMismatch, VersionNotFound
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.cache import Cache
from stateward_sidecar.store.thread.thread import MAIN, Thread, ThreadDraft

ANY_BRANCH = "-"


def branch_head(thread: Thread | ThreadDraft, branch: str) -> int:
    """Returns the newest version of a branch; 0 if main is empty. Raises VersionNotFound if there is no such branch."""
    found = thread.branches.get(branch) if isinstance(thread, Thread) else thread.branch(branch)
    if found is None:
        if branch == MAIN:
            return 0
        name = thread.identity.name
        raise VersionNotFound(f"thread {name!r} has no branch {branch!r}", thread=name, branch=branch)
    return found.version


def names_head(cache: Cache, thread: Thread, ref: VersionRef, head: BranchHead) -> bool:
    """Returns whether memory alone shows that a reference names the head of a branch. False = look the reference up."""
    kind = ref.WhichOneof("ref")
    if kind == "version":
        return ref.version == head.version and ref.digest in (b"", head.digest)
    if kind == "tag":
        return thread.tags.get(ref.tag) == head.version
    facts = cache.facts(thread.number, head.digest)
    if facts is None or ref.branch not in ("", ANY_BRANCH, head.name):
        return False
    return (facts.body.branch or MAIN, facts.body.checkpoint_id) == (head.name, ref.checkpoint_id)


def resolve(txn: lmdb.Transaction, thread: Thread | ThreadDraft, ref: VersionRef, branch: str, field: str) -> int:
    """Returns the retained version that a reference names; 0 for the empty state.

    Raises InvalidField, VersionNotFound, VersionPruned, VersionMismatch, HistoryElsewhere or Corrupt.
    """
    kind = ref.WhichOneof("ref")
    if kind is None:
        raise InvalidField(field, "names no version: set version, checkpoint_id or tag")
    if kind == "version":
        version = ref.version
    elif kind == "tag":
        version = _tagged(thread, ref.tag)
    elif ref.branch == ANY_BRANCH:
        version = _named_anywhere(txn, thread, ref.checkpoint_id, branch)
    else:
        version = _named(txn, thread, ref.checkpoint_id, ref.branch or branch)
    if version:
        replay.check_version(thread, version)
    if ref.digest:
        digest = digest_of_version(txn, thread, version)
        if digest != ref.digest:
            name = thread.identity.name
            raise VersionMismatch(
                f"version {version} of thread {name!r} has another digest than expected", thread=name, field=field,
                current_version=version, current_digest=digest.hex(), expected_version=version,
            )  # fmt: skip
    return version


def digest_of_version(txn: lmdb.Transaction, thread: Thread | ThreadDraft, version: int) -> bytes:
    """Returns the digest of a retained version; empty for version 0. Raises as ``replay.read_version`` does."""
    if not version:
        return b""
    main = thread.branches.get(MAIN) if isinstance(thread, Thread) else thread.branch(MAIN)
    if main is not None and main.version == version:
        return main.digest
    entry = replay.read_version(txn, thread, version)
    replay.open_metadata(thread.identity, entry)  # proves the digest in the header
    return entry.header.digest


def resolve_or_head(
    txn: lmdb.Transaction, thread: Thread | ThreadDraft, ref: VersionRef | None, branch: str, field: str
) -> int:
    """Returns the version that a reference names, or the branch's head if there is no reference.

    Raises as ``resolve`` does, and VersionNotFound for version 0.
    """
    version = resolve(txn, thread, ref, branch, field) if ref is not None else branch_head(thread, branch)
    if version == 0:
        name = thread.identity.name
        what = "no version 0; the first version is 1" if ref is not None else f"no version on branch {branch!r}"
        raise VersionNotFound(f"thread {name!r} has {what}", thread=name, version=0)
    return version


def _tagged(thread: Thread | ThreadDraft, tag: str) -> int:
    found = thread.tags.get(tag) if isinstance(thread, Thread) else thread.tag(tag)
    if found is None:
        name = thread.identity.name
        raise VersionNotFound(f"thread {name!r} has no tag {tag!r}", thread=name, tag=tag)
    return found


def _named(txn: lmdb.Transaction, thread: Thread | ThreadDraft, checkpoint_id: str, branch: str) -> int:
    found = _look_up(txn, thread, checkpoint_id, branch)
    if not found:
        name = thread.identity.name
        raise VersionNotFound(
            f"branch {branch!r} of thread {name!r} has no checkpoint id {checkpoint_id!r}",
            thread=name, branch=branch, checkpoint_id=checkpoint_id,
        )  # fmt: skip
    return found


def _named_anywhere(txn: lmdb.Transaction, thread: Thread | ThreadDraft, checkpoint_id: str, branch: str) -> int:
    """Returns the version with an id: that of the branch if it has one, else the newest of the other branches."""
    found = _look_up(txn, thread, checkpoint_id, branch)
    if not found:
        names = thread.all_branches() if isinstance(thread, ThreadDraft) else thread.branches
        found = max((_look_up(txn, thread, checkpoint_id, name) for name in list(names)), default=0)
    if not found:
        name = thread.identity.name
        raise VersionNotFound(
            f"no branch of thread {name!r} has checkpoint id {checkpoint_id!r}",
            thread=name, branch=ANY_BRANCH, checkpoint_id=checkpoint_id,
        )  # fmt: skip
    return found


def _look_up(txn: lmdb.Transaction, thread: Thread | ThreadDraft, checkpoint_id: str, branch: str) -> int:
    found = find_named(txn, thread, checkpoint_id, branch)
    return found.header.version if found is not None else 0


def find_named(txn: lmdb.Transaction, thread: Thread | ThreadDraft, checkpoint_id: str, branch: str) -> Entry | None:
    """Returns the entry of the version with an id on a branch; None if there is none.

    Raises HistoryElsewhere or Corrupt.
    """
    identity = thread.identity
    row = txn.get(identity.keys.checkpoint_id(identity.hash_id(b"checkpoint", branch, checkpoint_id)))
    if row is None and thread.floor_sequence:
        raise replay.history_elsewhere(identity)
    if row is None:
        return None
    entry = replay.read_indexed(txn, identity, row)
    body = replay.open_metadata(identity, entry).checkpoint
    if (body.branch or MAIN, body.checkpoint_id) != (branch, checkpoint_id):
        raise Corrupt("the index row of a checkpoint id leads to another version", identity.name)
    return entry
