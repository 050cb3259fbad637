"""`stateward show`: one version of a thread, with its state."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Annotated, Any

import typer
from google.protobuf.message import Message

from stateward.cli.connect import JsonOption, NamespaceOption, TargetOption, connect
from stateward.cli.output import CommandError, clean, is_terminal, print_facts, print_json, say, shorten, size
from stateward.cli.threads import status_word
from stateward.values import Blob, MsgPack, RawValue

if TYPE_CHECKING:
    from stateward import Checkpoint, Log, State, Thread

DEFAULT_LAST = 10
SLOT_WIDTH = 2000
ENTRY_WIDTH = 160
VERSION_DIGITS_MAX = 19


def show(
    context: typer.Context,
    thread: Annotated[str, typer.Argument(metavar="THREAD", help="Name of the thread.")],
    at: Annotated[
        str | None, typer.Option("--at", metavar="VERSION", help="Number of a version, or a tag; default: the newest.")
    ] = None,
    log: Annotated[str | None, typer.Option("--log", metavar="NAME", help="Only this log.")] = None,
    last: Annotated[
        int | None,
        typer.Option(
            "--last", min=0, metavar="N", help=f"Last N entries of a log; default: {DEFAULT_LAST}, JSON: all."
        ),
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show a thread's newest version, or another one: its facts, its slots, and the ends of its logs.

    \b
    Examples:
      stateward show booking-42
      stateward show booking-42 --at 12 --log messages --last 3
      stateward show booking-42 --json | jq .slots
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        state = _hydrate(client.thread(thread), at, log, last)
    assert state.checkpoint is not None
    if as_json:
        print_json(state_as_json(state, log, last))
        return
    _print_checkpoint(state.checkpoint)
    if log is None:
        _print_slots(state)
    for name in [log] if log is not None else state.logs:
        _print_log(state, name, DEFAULT_LAST if last is None else last, is_projected=log is not None)


def _hydrate(thread: Thread, at: str | None, log: str | None, last: int | None) -> State:
    """The state, or only what is asked for; CommandError if there is no such log."""
    where: dict[str, Any] = {}
    if at is not None:
        where = _read_at(at)
    if log is None:
        return thread.hydrate(**where, must_exist=True)
    state = thread.hydrate(**where, logs={log: last}, must_exist=True)
    if log not in state.logs:
        names = ", ".join(thread.hydrate(state.version).logs) or "no log"
        raise CommandError(f"version {state.version} of thread {thread.name!r} has no log {log!r}; it has: {names}")
    return state


def _read_at(at: str) -> dict[str, Any]:
    if not (at.removeprefix("-")).isdecimal():
        return {"tag": at}
    if len(at) > VERSION_DIGITS_MAX or not 1 <= int(at) < 1 << 63:
        raise CommandError(f"--at {at} is no version; they count from 1, and without --at the newest is shown")
    return {"version": int(at)}


def state_as_json(state: State, log: str | None, last: int | None) -> dict[str, Any]:
    """A state for scripts. What JSON cannot say is {"media_type", "base64"}."""
    assert state.checkpoint is not None
    return {
        "checkpoint": checkpoint_as_json(state.checkpoint),
        "slots": {name: plain(_slot(state, name)) for name in state.slots},
        "logs": {
            name: [plain(entry) for entry in _end(state.logs[name], last)]
            for name in state.logs
            if log is None or name == log
        },
    }


def checkpoint_as_json(checkpoint: Checkpoint) -> dict[str, Any]:
    """What is known about a version, for scripts."""
    return {
        "namespace": checkpoint.namespace,
        "thread": checkpoint.thread,
        "uid": checkpoint.uid,
        "version": checkpoint.version,
        "parent_version": checkpoint.parent_version,
        "branch": checkpoint.branch,
        "checkpoint_id": checkpoint.checkpoint_id,
        "digest": checkpoint.digest.hex(),
        "status": status_word(checkpoint.status),
        "status_detail": checkpoint.status_detail,
        "step": checkpoint.step,
        "schema_version": checkpoint.schema_version,
        "labels": dict(checkpoint.labels),
        "metadata": plain(_metadata(checkpoint)),
        "metrics": dict(checkpoint.metrics),
        "create_time": checkpoint.create_time.isoformat(),
        "edit_bytes": checkpoint.edit_bytes,
        "stored_bytes": checkpoint.stored_bytes,
        "sequence": checkpoint.sequence,
        "durability": status_word(checkpoint.durability),
    }


def plain(value: Any) -> Any:
    """A decoded value as JSON can say it."""
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415  seldom needed, and slow to import

    match value:
        case bytes():
            return {"media_type": "application/octet-stream", "base64": base64.b64encode(value).decode()}
        case RawValue():
            return {"media_type": value.media_type, "base64": base64.b64encode(value.data).decode()}
        case Blob():
            return {"media_type": value.media_type, "sha256": value.sha256.hex(), "size_bytes": value.size_bytes}
        case MsgPack():
            return plain(value.value)
        case Message():
            return MessageToDict(value)
        case dict():
            return {str(key): plain(each) for key, each in value.items()}
        case list() | tuple():
            return [plain(each) for each in value]
        case None | bool() | int() | float() | str():
            return value
        case _:  # of a codec registered elsewhere, or a timestamp in msgpack
            return str(value)


def _slot(state: State, name: str) -> Any:
    try:
        return state.slots[name]
    except ValueError:  # not what its media type says; worth a look all the same
        return state.slots.raw(name)


def _metadata(checkpoint: Checkpoint) -> Any:
    try:
        return checkpoint.metadata
    except ValueError:
        return None if (stored := checkpoint.metadata_value) is None else RawValue(stored.media_type, stored.data)


def _end(log: Log, last: int | None) -> list[Any]:
    """The last so many entries; None = all."""
    first = 0 if last is None else max(len(log) - last, 0)
    return [_entry(log, position) for position in range(first, len(log))]


def _entry(log: Log, position: int) -> Any:
    try:
        return log[position]
    except ValueError:
        return log.raw(position)


def _print_checkpoint(checkpoint: Checkpoint) -> None:
    metadata = _metadata(checkpoint)
    detail = f" ({checkpoint.status_detail})" if checkpoint.status_detail else ""
    print_facts(
        [
            ("thread", checkpoint.thread),
            ("branch", checkpoint.branch if checkpoint.branch != "main" else ""),
            ("version", f"{checkpoint.version} (parent {checkpoint.parent_version})"),
            ("checkpoint id", checkpoint.checkpoint_id),
            ("status", status_word(checkpoint.status) + detail),
            ("step", "" if checkpoint.step is None else str(checkpoint.step)),
            ("saved", checkpoint.create_time.astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]),
            ("digest", checkpoint.digest.hex()),
            ("size", f"{size(checkpoint.edit_bytes)} of edits, {size(checkpoint.stored_bytes)} at rest"),
            ("labels", _pairs(checkpoint.labels)),
            ("metrics", _pairs(checkpoint.metrics)),
            ("metadata", "" if metadata is None else _compact(metadata, SLOT_WIDTH)),
        ]
    )


def _print_slots(state: State) -> None:
    if not len(state.slots):
        return
    say()
    say("slots", style="bold")
    print_facts((f"  {name}", _compact(_slot(state, name), SLOT_WIDTH)) for name in sorted(state.slots))


def _print_log(state: State, name: str, last: int, *, is_projected: bool) -> None:
    log = state.logs[name]
    shown = _end(log, last)
    first_shown = log.next_index - len(shown)
    say()
    # Of a projected log nobody knows here where it begins.
    hidden = 0 if is_projected else len(log) - len(shown)
    say(f"log {clean(name)}" + ("" if is_projected else f", {len(log)} entries"), style="bold")
    if hidden:
        say(f"  … {hidden} more before; --last {len(log)} shows all", style="dim")
    width = len(str(log.next_index))
    for index, entry in enumerate(shown, first_shown):
        say(f"  {index:>{width}}  {summarize(entry, ENTRY_WIDTH)}")


def summarize(entry: Any, width: int) -> str:
    """A log entry in one line: for messages the role, the text and the tools that are called."""
    if not isinstance(entry, dict) or not isinstance(entry.get("role"), str):
        return _compact(entry, width)
    parts = [shorten(entry["role"], 20)]
    content = entry.get("content")
    if isinstance(content, list):  # parts, as in chat formats
        content = " ".join(
            part["text"] if isinstance(part, dict) and isinstance(part.get("text"), str) else _compact(part, width)
            for part in content
        )
    if content is not None:
        parts.append(
            shorten(" ".join(content.split()), width) if isinstance(content, str) else _compact(content, width)
        )
    calls = entry.get("tool_calls")
    for call in calls if isinstance(calls, list) else ():
        function = call.get("function", call) if isinstance(call, dict) else call
        if isinstance(function, dict) and isinstance(function.get("name"), str):
            arguments = function.get("arguments", "")
            parts.append(
                f"{function['name']}({arguments if isinstance(arguments, str) else _compact(arguments, width)})"
            )
        else:
            parts.append(_compact(call, width))
    if len(parts) == 1:
        parts.append(_compact({key: value for key, value in entry.items() if key != "role"}, width))
    return shorten("  ".join(filter(None, parts)), width)


def _compact(value: Any, width: int) -> str:
    return shorten(json.dumps(plain(value), ensure_ascii=False), width if not is_terminal() else min(width, 500))


def _pairs(values: Any) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(values.items()))
