"""What a list of versions shows of each beside its description: states and effects.

The states of a page are made oldest first, each from the one before it, and shown newest first. The first one is shown
whole, and the others as steps (`codec/steps.py`). Only the oldest one goes into the cache: all of them would push heads
out.
"""

from __future__ import annotations

from collections.abc import Sequence

import lmdb

from stateward.v1.checkpoint_pb2 import Checkpoint
from stateward.v1.checkpoint_service_pb2 import CheckpointContent, ListCheckpointsRequest
from stateward_sidecar.codec.pages import Selection, page, project, selection_of
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.codec.steps import find_step
from stateward_sidecar.store import replay
from stateward_sidecar.store.context import Context
from stateward_sidecar.store.effectlist import EffectList
from stateward_sidecar.store.thread import Thread

# Making and showing a small state takes about 150 µs.
STATES_MAX = 200
# The states that are in memory for one page. Most of their bytes are shared, so this is far more than they take.
STATES_BYTES_MAX = 32 << 20
PAGE_BYTES = 3 << 20


class Contents:
    """Adds states and effects to a list."""

    def __init__(self, context: Context, effects: EffectList) -> None:
        self._context = context
        self._effects = effects

    def make(
        self, txn: lmdb.Transaction, thread: Thread, request: ListCheckpointsRequest, views: Sequence[Checkpoint]
    ) -> list[CheckpointContent]:
        """Returns the contents of the first versions of a page, as many as fit; at least one."""
        selection = selection_of(request.projection if request.HasField("projection") else None)
        trees = self._states(txn, thread, [view.version for view in views]) if request.include_states else {}
        contents, size_bytes, before = list[CheckpointContent](), 0, None
        for view in views:
            content = CheckpointContent()
            if request.include_states:
                if view.version not in trees:
                    break
                before = _add_state(content, before, trees[view.version], selection)
            if request.include_effects:
                self._effects.add_to(txn, thread, view.checkpoint_id, content, PAGE_BYTES)
            size_bytes += view.ByteSize() + content.ByteSize()
            if contents and size_bytes > PAGE_BYTES:
                break
            contents.append(content)
        return contents

    def _states(self, txn: lmdb.Transaction, thread: Thread, versions: Sequence[int]) -> dict[int, StateTree]:
        """Returns the states at the first of these versions, as many as memory has room for; at least one."""
        cache, newest = self._context.cache, versions[0]
        tree = replay.state_at(txn, thread, newest, cache)
        near, size_bytes = {newest: tree}, tree.size_bytes
        older = versions[1 : 1 + STATES_BYTES_MAX // max(size_bytes, 1)][::-1]
        for version in older:
            # The oldest one goes into the cache: without it, reading the page again would begin at a snapshot again.
            held = near if version != older[0] else None
            tree, _ = replay.state_and_base(txn, thread, version, cache, held)
            near[version] = tree
            size_bytes += tree.size_bytes
            while size_bytes > STATES_BYTES_MAX and len(near) > 1:  # older states are larger than the newest one
                size_bytes -= near.pop(min(near)).size_bytes
        return near


def _add_state(
    content: CheckpointContent, before: StateTree | None, tree: StateTree, selection: Selection
) -> StateTree | None:
    """Adds a state as the step from the one before (None = there is none), or whole if that is smaller.

    Returns what the reader has then; None if the state is left out because it is too large.
    """
    shown = project(tree, selection)
    if before is not None:
        diff, rewritten = find_step(before, shown)
        if diff.ByteSize() <= min(shown.size_bytes, PAGE_BYTES):
            content.diff.CopyFrom(diff)
            content.rewritten_versions.update(rewritten)
            return shown
    whole = page(tree, selection, None, PAGE_BYTES)
    if whole.next is not None or whole.chunk is not None:
        content.state_omitted = True
        return None
    content.state.MergeFromString(whole.state)
    content.state.SetInParent()
    return shown
