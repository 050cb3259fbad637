"""Operations of sliding windows.

A version in which a log was trimmed carries a label that names the log, so that the versions before it are found
without reading the history.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from stateward import _reading, _saving
from stateward._operations import Await, Operation, ThreadRef
from stateward._saving import SaveOptions
from stateward.models import Checkpoint

if TYPE_CHECKING:
    from stateward.state import State
    from stateward.window import Window

LABEL = "trimmed:"


def as_text(entry: Any) -> str:
    """What a model would be shown of an entry, roughly."""
    if isinstance(entry, str):
        return entry
    return json.dumps(entry, default=str, ensure_ascii=False)


def save(ref: ThreadRef, state: State, windows: Sequence[Window], options: SaveOptions) -> Operation[Checkpoint]:
    """One version, with the logs trimmed to their windows. What a summariser raises is raised after the save."""
    failures: list[Exception] = []
    labels: dict[str, str] = {}
    for window in windows:
        try:
            if (yield from _trim(window, state)):
                labels[LABEL + window.log] = "1"
        except Exception as failure:  # noqa: BLE001  a checkpoint is worth more than a summary
            failures.append(failure)
    if labels:
        options = {**options, "labels": {**(options.get("labels") or {}), **labels}}
    checkpoint = yield from _saving.save(ref, state, options)
    if failures:
        raise failures[0]
    return checkpoint


def _trim(window: Window, state: State) -> Operation[int]:
    if window.log not in state.logs:
        return 0
    log = state.logs[window.log]
    # What no version has yet could not be read back.
    count = min(window.excess(list(log)), len(log._stored))
    if count == 0:
        return 0
    if window.summarise is not None:
        summary = window.summarise(state.slots.get(window.into), log[:count])
        if inspect.isawaitable(summary):
            summary = yield Await(summary)
        state.slots[window.into] = summary
    log.trim(before_index=log.first_index + count)
    return count


def trimmed(ref: ThreadRef, name: str) -> Operation[list[Any]]:
    """What the branch's versions so labelled have trimmed of a log, oldest first."""
    request = _reading.list_checkpoints(ref.namespace, ref.thread, branch=ref.branch, labels={LABEL + name: "1"})
    found: list[Checkpoint] = []
    while True:
        found += yield from _reading.read_checkpoints(request)
        if not request.page_token:
            break
    entries: list[Any] = []
    known = 0  # index of the next entry that is not in the list
    for checkpoint in reversed(found):
        before = (yield from _reading.hydrate_stored(ref, checkpoint.parent_version, slots=[], logs=[name])).logs[name]
        after = (yield from _reading.hydrate_stored(ref, checkpoint.version, slots=[], logs=[name])).logs[name]
        begin, end = max(known, before.first_index), after.first_index
        entries += [before.at(index) for index in range(begin, min(end, before.next_index))]
        known = max(known, end)
    return entries
