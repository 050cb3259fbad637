"""`stateward records`: the group of commands that look at records and change them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from stateward.cli.options.catalog import CONTEXT
from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, ThreadArgument, YesOption, connect
from stateward.cli.options.typed import read_json
from stateward.cli.show.describe import plain, summarize
from stateward.cli.show.one_by_one import Failures, end_if_damaged
from stateward.cli.show.output import (
    CommandError,
    confirm,
    counted,
    filled,
    note,
    print_json,
    print_table,
    say,
    say_value,
    size,
)
from stateward.cli.show.times import time_ago
from stateward.durations import SECONDS_MAX
from stateward.errors import RecordConflict, ThreadNotFound, UidMismatch
from stateward.salvage import list_prefixes, list_records
from stateward.values import RawValue

if TYPE_CHECKING:
    from stateward import Client, Records
    from stateward.records import Record

VALUE_WIDTH = 80
NAMED_MAX = 10
MISSING, CHANGED = "there is no such record", "it was written or deleted since the question"
COLUMNS = ("KEY", "REVISION", "WRITTEN", "EXPIRES", "SIZE", "VALUE")

class RecordsGroup(TyperGroup):
    """The group of commands. `stateward records THREAD` lists the thread's records, unless it has a command's name."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """The command that the arguments begin with, and the arguments after it."""
        is_thread = not args[0].startswith("-") and self.get_command(ctx, args[0]) is None
        return super().resolve_command(ctx, ["list", *args] if is_thread else args)


records = typer.Typer(
    cls=RecordsGroup,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)
KeyArgument = Annotated[str, typer.Argument(metavar="KEY", help="Key of the record.")]


@records.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Look at the records of a thread: small values with keys, which are replaced and not versioned.

    `stateward records THREAD` is short for `stateward records list THREAD`.

    \b
    Examples:
      stateward records list store/users --prefix ana/
      stateward records get store/users ana/food
      stateward records put store/users ana/food '{"likes": "pizza"}' --ttl 3600
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if context.invoked_subcommand is None:
        print(context.get_help())


@records.command("list", short_help="List records by key, or the prefixes of keys.")
def list_(
    context: typer.Context,
    thread: ThreadArgument,
    prefix: Annotated[str, typer.Option("--prefix", metavar="P", help="Only keys that begin with this text.")] = "",
    newest: Annotated[bool, typer.Option("--newest", help="The last written ones first.")] = False,
    last: Annotated[int, typer.Option("--limit", min=1, metavar="N", help="At most so many.")] = 1000,
    prefixes: Annotated[
        str | None, typer.Option("--by", metavar="DELIMITER", help="Count the records by prefix, up to this delimiter.")
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """List the records of a thread by key, or count them by prefix.

    A damaged record does not hide the others: the command names it, and exits 1.

    \b
    Examples:
      stateward records list store/users
      stateward records list store/users --newest --limit 10 --json
      stateward records list store/users --by /
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        scope = client.records(thread)
        if prefixes is not None:
            counts = list_prefixes(scope, prefixes, prefix)
            if as_json:
                print_json([{"prefix": each.prefix, "records": each.records} for each in counts.items])
            else:
                print_table(("PREFIX", "RECORDS"), [(each.prefix, str(each.records)) for each in counts.items])
            end_if_damaged(counts, "record")
            return
        found = list_records(scope, prefix, newest_first=newest, most=last)
    shown = found.items
    if as_json:
        print_json([_as_json(each) for each in shown])
    elif shown:
        columns, rows = filled(COLUMNS, [_row(each) for each in shown], ("EXPIRES",))
        print_table(columns, rows, right=("REVISION", "SIZE"), below=("VALUE",))
    elif not found.damaged:
        note(f"thread {thread} has no such records" if prefix else f"thread {thread} has no records")
    end_if_damaged(found, "record")


@records.command(short_help="Show a record.")
def get(
    context: typer.Context,
    thread: ThreadArgument,
    key: KeyArgument,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show the value of a record, or with --json all that is known of it.

    \b
    Examples:
      stateward records get store/users ana/food
      stateward records get store/users ana/food --json | jq .revision
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        found = client.records(thread).get(key)
        if found is None:
            client.thread(thread).info()  # a thread that does not exist is an error of its own
    if found is None:
        raise CommandError(f"thread {thread} has no record {key!r}")
    if as_json:
        print_json(_as_json(found))
    else:
        value = _value(found)
        say_value(value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False, indent=2))


@records.command(short_help="Write a record.")
def put(
    context: typer.Context,
    thread: ThreadArgument,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(metavar="JSON", help="The value, as JSON.")],
    ttl: Annotated[
        float | None,
        typer.Option("--ttl", min=1, max=SECONDS_MAX, metavar="SECONDS", help="It expires after this time."),
    ] = None,
    expected: Annotated[
        int | None,
        typer.Option(
            "--expected", min=0, max=2**63 - 1, metavar="REVISION", help="Its present revision; 0 = it must not exist."
        ),
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Write a record, in place of the one with this key, and print its revision.

    \b
    Examples:
      stateward records put store/users ana/food '{"likes": "pizza"}'
      stateward records put cache token '"abc"' --ttl 600 --expected 0
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    try:
        content = read_json(value, "JSON")
    except ValueError as error:
        raise CommandError(f"JSON: this is not JSON: {error}") from None
    with connect(context, target, namespace) as client:
        revision = client.records(thread).put(key, content, ttl=ttl, expected=expected)
    if as_json:
        print_json({"key": key, "revision": revision})
    else:
        say(str(revision))


@records.command(short_help="Delete records.")
def rm(
    context: typer.Context,
    thread: ThreadArgument,
    keys: Annotated[list[str] | None, typer.Argument(metavar="KEY", help="Keys of the records.")] = None,
    prefix: Annotated[
        str | None, typer.Option("--prefix", metavar="P", help='All whose key begins with this text; "" = all.')
    ] = None,
    yes: YesOption = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Delete records: those that are named, or all with a prefix.

    The command asks first; without a terminal it needs --yes. Records that are written while the question is open stay.
    If a key has no record, or if fewer records are deleted than the question names, the command says which or how many,
    and exits 1; the others are deleted.

    \b
    Examples:
      stateward records rm store/users ana/food
      stateward records rm store/users --prefix ana/ --yes
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if (prefix is None) == (not keys):
        raise typer.BadParameter("give keys, or --prefix", param_hint="KEY")
    with connect(context, target, namespace) as client:
        scope = client.records(thread)
        less, kept = 0, dict[str, str]()
        named = list(dict.fromkeys(keys or ()))
        if prefix is not None and yes:
            deleted = scope.delete_prefix(prefix)
        elif prefix is not None:
            deleted, less = _delete_shown(client, scope, prefix)
        elif yes:
            gone = [key for key in named if scope.delete(key)]
            deleted, kept = len(gone), {key: MISSING for key in named if key not in gone}
        else:
            kept = _delete_named(client, scope, named)
            deleted = len(named) - len(kept)
        if not deleted:
            client.thread(thread).info()  # a thread that does not exist is an error, as for every other command
    if as_json:
        not_deleted = [{"key": key, "reason": reason} for key, reason in kept.items()]
        print_json({"deleted": deleted, "not_deleted": not_deleted})
    else:
        say(f"{counted(deleted, 'record')} deleted")
    if less:
        raise CommandError(f"{counted(less, 'record')} less than asked about: written or deleted since the question")
    _name_kept(thread, kept)


def _name_kept(thread: str, kept: dict[str, str]) -> None:
    """Names the records that were not deleted. Raises CommandError if there are any."""
    if len(kept) == 1:
        ((key, reason),) = kept.items()
        raise CommandError(f"record {key!r} of thread {thread!r} was not deleted: {reason}")
    failures = Failures("record")
    for key, reason in kept.items():
        failures.add(key, reason)
    failures.end("not deleted are", f"`stateward records list {thread}` lists what there is")


def _delete_shown(client: Client, scope: Records, prefix: str) -> tuple[int, int]:
    """Asks, and deletes the records that the question counts. Those that were written since then stay: each write gives
    a higher revision. Returns how many were deleted, and how many less than asked about."""
    uid = client.thread(scope.name).info().uid
    newest = next(iter(scope.list(prefix, newest_first=True, page_size=1, values=False)), None)
    until = newest.revision if newest is not None else 0
    number = sum(each.revision <= until for each in scope.list(prefix, page_size=1000, values=False))
    if not number:
        return 0, 0
    what = f"{counted(number, 'record')} of thread {scope.name!r}"
    confirm(f"Delete {what} whose key begins with {prefix!r}?" if prefix else f"Delete all {what}?", yes=False)
    try:
        deleted = scope.delete_prefix(prefix, max_revision=until, expected_uid=uid)
    except (ThreadNotFound, UidMismatch) as error:
        raise CommandError(f"{error.message}; nothing was deleted") from None
    return deleted, max(number - deleted, 0)


def _delete_named(client: Client, scope: Records, keys: Sequence[str]) -> dict[str, str]:
    """Asks, and deletes the records with these keys that were not written since then. Returns why each of the others
    was not deleted."""
    uid = client.thread(scope.name).info().uid
    found = scope.get_many(keys, values=False)
    kept = {key: MISSING for key in keys if key not in found}
    if not found:
        return kept
    named = ", ".join(f"{key!r}" for key in list(found)[:NAMED_MAX]) + (", …" if len(found) > NAMED_MAX else "")
    confirm(f"Delete {counted(len(found), 'record')} of thread {scope.name!r}: {named}?", yes=False)
    deleted = 0
    for key, record in found.items():
        try:
            deleted += scope.delete(key, expected=record.revision, expected_uid=uid)
        except RecordConflict:
            kept[key] = CHANGED
        except (ThreadNotFound, UidMismatch) as error:
            raise CommandError(f"{error.message}; {counted(deleted, 'record')} deleted") from None
    return kept


def _row(each: Record) -> tuple[str, ...]:
    expires = each.expire_time.isoformat(timespec="seconds") if each.expire_time is not None else ""
    value = summarize(_value(each), VALUE_WIDTH)
    return each.key, str(each.revision), time_ago(each.update_time), expires, size(each.value_bytes), value


def _as_json(each: Record) -> dict[str, Any]:
    return {
        "key": each.key,
        "revision": each.revision,
        "create_time": each.create_time.isoformat(),
        "update_time": each.update_time.isoformat(),
        "expire_time": each.expire_time.isoformat() if each.expire_time is not None else None,
        "ttl_s": each.ttl.total_seconds() if each.ttl is not None else None,
        "attributes": dict(each.attributes),
        "value_bytes": each.value_bytes,
        "value": plain(_value(each)),
    }


def _value(each: Record) -> Any:
    """Returns the value. If it cannot be decoded here, returns it raw."""
    stored = each.stored_value
    try:
        return each.value
    except (TypeError, ValueError):
        return RawValue(stored.media_type, stored.data) if stored is not None else None
