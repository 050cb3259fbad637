"""Whether writes of tasks should wait for the checkpoint that follows.

LangGraph awaits what a task wrote before it writes the checkpoint if the graph has delta channels, if the node has an
error handler, and when a program updates the state. The wait is lost then, every time.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from stateward._operations.steps import ThreadRef

MISSED_MAX = 3
"""After so many checkpoints in a row with which no writes came, the writes of a branch do not wait."""
BRANCHES_MAX = 1000


@dataclass(slots=True)
class _Branch:
    """What is known of a branch."""

    anchor: str = ""
    """Checkpoint whose tasks wrote last; empty = it is counted already."""
    missed: int = 0


class Expecting:
    """What the branches that were written last did."""

    def __init__(self, limit: int = BRANCHES_MAX) -> None:
        self._branches: OrderedDict[tuple[str, str], _Branch] = OrderedDict()
        self._limit = limit

    def expects(self, ref: ThreadRef, anchor: str) -> bool:
        """Whether the writes of a task, which continue the checkpoint `anchor`, should wait."""
        branch = self._branches.setdefault((ref.thread, ref.branch), _Branch())
        self._branches.move_to_end((ref.thread, ref.branch))
        if len(self._branches) > self._limit:
            self._branches.popitem(last=False)
        branch.anchor = anchor
        return branch.missed < MISSED_MAX

    def learn(self, ref: ThreadRef, anchor: str, *, is_met: bool) -> None:
        """Notes whether writes that continue `anchor` travelled with others, or would have if they had waited."""
        branch = self._branches.get((ref.thread, ref.branch))
        if branch is None:
            return
        if is_met:
            branch.anchor, branch.missed = "", 0
        elif branch.anchor == anchor:
            branch.anchor = ""
            branch.missed += 1
