"""`stateward effects`: what the tools of a thread did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument, connect
from stateward.cli.show.describe import decoded, plain, summarize
from stateward.cli.show.layouts import InternalOption, is_internal_effect, say_hidden, signs_in
from stateward.cli.show.one_by_one import end_if_damaged
from stateward.cli.show.output import filled, note, print_json, print_table, shorten
from stateward.cli.show.times import time_ago
from stateward.effects import EffectState
from stateward.salvage import list_effects

if TYPE_CHECKING:
    from stateward.effects import RecordedEffect

VALUE_WIDTH, DETAIL_WIDTH = 80, 200
COLUMNS = ("ANCHOR", "KEY", "NAME", "STATE", "BEGUN", "BY", "ATTEMPTS", "RESULT")


def effects(
    context: typer.Context,
    thread: ThreadArgument,
    anchor: Annotated[
        str | None, typer.Option("--anchor", "-a", metavar="A", help="Only effects with this anchor.")
    ] = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", metavar="NAME", help="Only effects with this name; repeatable.")
    ] = None,
    open_only: Annotated[
        bool, typer.Option("--open", help="Only effects that have not ended: in progress or uncertain.")
    ] = False,
    internal: InternalOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """List the tool calls of a thread: recorded results, failures, and calls without a known end.

    A call is in progress until its agent ends it, dies or stops renewing its claim. Then the call becomes uncertain
    when an agent asks for it and cannot find out whether the tool ran. Each claim counts as an attempt, also one whose
    agent then refused to run the tool (EffectUncertain). A damaged call does not hide the others: the command names it,
    and exits 1.

    \b
    Examples:
      stateward effects booking-42
      stateward effects booking-42 --open
      stateward effects booking-42 --anchor cache/search --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        listed = list_effects(client.thread(thread), anchor, names=name or ())
    # The daemon's order, in which those without a sort key lie by their keys; here those of an anchor lie by time.
    found = sorted(listed.items, key=lambda each: (each.sort_key, each.anchor, each.begin_time, each.sequence))
    if open_only:
        found = [each for each in found if each.state not in (EffectState.DONE, EffectState.FAILED)]
    if as_json:
        print_json([_as_json(each) for each in found])
        end_if_damaged(listed, "effect")
        return
    read = len(found)
    found = [each for each in found if internal or name or not is_internal_effect(each)]
    if found:
        shown = [_row(each, signs_in(each) if internal else ()) for each in found]
        columns, rows = filled(COLUMNS, shown, ("ANCHOR", "NAME", "BY", "RESULT"))
        print_table(columns, rows, right=("ATTEMPTS",), below=("RESULT",))
    elif not listed.damaged and not read:
        note(
            f"thread {thread} has no such effects" if open_only or anchor or name else f"thread {thread} has no effects"
        )
    say_hidden(read - len(found), "effect")
    end_if_damaged(listed, "effect")


def _row(each: RecordedEffect, signs: Sequence[str]) -> tuple[str, ...]:
    result = each.detail if each.stored_value is None else summarize(_value(each), VALUE_WIDTH)
    return (
        each.anchor,
        each.key,
        ", ".join([each.name, *signs]),
        _state(each),
        time_ago(each.begin_time),
        each.holder,
        str(each.attempts),
        shorten(result, DETAIL_WIDTH),
    )


def _as_json(each: RecordedEffect) -> dict[str, Any]:
    return {
        "anchor": each.anchor,
        "key": each.key,
        "name": each.name,
        "state": _state(each),
        "holder": each.holder,
        "begin_time": each.begin_time.isoformat(),
        "end_time": each.end_time.isoformat() if each.end_time else None,
        "attempts": each.attempts,
        "sequence": each.sequence,
        "detail": each.detail,
        "value": None if each.stored_value is None else plain(_value(each)),
        **({"signs": signs} if (signs := signs_in(each)) else {}),
    }


def _state(each: RecordedEffect) -> str:
    return each.state.name.lower().replace("_", " ") if isinstance(each.state, EffectState) else str(each.state)


def _value(each: RecordedEffect) -> Any:
    return decoded(lambda: each.value, each.stored_value)
