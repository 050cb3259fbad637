"""`stateward show`: shows one version of a thread, with its state."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.options.connect import (
    BranchOption,
    JsonOption,
    NamespaceOption,
    TargetOption,
    ThreadArgument,
    connect,
)
from stateward.cli.options.where import AtOption, find_version, looking_at
from stateward.cli.show.describe import (
    checkpoint_as_json,
    compact,
    entry_of,
    metadata_of,
    pairs,
    plain,
    slot_of,
    status_word,
    summarize,
    whole,
)
from stateward.cli.show.layouts import InternalOption, is_internal, say_hidden
from stateward.cli.show.output import (
    CommandError,
    clean,
    is_terminal,
    print_facts,
    print_json,
    say,
    say_value,
    size,
)
from stateward.cli.show.timeline import Happening, Timeline, effect_line, for_scripts, lines, open_effects, said
from stateward.cli.show.times import clock_time
from stateward.signals import answer_in

if TYPE_CHECKING:
    from stateward import Checkpoint, Log, State, Thread, ThreadInfo
    from stateward.signals import Question, QuestionPart

DEFAULT_LAST = 10
SLOT_WIDTH = 2000
ENTRY_WIDTH = 160


def show(
    context: typer.Context,
    thread: ThreadArgument,
    at: AtOption = None,
    branch: BranchOption = "main",
    log: Annotated[str | None, typer.Option("--log", metavar="NAME", help="Only this log.")] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last", min=0, metavar="N", help=f"Last N entries of a log; default: {DEFAULT_LAST}, JSON: all."
        ),
    ] = None,
    slot: Annotated[str | None, typer.Option("--slot", metavar="NAME", help="Only this slot.")] = None,
    full: Annotated[bool, typer.Option("--full", help="Show slots and entries in full, on several lines.")] = False,
    internal: InternalOption = False,
    raw: Annotated[bool, typer.Option("--raw", help="With --slot: write its stored bytes.")] = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show the newest version of a thread, or another one: its facts, its slots, and the last entries of its logs.

    \b
    Examples:
      stateward show booking-42
      stateward show booking-42 --at 12 --log messages --last 3
      stateward show booking-42 --log messages --last 1 --full
      stateward show booking-42 --at before-dates --json | jq .slots
      stateward show booking-42 --slot photo --raw > photo.png
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if full and (raw or as_json):
        raise typer.BadParameter("it cannot be combined with --raw or --json", param_hint="--full")
    if raw and (slot is None or as_json):
        raise typer.BadParameter("it needs --slot NAME, and cannot be combined with --json", param_hint="--raw")
    with connect(context, target, namespace) as client:
        handle = client.thread(thread, branch=branch)
        with looking_at(handle):
            state = _hydrate(handle, at, log, last, slot)
        # Inside `with`, because large values are read on access.
        if raw:
            assert slot is not None
            _print_raw(slot, state.slots.raw(slot).data)
        elif as_json:
            print_json(state_as_json(state, last, _told_of(handle, state)))
        else:
            _print_state(handle, state, last, full=full, internal=internal or slot is not None)


def _print_raw(slot: str, data: bytes) -> None:
    if is_terminal():
        try:
            say_value(data.decode())
        except UnicodeDecodeError:
            raise CommandError(f"slot {slot!r} is not text; write it to a file: --raw > FILE") from None
        return
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def _print_state(handle: Thread, state: State, last: int | None, *, full: bool, internal: bool) -> None:
    assert state.checkpoint is not None
    _print_checkpoint(state.checkpoint, state.owner_id, handle.info())
    _print_work(handle, state)
    if len(state.slots):
        say()
        say("slots", style="bold")
        names = [name for name in sorted(state.slots) if internal or not is_internal(name, state)]
        if full:
            for name in names:
                _print_whole(clean(name), slot_of(state, name))
        else:
            print_facts((f"  {name}", compact(slot_of(state, name), SLOT_WIDTH)) for name in names)
        say_hidden(len(state.slots) - len(names), "slot")
    for name in state.logs:
        _print_log(state, name, DEFAULT_LAST if last is None else last, is_projected=state.partial, full=full)


def _print_whole(name: str, value: Any) -> None:
    """Prints the name of a slot or entry, and its lines below the name."""
    say(f"  {name}", style="bold")
    for line in whole(value):
        say(f"    {clean(line)}")


def _hydrate(thread: Thread, at: str | None, log: str | None, last: int | None, slot: str | None) -> State:
    """Returns the state, or only the given log and slot. Raises CommandError if the log or slot does not exist."""
    version = find_version(thread, at)
    if log is None and slot is None:
        return thread.hydrate(version, must_exist=True)
    state = thread.hydrate(
        version,
        slots=None if slot is None else [slot],
        logs=None if log is None else {log: last},
        must_exist=True,
    )
    for kind, name, found in (("log", log, state.logs), ("slot", slot, state.slots)):
        if name is not None and name not in found:
            whole = thread.hydrate(state.version)
            there = ", ".join(sorted(whole.logs if kind == "log" else whole.slots)) or f"no {kind}"
            raise CommandError(
                f"version {state.version} of thread {thread.name!r} has no {kind} {name!r}; it has: {there}"
            )
    return state


def _told_of(thread: Thread, state: State) -> list[Happening]:
    assert state.checkpoint is not None
    return Timeline(thread, thread.info()).told_of(state.checkpoint)


def state_as_json(state: State, last: int | None, told: Sequence[Happening] = ()) -> dict[str, Any]:
    """Returns a state as JSON, for scripts. Values that JSON cannot hold become {"media_type", "base64"}. `told`: what
    was told of the version since."""
    assert state.checkpoint is not None
    return {
        "checkpoint": checkpoint_as_json(state.checkpoint),
        "owner_id": state.owner_id,
        **({"told": for_scripts(told)} if told else {}),
        "slots": {name: plain(slot_of(state, name)) for name in state.slots},
        "logs": {name: [plain(entry) for entry in _end(state.logs[name], last)] for name in state.logs},
    }


def _end(log: Log, last: int | None) -> list[Any]:
    """Returns the last entries; None = all."""
    first = 0 if last is None else max(len(log) - last, 0)
    return [entry_of(log, position) for position in range(first, len(log))]


def _several(question: Question) -> tuple[QuestionPart, ...]:
    """The parts of a question, if there are several."""
    return question.parts if len(question.parts) > 1 else ()


def _print_work(handle: Thread, state: State) -> None:
    """Prints what the version asks, who answered, which answers it used, and the tool calls without a known end."""
    checkpoint, question = state.checkpoint, state.question
    assert checkpoint is not None
    answer = None if question is None else answer_in(state.signals, checkpoint.wait_id)
    if question is not None:
        say()
        say("question", style="bold")
        print_facts(
            [
                ("  asks", question.prompt),
                *((f"  part {part.name}", part.prompt) for part in _several(question)),
                ("  answer form", "" if question.schema is None else compact(question.schema, SLOT_WIDTH)),
                ("  asked by", question.asked_by),
                ("  since", clock_time(checkpoint.create_time)),
                ("  wait id", checkpoint.wait_id),
                ("  answered", "" if answer is None else f"{said(answer)}, {clock_time(answer.time)}"),
            ]
        )
    if told := _told_of(handle, state):
        say()
        say("after it was saved", style="bold")
        for line in lines(told):
            say(line)
    others = [each for each in state.signals if each is not answer]
    used = handle.signals.list(acknowledged_by=checkpoint) if checkpoint.acknowledged_signals else []
    for title, found in (("signals that wait", others), ("signals that this version used", used)):
        if found:
            say()
            say(title, style="bold")
            for each in found:
                say(f"  {clean(said(each))}, {clock_time(each.time)}")
    if running := open_effects(handle.effects.list(values=False)):
        say()
        say("effects without an end", style="bold")
        for effect in running:
            say(f"  {clean(effect_line(effect).text)}")


def _print_checkpoint(checkpoint: Checkpoint, owner_id: str, info: ThreadInfo) -> None:
    metadata = metadata_of(checkpoint)
    detail = f" ({checkpoint.status_detail})" if checkpoint.status_detail else ""
    print_facts(
        [
            ("thread", checkpoint.thread),
            ("branch", checkpoint.branch if checkpoint.branch != "main" else ""),
            ("version", f"{checkpoint.version} (parent {checkpoint.parent_version})"),
            ("checkpoint id", checkpoint.checkpoint_id),
            ("status", status_word(checkpoint.status) + detail),
            ("step", "" if checkpoint.step is None else str(checkpoint.step)),
            ("saved", clock_time(checkpoint.create_time)),
            ("durability", status_word(checkpoint.durability)),
            ("written by", f"sidecar {owner_id}; this is its newest archived version" if owner_id else ""),
            ("digest", checkpoint.digest.hex()),
            ("size", f"{size(checkpoint.edit_bytes)} of edits, {size(checkpoint.stored_bytes)} at rest"),
            ("labels", pairs(checkpoint.labels)),
            ("thread labels", pairs(info.labels)),
            ("tags", " ".join(each.name for each in info.tags if each.version == checkpoint.version)),
            ("attributes", pairs(checkpoint.attributes)),
            ("metrics", pairs(checkpoint.metrics)),
            ("metadata", "" if metadata is None else compact(metadata, SLOT_WIDTH)),
        ]
    )


def _print_log(state: State, name: str, last: int, *, is_projected: bool, full: bool) -> None:
    log = state.logs[name]
    shown = _end(log, last)
    first_shown = log.next_index - len(shown)
    say()
    # A projected log does not tell where the whole log begins.
    hidden = 0 if is_projected else len(log) - len(shown)
    say(f"log {clean(name)}" + ("" if is_projected else f", {len(log)} entries"), style="bold")
    if hidden:
        say(f"  … {hidden} more before; --last {len(log)} shows all", style="dim")
    width = len(str(log.next_index))
    for index, entry in enumerate(shown, first_shown):
        if full:
            _print_whole(str(index), entry)
            continue
        say(f"  {index:>{width}}  {summarize(entry, ENTRY_WIDTH)}")
