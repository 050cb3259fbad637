"""What a list of versions shows of each beside its description: states and effects.

The states of a page are made oldest first, each from the one before it, and shown newest first. The first one is shown
whole, and the others as steps (`codec/diff.py`). Only the oldest one goes into the cache: all of them would push heads
out.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import lmdb

from stateward.v1.checkpoint_pb2 import Checkpoint
from stateward.v1.checkpoint_service_pb2 import CheckpointContent, ListCheckpointsRequest
from stateward_sidecar.codec.diff import find_step, unshared_bytes
from stateward_sidecar.codec.pages import Selection, page, project, selection_of
from stateward_sidecar.codec.state import StateTree
from stateward_sidecar.store.items.effectlist import EffectList
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.paging import PAGE_BYTES, page_bytes
from stateward_sidecar.store.thread.thread import Thread

# Making and showing a small state takes about 150 µs.
STATES_MAX = 200
# The states of a page share most of their bytes. Beside the first and the last one they may take this much.
OWN_BYTES_MAX = 32 << 20
# The edits of the versions of a page. Those that lead from state to state are about as large, and the page has 3 MiB.
EDITS_BYTES_MAX = 8 << 20


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
        trees = self._states(txn, thread, views) if request.include_states else {}
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
            if contents and size_bytes > page_bytes():
                break
            contents.append(content)
        return contents

    def _states(self, txn: lmdb.Transaction, thread: Thread, views: Sequence[Checkpoint]) -> dict[int, StateTree]:
        """Returns the states of the first of these versions, as many as memory has room for; at least one."""
        cache, newest = self._context.cache, views[0].version
        near = {newest: replay.state_at(txn, thread, newest, cache)}
        sums = accumulate(view.edit_bytes for view in views)
        older = [view for view, total in zip(views, sums, strict=True) if total <= EDITS_BYTES_MAX][:0:-1]
        own_bytes, left_bytes = dict[int, int](), OWN_BYTES_MAX
        before: StateTree | None = None
        for view in older:
            # The oldest one goes into the cache: without it, reading the page again would begin at a snapshot again.
            held = near if before is not None else None
            tree, _ = replay.state_and_base(txn, thread, view.version, cache, held)
            near[view.version] = tree
            own_bytes[view.version] = _own_bytes(tree, before) + view.edit_bytes if before is not None else 0
            left_bytes -= own_bytes[view.version]
            while left_bytes < 0:
                oldest = min(own_bytes)
                left_bytes += own_bytes.pop(oldest)
                del near[oldest]
            before = tree
        return near


def _own_bytes(tree: StateTree, before: StateTree) -> int:
    """Returns about how many bytes a state does not share with the one that it was made from, besides its edits."""
    slots = (len(value) for name, value in tree.slots.items() if before.slots.get(name) is not value)
    changed = (log.entries for name, log in tree.logs.items() if before.logs.get(name) is not log)
    logs = (8 * entries.loose_count + entries.runs.loose_bytes for entries in changed)
    return sum(slots) + sum(logs)


def _add_state(
    content: CheckpointContent, before: StateTree | None, tree: StateTree, selection: Selection
) -> StateTree | None:
    """Adds a state as the step from the one before (None = there is none), or whole if that is smaller.

    Returns what the reader has then; None if the state is left out because it is too large.
    """
    shown = project(tree, selection)
    if before is not None and unshared_bytes(before, shown) <= PAGE_BYTES:
        diff, rewritten = find_step(before, shown)
        if diff.ByteSize() <= min(shown.size_bytes, PAGE_BYTES):
            content.diff.CopyFrom(diff)
            content.rewritten_versions.update(rewritten)
            content.retired_logs.update({name: index for name, index in shown.retired.items() if index})
            return shown
    whole = page(tree, selection, None, PAGE_BYTES)
    if whole.next is not None or whole.chunk is not None:
        content.state_omitted = True
        return None
    content.state.MergeFromString(whole.state)
    content.state.SetInParent()
    return shown
