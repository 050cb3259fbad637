"""Operations of sliding windows.

A version in which a log was trimmed carries a label that names the log, so that the versions before it are found
without reading the history. The label follows from what is sent, and not from what this attempt trimmed: a save that
failed leaves its trim in the state, and the next one sends it.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

from stateward._operations import reading, saving, threads
from stateward._operations.saving import SaveOptions
from stateward._operations.steps import Await, Operation, ThreadRef, read_pages
from stateward.models import Checkpoint
from stateward.state import State
from stateward.window import Window

LABEL = "trimmed:"


def save(ref: ThreadRef, state: State, windows: Sequence[Window], options: SaveOptions) -> Operation[Checkpoint]:
    """One version, with the logs trimmed to their windows. What a summariser raises is raised after the save."""
    if not windows:
        return (yield from saving.save(ref, state, options))
    failures: list[Exception] = []
    for window in windows:
        try:
            yield from _trim(window, state)
        except Exception as failure:  # noqa: BLE001  a checkpoint is worth more than a summary
            failures.append(failure)
    labels = {LABEL + window.log: "1" for window in windows if _is_trimmed(window, state)}
    if labels:
        options = {**options, "labels": {**(options.get("labels") or {}), **labels}}
    checkpoint = yield from saving.save(ref, state, options)
    if failures:
        raise failures[0]
    return checkpoint


def _is_trimmed(window: Window, state: State) -> bool:
    log = state.logs._logs.get(window.log)
    return log is not None and log._trim_before > 0


def _trim(window: Window, state: State) -> Operation[None]:
    if window.log not in state.logs:
        return
    log = state.logs[window.log]
    # What no version has yet could not be read back.
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
    """What the versions so labelled of a branch, and of those that it goes on from, have trimmed of a log, oldest
    first."""
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
    """The versions of a branch's line that have a label, newest first: its own, then those of the branch it began from
    up to there, and so on."""
    info = yield from threads.get_thread(ref)
    bases = {branch.name: branch.base_version for branch in info.branches}
    found: list[Checkpoint] = []
    branch, base = ref.branch, bases.get(ref.branch, ref.at or 0)
    if ref.branch in bases:
        found += yield from _labelled_of_branch(ref, branch, label, before=None)
    while base:
        begin = yield from reading.get_checkpoint(ref, base, None, None)
        if label in begin.labels:
            found.append(begin)
        found += yield from _labelled_of_branch(ref, begin.branch, label, before=base)
        base = bases.get(begin.branch, 0)
    return found


def _labelled_of_branch(ref: ThreadRef, branch: str, label: str, before: int | None) -> Operation[list[Checkpoint]]:
    request = reading.list_checkpoints(ref.namespace, ref.thread, branch=branch, before=before, labels={label: "1"})
    return (yield from read_pages(reading.read_checkpoints, request))
