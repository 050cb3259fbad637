"""`stateward replay`: a run, step by step."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.commands.diff import print_differences
from stateward.cli.options.connect import (
    BranchOption,
    JsonOption,
    NamespaceOption,
    TargetOption,
    ThreadArgument,
    connect,
)
from stateward.cli.options.where import FORMS, find_version, looking_at
from stateward.cli.show.compare import compare_logs, compare_slots
from stateward.cli.show.describe import checkpoint_as_json, compact, pairs, plain, slot_of, status_word
from stateward.cli.show.layouts import InternalOption, is_internal, say_hidden
from stateward.cli.show.one_by_one import end_if_damaged
from stateward.cli.show.output import CommandError, clean, is_terminal, print_facts, print_line_of_json, say, size
from stateward.cli.show.timeline import Happening, Timeline, for_scripts, lines, shown
from stateward.cli.show.times import clock_time
from stateward.errors import InvalidField

if TYPE_CHECKING:
    from stateward import Checkpoint, State, Thread
    from stateward.changes import Change

SLOT_WIDTH = 300


def replay(
    context: typer.Context,
    thread: ThreadArgument,
    first: Annotated[
        str | None, typer.Option("--from", metavar="VERSION", help=f"Begin here: {FORMS}; default: the first.")
    ] = None,
    last: Annotated[str | None, typer.Option("--to", metavar="VERSION", help="End here; default: the newest.")] = None,
    diff_only: Annotated[bool, typer.Option("--diff-only", help="Only what changed, without the slots.")] = False,
    branch: BranchOption = "main",
    internal: InternalOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show a run step by step: what happened, what each version changed, and its slots.

    What happened are questions and answers, tool calls, signals, and changes of status, labels and tags.

    If versions were pruned, the walk begins after the newest pruned version.

    On a terminal, Enter shows the next step, b the previous one, a number that step, and q quits. In a pipe the command
    prints all steps; --json prints a line for each step, with its changes.

    \b
    Examples:
      stateward replay booking-42
      stateward replay booking-42 --from step:14 --branch retry
      stateward replay booking-42 --diff-only
      stateward replay booking-42 --json | jq -c .changes
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        handle = client.thread(thread, branch=branch)
        begin, end = find_version(handle, first, "--from"), find_version(handle, last, "--to")
        slots: list[str] | None = None if as_json else []
        timeline, before = Timeline(handle, handle.info()), None
        with looking_at(handle), _on_one_line(thread), handle.history(begin or None, end, slots=slots) as line:
            if as_json:
                for entry in line:
                    checkpoint, state, changes = entry
                    happened = timeline.at(checkpoint, before)
                    print_line_of_json(_as_json(checkpoint, state if entry.begins else None, changes, happened))
                    before = checkpoint
                end_if_damaged(timeline.effects, "effect")
                return
            steps = [checkpoint for checkpoint, _, _ in line]
        walk = _Walk(handle, steps, timeline, diff_only=diff_only, internal=internal)
        if is_terminal() and sys.stdin.isatty():
            walk.by_hand()
        else:
            for at in range(len(steps)):
                walk.show(at)
    end_if_damaged(timeline.effects, "effect")


@contextmanager
def _on_one_line(thread: str) -> Iterator[None]:
    """Explains the error for two versions that are not on one line of ancestors, and names the command to draw them."""
    try:
        yield
    except InvalidField as error:
        if error.field != "oldest":
            raise
        what = error.message.partition(": ")[2]
        raise CommandError(f"--from: {what}; `stateward history {thread} --all` draws which came from which") from None


class _Walk:
    """The steps, and where one is."""

    def __init__(
        self, thread: Thread, steps: list[Checkpoint], timeline: Timeline, *, diff_only: bool, internal: bool
    ) -> None:  # fmt: skip
        self._thread, self._steps, self._timeline = thread, steps, timeline
        self._diff_only, self._internal = diff_only, internal
        self._seen: tuple[int, State] | None = None

    def by_hand(self) -> None:
        """Shows one step after another, as it is asked for."""
        at, end = 0, len(self._steps) - 1
        while True:
            self.show(at)
            found = self._ask(at, end)
            if found is None:
                return
            at = found

    @staticmethod
    def _ask(at: int, end: int) -> int | None:
        """Where to go, once somebody has typed it; None = to the end."""
        while True:
            print(f"[{at + 1}/{end + 1}] Enter next, b back, number, q quit: ", end="", flush=True)
            typed = sys.stdin.readline()
            word = typed.strip().lower()
            if not typed or word == "q" or (not word and at == end):
                return None
            if not word:
                return at + 1
            if word == "b":
                return max(at - 1, 0)
            if re.fullmatch(r"\d{1,9}", word) and 1 <= int(word) <= end + 1:
                return int(word) - 1
            say(f"{clean(word)!r} is none of Enter, b, q, and a number from 1 to {end + 1}")

    def show(self, at: int) -> None:
        """Prints a step."""
        checkpoint = self._steps[at]
        # Compared with its parent version; if that was pruned, with the step before.
        old = self._state(self._steps[at - 1].version) if at else self._parent(checkpoint)
        new = self._state(checkpoint.version)
        _print_head(checkpoint)
        happened = self._timeline.at(checkpoint, self._steps[at - 1] if at else None)
        happened = shown(happened, internal=self._internal)
        for line in lines(happened):
            say(line)
        slots, logs = compare_slots(old, new), compare_logs(old, new)
        if slots or logs or not happened:
            print_differences(new, slots, logs, internal=self._internal)
        if len(new.slots) and not self._diff_only:
            names = [name for name in sorted(new.slots) if self._internal or not is_internal(name, new)]
            say("state", style="bold")
            print_facts((f"  {name}", compact(slot_of(new, name), SLOT_WIDTH)) for name in names)
            say_hidden(len(new.slots) - len(names), "slot")
        if at == len(self._steps) - 1 and (later := self._later(checkpoint)):
            say("since then", style="bold")
            for line in lines(later):
                say(line)
        say()

    def _later(self, checkpoint: Checkpoint) -> list[Happening]:
        return shown(self._timeline.later(checkpoint), internal=self._internal)

    def _state(self, version: int) -> State:
        if self._seen is None or self._seen[0] != version:
            self._seen = version, self._thread.hydrate(version)
        return self._seen[1]

    def _parent(self, checkpoint: Checkpoint) -> State | None:
        from stateward.errors import BlobNotFound, VersionNotFound, VersionPruned  # noqa: PLC0415

        try:
            return self._state(checkpoint.parent_version) if checkpoint.parent_version else None
        except (VersionNotFound, VersionPruned, BlobNotFound):
            return None


def _print_head(each: Checkpoint) -> None:
    branch = f" on {clean(each.branch)}" if each.branch != "main" else ""
    step = "" if each.step is None else f", step {each.step}"
    detail = f" ({clean(each.status_detail)})" if each.status_detail else ""
    more = f"  {clean(pairs(each.metrics))}" if each.metrics else ""
    say(
        f"== version {each.version}{branch}{step}  {status_word(each.status)}{detail}  "
        f"{clock_time(each.create_time)}  {size(each.edit_bytes)}{more}",
        style="bold cyan",
    )


def _as_json(
    checkpoint: Checkpoint, state: State | None, changes: list[Change], happened: list[Happening]
) -> dict[str, Any]:
    found = {
        "checkpoint": checkpoint_as_json(checkpoint),
        "changes": list(map(change_as_json, changes)),
        "happened": for_scripts(happened),
    }
    if state is not None:  # the first step: everything that is there
        found["slots"] = {name: plain(slot_of(state, name)) for name in state.slots}
        found["logs"] = {name: len(state.logs[name]) for name in state.logs}
    return found


def change_as_json(change: Change) -> dict[str, Any]:
    """A change for scripts: {"change": "set_slot", "slot": …, "value": …}."""
    name = re.sub(r"(?<!^)(?=[A-Z])", "_", type(change).__name__).lower()
    return {"change": name, **{key: plain(value) for key, value in vars(change).items() if value is not None}}
