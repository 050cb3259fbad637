"""The step from one shown state to another: what a list of states sends in place of the second one.

A step is a Diff for readers. They rebuild the state that Hydrate shows, with every index of its logs, also from a newer
state to an older one. A Diff for the daemon cannot do that, because an index is never used again in a thread.
"""

from __future__ import annotations

from stateward.v1.diff_pb2 import DeleteLog, Diff, Edit
from stateward_sidecar.codec.changes import to_diff
from stateward_sidecar.codec.diff import find_changes
from stateward_sidecar.codec.state import LogState, StateTree


def find_step(old: StateTree, new: StateTree) -> tuple[Diff, dict[str, int]]:
    """Returns the edits that lead a reader from one state to another, and the changed ``rewritten_version``s of logs.

    A log that is made begins at the ``at_index`` of its append. A log that begins before or behind the entries of the
    old one is removed and made again.
    """
    remade = {name for name, log in new.logs.items() if name in old.logs and not _overlap(old.logs[name], log)}
    kept = {name: log for name, log in old.logs.items() if name not in remade}
    begins = {name: log.first_index for name, log in new.logs.items() if name not in kept}
    diff = Diff(edits=[Edit(delete_log=DeleteLog(log=name)) for name in sorted(remade)])
    # If a log that is made again has the right first index, it needs no padding.
    diff.MergeFrom(to_diff(find_changes(StateTree(old.slots, kept, begins, 0), new.slots, new.logs)))
    for edit in diff.edits:
        if edit.HasField("append") and edit.append.log in begins:
            edit.append.at_index = begins[edit.append.log]
    rewritten = {name: log.rewritten_version for name, log in new.logs.items()}
    return diff, {name: version for name, version in rewritten.items() if version != _rewritten(old, name)}


def _overlap(old: LogState, new: LogState) -> bool:
    return old.first_index <= new.first_index <= old.next_index


def _rewritten(tree: StateTree, name: str) -> int:
    log = tree.logs.get(name)
    return log.rewritten_version if log is not None else 0
