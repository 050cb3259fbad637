"""The head of a branch: checks what a save expects of the head, and moves the head."""

from __future__ import annotations

import lmdb

from stateward.storage.v1.head_pb2 import BranchHead
from stateward.storage.v1.journal_pb2 import CheckpointBody, EntryHeader
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward_sidecar.errors import SchemaMismatch, VersionMismatch
from stateward_sidecar.store import replay
from stateward_sidecar.store.describe import is_merge
from stateward_sidecar.store.thread import MAIN, Draft


def check_expectation(request: SaveRequest, name: str, draft: Draft | None, branch: BranchHead | None) -> None:
    """Raises VersionMismatch if the head of the branch is not the version and digest that the save expects."""
    current = branch.version if branch else 0
    digest = branch.digest if branch else b""
    wrong_version = request.HasField("expected_version") and request.expected_version != current
    wrong_digest = bool(request.expected_digest) and request.expected_digest != digest
    if wrong_version or wrong_digest:
        what = f"version {request.expected_version} was expected"
        if wrong_digest and not wrong_version:
            what = f"version {current} with another digest was expected"
        state = f"is at version {current}" if draft is not None else "does not exist"
        raise VersionMismatch(
            f"{_where(request, name)} {state}, but {what}", thread=request.thread, branch=name,
            current_version=current, current_digest=digest.hex(), expected_version=request.expected_version,
        )  # fmt: skip


def check_schema(request: SaveRequest, name: str, branch: BranchHead | None) -> None:
    """Raises SchemaMismatch if an unconditional save has another schema version than the head.

    Another client may have migrated the state meanwhile, and an addition must fit the state.
    """
    asked, found = request.schema_version, branch.schema_version if branch is not None else 0
    if asked and found and asked != found and is_merge(request):
        raise SchemaMismatch(
            f"{_where(request, name)} has schema {found}, but the save has schema {asked}", thread=request.thread,
            branch=name, schema=found, asked=asked,
        )  # fmt: skip


def _where(request: SaveRequest, name: str) -> str:
    return f"thread {request.thread!r}" + (f" branch {name!r}" if name != MAIN else "")


def move_branch(
    txn: lmdb.Transaction, draft: Draft, branch: BranchHead | None, name: str, header: EntryHeader, body: CheckpointBody
) -> BranchHead:
    """Returns the head of a branch after a new version on it."""
    moved = BranchHead(name=name, base_version=header.parent_version)
    if branch is not None:
        moved.CopyFrom(branch)
    if branch is None or branch.version != header.parent_version:
        snapshot, weight = replay.nearest_snapshot(txn, draft, header.parent_version)
        moved.snapshot_version, moved.weight = snapshot, weight
        moved.snapshot_stored_bytes = replay.snapshot_stored_bytes(txn, draft.identity, snapshot) if snapshot else 0
        moved.moved_version = header.version if branch is not None else 0
    moved.version = header.version
    moved.digest = header.digest
    moved.save_time_us = header.create_time_us
    moved.schema_version = body.schema_version
    moved.weight += replay.entry_weight(header.edit_stored_bytes)
    return moved
