"""`stateward watch`: what happens, as it happens."""

from __future__ import annotations

import select
import sys
import threading
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stateward.cli.commands.threads import read_labels
from stateward.cli.options.connect import NamespaceOption, TargetOption, complete_thread, connect
from stateward.cli.show.describe import checkpoint_as_json, plain, status_word
from stateward.cli.show.output import clean, fail, is_terminal, note, print_line_of_json, say, shorten, size
from stateward.cli.show.times import clock_time
from stateward.errors import ServerUnavailable
from stateward.models import Status
from stateward.v1.effect_pb2 import EffectState
from stateward.values import decode_leniently

if TYPE_CHECKING:
    from stateward import Client, Event

# A watch continues after a restart of the daemon, however long the restart takes.
RECONNECT_FOR_S = 7 * 86400.0
PROMPT_WIDTH = 200
COLOURS = {"deleted": "red", "pruned": "yellow", "tag_set": "cyan", "tag_deleted": "cyan"}


def watch(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(
            metavar="THREAD", help="Only this thread; default: all of the namespace.", autocompletion=complete_thread
        ),
    ] = None,
    from_start: Annotated[
        bool, typer.Option("--from-start", help="Begin with what happened before; needs a THREAD.")
    ] = False,
    after_cursor: Annotated[
        str, typer.Option("--after-cursor", metavar="CURSOR", help="Continue after this event (--json prints cursors).")
    ] = "",
    label: Annotated[
        list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only threads with it; repeatable.")
    ] = None,
    until: Annotated[int | None, typer.Option("--until", min=1, metavar="N", help="End after N events.")] = None,
    for_s: Annotated[
        float | None,
        typer.Option("--for", min=0.0, metavar="SECONDS", help="End after this time; with --until, exit code 1 then."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one line of JSON for each event.")] = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Print changes as they happen, one line each, until Ctrl-C. Continues after a restart of the daemon.

    A thread that cannot be opened cannot change, so it has no events here; `stateward verify` names it.

    \b
    Examples:
      stateward watch
      stateward watch booking-42 --from-start --until 10
      stateward watch --label team=red --for 60 --json | jq .thread
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if from_start and (thread is None or after_cursor):
        raise typer.BadParameter("it needs a THREAD, and no --after-cursor", param_hint="--from-start")
    if thread is not None and label:
        raise typer.BadParameter("it chooses among threads; leave THREAD out", param_hint="--label")
    labels = read_labels(label or ())
    seen = 0
    with connect(context, target, namespace, retry_timeout_s=RECONNECT_FOR_S) as client:
        client.server_info()  # from here on a daemon that is away is waited for
        with _open(client, thread, from_start, after_cursor, labels) as events:
            if is_terminal() and not as_json:
                note(f"watching {thread or f'all threads of namespace {client.namespace}'}; Ctrl-C ends it")
            _end_with_the_reader(events)
            ending = None if for_s is None else threading.Timer(for_s, events.close)
            if ending is not None:
                ending.daemon = True
                ending.start()
            try:
                for event in events:
                    print_line_of_json(event_as_json(event)) if as_json else _print(event, is_all=thread is None)
                    seen += 1
                    if seen == until:
                        return
            except ServerUnavailable:  # as `close` ends a stream that is waiting for the daemon
                if ending is None or ending.is_alive():
                    raise
            finally:
                if ending is not None:
                    ending.cancel()
    if until is not None:
        why = f"after {for_s:g} s" if for_s is not None else "the thread was deleted"
        fail(f"only {seen} of {until} events came; {why}")
        raise typer.Exit(1)


def _open(client: Client, thread: str | None, from_start: bool, after_cursor: str, labels: dict[str, str]) -> Any:
    if thread is None:
        return client.watch(after_cursor=after_cursor, labels=labels)
    return client.thread(thread).watch(after_sequence=0 if from_start else None, after_cursor=after_cursor)


def _end_with_the_reader(events: Any) -> None:
    """Closes the stream when nobody reads stdout any more: `watch | head -1` ends with `head`, and not with the next
    event."""
    try:
        reader = select.poll()
        reader.register(sys.stdout.fileno(), 0)  # an error or a hang-up is reported without being asked for
    except (OSError, ValueError):
        return

    def end() -> None:
        reader.poll()
        events.close()

    threading.Thread(target=end, name="stateward-reader", daemon=True).start()


def _print(event: Event, *, is_all: bool) -> None:
    which = f"{clean(event.thread)}  " if is_all else ""
    say(f"{clock_time(event.time)}  {which}{_describe(event)}", style=COLOURS.get(event.kind, ""))


def _describe(event: Event) -> str:
    what: Any = event.what
    match event.kind:
        case "checkpoint":
            detail = f" ({clean(what.status_detail)})" if what.status_detail else ""
            branch = f" on {clean(what.branch)}" if what.branch != "main" else ""
            step = "" if what.step is None else f"  step {what.step}"
            return f"version {what.version}{branch}{step}  {status_word(what.status)}{detail}  {size(what.edit_bytes)}"
        case "tag_set":
            return f"tag {clean(what.name)} is version {what.version}"
        case "tag_deleted":
            return f"tag {clean(what.name)} was removed"
        case "options_changed":
            return "settings were changed"
        case "pruned":
            return f"{len(what.versions):,} versions were pruned"
        case "heads_moved":
            return "; ".join(
                f"branch {clean(each.branch)} went to version {each.version}"
                if each.version
                else f"branch {clean(each.branch)} was deleted"
                for each in what.heads
            )
        case "effects_deleted":
            return f"{what.count:,} effects of anchor {clean(what.anchor)!r} were deleted"
        case "deleted":
            return f"thread was deleted ({clean(what)})"
        case "signal":
            return f"signal {clean(what.name)} from {clean(what.sender) or 'somebody'}"
        case "effect":
            state = EffectState.Name(what.state).removeprefix("EFFECT_STATE_").lower().replace("_", " ")
            return f"effect {clean(what.effect.key)} is {state}{_told(event)}"
        case "lease":
            return f"lease: {clean(what.holder.name)} has it" if what.HasField("holder") else "lease: given back"
    return "something this command does not know"


def _told(event: Event) -> str:
    """Says which status came with an effect."""
    if event.told is None:
        return ""
    status = status_word(Status(event.told.status or Status.RUNNING))
    about = event.told.question.prompt or event.told.status_detail
    return f"; version {event.told.version} is {status}" + (f": {shorten(about, PROMPT_WIDTH)}" if about else "")


def event_as_json(event: Event) -> dict[str, Any]:
    """An event for scripts."""
    found: dict[str, Any] = {
        "kind": event.kind,
        "thread": event.thread,
        "uid": event.uid,
        "sequence": event.sequence,
        "time": event.time.isoformat(),
        "cursor": event.cursor,
    }
    what: Any = event.what
    match event.kind:
        case "checkpoint":
            found["checkpoint"] = checkpoint_as_json(what)
        case "tag_set" | "tag_deleted":
            found |= {"tag": what.name, "version": what.version}
        case "options_changed":
            found |= {"labels": dict(what.labels), "agent": what.agent, "parent_thread": what.parent_thread}
        case "pruned":
            found["versions"] = list(what.versions)
        case "signal":
            found["signal"] = {
                "id": what.id,
                "name": what.name,
                "sender": what.sender,
                "wait_id": what.wait_id,
                "payload": None if what.payload_value is None else plain(decode_leniently(what.payload_value)),
            }
        case "effect":
            found["effect"] = {
                "anchor": what.effect.anchor,
                "key": what.effect.key,
                "state": EffectState.Name(what.state).removeprefix("EFFECT_STATE_").lower(),
            }
            if event.told is not None:
                found["told"] = {
                    "version": event.told.version,
                    "status": status_word(Status(event.told.status or Status.RUNNING)),
                    "status_detail": event.told.status_detail,
                    "wait_id": event.told.wait_id,
                    "prompt": event.told.question.prompt if event.told.HasField("question") else None,
                }
        case "lease":
            found["lease"] = {"holder": what.holder.name, "token": what.token}
        case "heads_moved":
            found["heads"] = [
                {"branch": each.branch, "version": each.version, "previous_version": each.previous_version}
                for each in what.heads
            ]
        case "effects_deleted":
            found["anchor"], found["count"] = what.anchor, what.count
        case "deleted":
            found["cause"] = what
    return found
