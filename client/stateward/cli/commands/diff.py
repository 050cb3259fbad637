"""`stateward diff`: shows the changes between two versions."""

from __future__ import annotations

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
from stateward.cli.options.where import FORMS, find_version, looking_at
from stateward.cli.show.compare import (
    MISSING,
    LogDifference,
    SlotDifference,
    compare_logs,
    compare_slots,
    compare_texts,
    compare_values,
)
from stateward.cli.show.describe import compact, plain, summarize
from stateward.cli.show.layouts import InternalOption, is_internal, say_hidden
from stateward.cli.show.output import clean, counted, print_json, say, size
from stateward.values import Blob, RawValue

if TYPE_CHECKING:
    from stateward import State

ADDED, REMOVED, PLACE = "green", "red", "bold"
VALUE_WIDTH = 160
ENTRIES_SHOWN = 10
LINES_SHOWN = 200


def diff(
    context: typer.Context,
    thread: ThreadArgument,
    a: Annotated[str, typer.Argument(metavar="FROM", help=f"From this version: {FORMS}; 0 is the empty state.")],
    b: Annotated[
        str | None, typer.Argument(metavar="TO", help="To this version; default: the newest. FROM..TO works too.")
    ] = None,
    branch: BranchOption = "main",
    internal: InternalOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show the changes from one version to another.

    Slots are compared place by place, texts line by line, logs entry by entry.

    \b
    Examples:
      stateward diff booking-42 11 12
      stateward diff booking-42 before-dates
      stateward diff booking-42 main..retry      the ends of two branches
      stateward diff booking-42 0 1 --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if b is None and ".." in a:
        a, _, b = a.partition("..")
    with connect(context, target, namespace) as client:
        handle = client.thread(thread, branch=branch)
        with looking_at(handle):
            first, second = find_version(handle, a, "FROM", least=0), find_version(handle, b, "TO")
            old = handle.hydrate(first, must_exist=True) if first else None
            new = handle.hydrate(second, must_exist=True)
        # Inside `with`, because large values are read on access.
        slots, logs = compare_slots(old, new), compare_logs(old, new)
    if as_json:
        print_json(_as_json(old, new, slots, logs))
        return
    _print_head(old, new)
    print_differences(new, slots, logs, internal=internal)


def print_differences(
    new: State, slots: list[SlotDifference], logs: list[LogDifference], *, internal: bool
) -> None:
    """Prints the differences between two states, of which `new` is the newer one."""
    shown = [each for each in slots if internal or not is_internal(each.name, new)]
    if not slots and not logs:
        say("no difference in slots and logs")
    for slot in shown:
        _print_slot(slot)
    for log in logs:
        _print_log(log)
    say_hidden(len(slots) - len(shown), "slot")


def _print_head(old: State | None, new: State) -> None:
    for sign, state, style in (("---", old, REMOVED), ("+++", new, ADDED)):
        if state is None or state.checkpoint is None:
            say(f"{sign} the empty state", style=style)
            continue
        step = "" if state.checkpoint.step is None else f", step {state.checkpoint.step}"
        branch = "" if state.checkpoint.branch == "main" else f" on {clean(state.checkpoint.branch)}"
        say(f"{sign} {clean(state.checkpoint.thread)} version {state.version}{branch}{step}", style=style)


def _print_slot(slot: SlotDifference) -> None:
    name = clean(slot.name)
    if slot.old is MISSING or slot.new is MISSING:
        say(f"slot {name} was {'added' if slot.old is MISSING else 'removed'}", style=PLACE)
        _print_change("", slot.old, slot.new, slot.old_bytes, slot.new_bytes)
        return
    say(f"slot {name}", style=PLACE)
    places = list(compare_values(slot.old, slot.new))
    if not places:
        say(f"  the same value, encoded in different bytes ({size(slot.old_bytes)}, now {size(slot.new_bytes)})")
    for place in places[:LINES_SHOWN]:
        _print_change(place.path, place.old, place.new, slot.old_bytes, slot.new_bytes)
    if len(places) > LINES_SHOWN:
        say(f"  … {len(places) - LINES_SHOWN:,} more places; --json has all")


def _print_change(path: str, old: Any, new: Any, old_bytes: int = 0, new_bytes: int = 0) -> None:
    place = f"{clean(path)}: " if path else ""
    if isinstance(old, str) and isinstance(new, str) and ("\n" in old or "\n" in new):
        lines = compare_texts(old, new)
        if lines:
            if place:
                say(f"  {place}")
            for line in lines[:LINES_SHOWN]:
                say("  " + clean(line), style={"+": ADDED, "-": REMOVED, "@": "cyan"}.get(line[:1], ""))
            if len(lines) > LINES_SHOWN:
                say(f"  … {len(lines) - LINES_SHOWN:,} more lines; --json has all")
            return
    if old is not MISSING:
        say(f"  - {place}{_short(old, old_bytes)}", style=REMOVED)
    if new is not MISSING:
        say(f"  + {place}{_short(new, new_bytes)}", style=ADDED)


def _short(value: Any, size_bytes: int) -> str:
    """Returns a value on one line, or its size if JSON cannot hold it."""
    match value:
        case bytes():
            return f"{size(len(value))} of bytes"
        case RawValue() | Blob():
            return f"{size(size_bytes)} of {clean(value.media_type)}"
    return compact(value, VALUE_WIDTH)


def _print_log(log: LogDifference) -> None:
    what = " was removed" if log.is_gone else " is new" if log.is_new else ""
    say(f"log {clean(log.name)}{what}", style=PLACE)
    if log.dropped_at_start:
        say(f"  - {counted(log.dropped_at_start, 'entry', 'entries')} dropped at the start", style=REMOVED)
    if log.returned:
        say(f"  + {counted(len(log.returned), 'entry', 'entries')} back at the start", style=ADDED)
    for index, old, new in log.replaced[:ENTRIES_SHOWN]:
        for place in list(compare_values(plain(old), plain(new), f"[{index}]"))[:ENTRIES_SHOWN]:
            _print_change(place.path, place.old, place.new)
    if len(log.replaced) > ENTRIES_SHOWN:
        say(f"  … {counted(len(log.replaced) - ENTRIES_SHOWN, 'entry', 'entries')} more replaced; --json has all")
    if log.cut_at_end:
        say(
            f"  - {counted(log.cut_at_end, 'entry', 'entries')} {'gone' if log.is_gone else 'cut at the end'}",
            style=REMOVED,
        )
    hidden = len(log.appended) - ENTRIES_SHOWN
    if hidden > 0:
        say(f"  + {counted(hidden, 'entry', 'entries')} appended before these; --json has all", style=ADDED)
    for index, entry in log.appended[-ENTRIES_SHOWN:]:
        say(f"  + [{index}] {summarize(entry, VALUE_WIDTH)}", style=ADDED)


def _as_json(old: State | None, new: State, slots: list[SlotDifference], logs: list[LogDifference]) -> dict[str, Any]:
    return {
        "from": old.version if old else 0,
        "to": new.version,
        "slots": {slot.name: _slot_as_json(slot) for slot in slots},
        "logs": {
            log.name: {
                "change": "removed" if log.is_gone else "added" if log.is_new else "changed",
                "dropped_at_start": log.dropped_at_start,
                "cut_at_end": log.cut_at_end,
                "came_back_at_start": [{"index": at, "value": plain(entry)} for at, entry in log.returned],
                "replaced": [{"index": at, "old": plain(was), "new": plain(now)} for at, was, now in log.replaced],
                "appended": [{"index": at, "value": plain(entry)} for at, entry in log.appended],
            }
            for log in logs
        },
    }


def _slot_as_json(slot: SlotDifference) -> dict[str, Any]:
    found: dict[str, Any] = {"change": "changed"}
    if slot.old is MISSING or slot.new is MISSING:
        found["change"] = "added" if slot.old is MISSING else "removed"
    else:
        found["places"] = [
            {"path": each.path}
            | ({} if each.old is MISSING else {"old": plain(each.old)})
            | ({} if each.new is MISSING else {"new": plain(each.new)})
            for each in compare_values(slot.old, slot.new)
            if each.path  # without a path it is the whole value, which is added below
        ]
    if slot.old is not MISSING:
        found["old"] = plain(slot.old)
    if slot.new is not MISSING:
        found["new"] = plain(slot.new)
    return found
