"""Operations of sliding windows.

A version in which a window trimmed a log has a label with the log's name, so that the client finds it without reading
the history. The label depends on what the save sends, not on what this attempt trimmed: if a save fails, its trim stays
in the state, and the next save sends it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from typing import Any

from stateward._operations import reading, saving, threads
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Await, Operation, ThreadRef, read_pages
from stateward.arguments import instance, several
from stateward.models import Checkpoint
from stateward.state import State
from stateward.window import Window

LABEL = "trimmed:"


def save(ref: ThreadRef, state: State, windows: Sequence[Window], options: SaveOptions) -> Operation[Checkpoint]:
    """Saves a version with the logs trimmed to their windows. Raises the first error of a summariser after the save."""
    windows = check_windows(windows)
    if not windows:
        return (yield from saving.save(ref, state, options))
    saving.require_state(state, "a save")
    failures: list[Exception] = []
    for window in windows:
        try:
            yield from _trim(window, state)
        except Exception as failure:  # noqa: BLE001  a failed summary must not prevent the save
            failures.append(failure)
    logs = state.logs._logs
    labels = {LABEL + each.log: "1" for each in windows if each.log in logs and logs[each.log]._trim_before > 0}
    if labels:
        options = {**options, "labels": {**saving.labels_of(options), **labels}}
    checkpoint = yield from saving.save(ref, state, options)
    if failures:
        raise failures[0]
    return checkpoint


def check_windows(windows: Iterable[Window]) -> list[Window]:
    """Returns the windows of an argument. Raises TypeError for anything but a list of Windows."""
    return [instance(each, "windows", Window, "a list of Windows") for each in several(windows, "windows", "Windows")]


def _trim(window: Window, state: State) -> Operation[None]:
    if window.log not in state.logs:
        return
    log = state.logs[window.log]
    # Entries that are in no version yet could not be read again.
    count = min(window.excess(list(log)), len(log._stored))
    if count == 0:
        return
    if window.summarise is not None:
        summary = window.summarise(state.slots.get(window.into), log[:count])
        if inspect.isawaitable(summary):
            summary = yield Await(summary)
        state.slots[window.into] = summary
    log.trim(before_index=log.first_index + count)


def trimmed(ref: ThreadRef, name: str) -> Operation[list[Any]]:
    """Returns the entries that windows trimmed from a log, oldest first, also on the branches this one started from.

    Reads only the labelled versions and fails if one is pruned. The command line's `whole_log` walks the whole history
    instead, because it also returns entries that were trimmed without a window, and counts those that are lost.
    """
    found = yield from _labelled(ref, LABEL + name)
    entries: list[Any] = []
    known = 0  # index of the next entry that is not in the list
    for checkpoint in reversed(found):
        before = (yield from reading.hydrate_stored(ref, checkpoint.parent_version, slots=[], logs=[name])).logs[name]
        after = (yield from reading.hydrate_stored(ref, checkpoint.version, slots=[], logs=[name])).logs[name]
        begin, end = max(known, before.first_index), after.first_index
        entries += [before.at(index) for index in range(begin, min(end, before.next_index))]
        known = max(known, end)
    return entries


def _labelled(ref: ThreadRef, label: str) -> Operation[list[Checkpoint]]:
    """Returns the labelled versions of a branch and of the branches it started from, newest first."""
    info = yield from threads.get_thread(ref)
    bases = {branch.name: branch.base_version for branch in info.branches}
    found: list[Checkpoint] = []
    branch, base = ref.branch, bases.get(ref.branch, ref.at or 0)
    if ref.branch in bases:
        found += yield from _labelled_of_branch(ref, branch, label, before=None)
    while base:
        begin = yield from reading.get_checkpoint(ref, base)
        if label in begin.labels:
            found.append(begin)
        found += yield from _labelled_of_branch(ref, begin.branch, label, before=base)
        base = bases.get(begin.branch, 0)
    return found


def _labelled_of_branch(ref: ThreadRef, branch: str, label: str, before: int | None) -> Operation[list[Checkpoint]]:
    request = reading.list_checkpoints(ref.namespace, ref.thread, branch=branch, before=before, labels={label: "1"})
    return (yield from read_pages(reading.read_checkpoints, request))
