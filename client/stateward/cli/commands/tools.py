"""`stateward tools` and `stateward failures`: what agents called, and where they failed."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.commands.threads import StatusName, read_labels
from stateward.cli.files import transcripts
from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, complete_thread, connect
from stateward.cli.show.one_by_one import Failures
from stateward.cli.show.output import filled, note, print_json, print_table, shorten
from stateward.cli.show.times import read_time, time_ago

if TYPE_CHECKING:
    from stateward.models import ThreadFilters

DETAIL_WIDTH = 200

ThreadsArgument = Annotated[
    list[str] | None,
    typer.Argument(metavar="THREAD", help="Only these threads; default: all that fit.", autocompletion=complete_thread),
]
AgentOption = Annotated[str | None, typer.Option("--agent", metavar="NAME", help="Only threads of this agent.")]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Only those changed since: 24h, 7d, or 2026-01-31.")
]
LabelOption = Annotated[
    list[str] | None, typer.Option("--label", "-l", metavar="KEY=VALUE", help="Only with this label; repeatable.")
]


def tools(
    context: typer.Context,
    names: ThreadsArgument = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    label: LabelOption = None,
    status: Annotated[
        list[StatusName] | None,
        typer.Option("--status", "-s", case_sensitive=False, metavar="STATUS", help="Only of this status; repeatable."),
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Count which tools agents called, how often the calls failed, and in which thread last.

    The command finds calls in the logs "messages" and "tool_calls", in the forms of OpenAI, Anthropic, LangChain and
    stateward.agent, and in effects that have a name=. It also finds entries that a sliding window trimmed, unless the
    versions that hold them were pruned. It reads every matching thread.

    \b
    Examples:
      stateward tools --since 24h
      stateward tools --agent booking --status failed
      stateward tools booking-42 --json
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    filters = _filters(names, since, label)
    filters["statuses"] = [each.value for each in status or ()]
    with connect(context, target, namespace) as client:
        found = transcripts.tools_used(client, names or (), agent, filters, missed := Failures())
    if as_json:
        print_json([vars(each) for each in found])
    elif found:
        rows = [
            (each.name, f"{each.calls:,}", f"{each.errors:,}" if each.errors else "", f"{each.threads:,}",
             each.last_error_thread) for each in found
        ]  # fmt: skip
        columns, shown = filled(("TOOL", "CALLS", "FAILED", "THREADS", "FAILED LAST IN"), rows, ("FAILED LAST IN",))
        print_table(columns, shown, right=("CALLS", "FAILED", "THREADS"))
    else:
        note("no tool calls in these threads")
    missed.end("the counts lack")


def failures(
    context: typer.Context,
    names: ThreadsArgument = None,
    agent: AgentOption = None,
    since: SinceOption = None,
    label: LabelOption = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show the last failure of each run: version, step, status detail, and the last tool call before; newest first.

    Without names the command shows the threads whose status is failed now. For named threads it also shows failures
    after which the run continued.

    \b
    Examples:
      stateward failures --since 24h
      stateward failures --agent booking --json
      stateward failures booking-42
      stateward replay booking-42 --to VERSION       the steps before the failure
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        found = transcripts.failures(client, names or (), agent, _filters(names, since, label), missed := Failures())
    if as_json:
        print_json([{**vars(each), "time": each.time.isoformat()} for each in found])
    elif found:
        columns, rows = filled(
            ("THREAD", "VERSION", "BRANCH", "STEP", "FAILED", "LAST TOOL", "NOW", "WHY"),
            [_row(each) for each in found],
            ("BRANCH", "STEP", "LAST TOOL", "NOW", "WHY"),
        )
        print_table(columns, rows, right=("VERSION", "STEP"), below=("WHY",))
    else:
        note("no failures in these threads")
    missed.end("the list lacks")


def _row(each: transcripts.Failure) -> tuple[str, ...]:
    return (
        each.thread,
        str(each.version),
        each.branch if each.branch != "main" else "",
        "" if each.step is None else str(each.step),
        time_ago(each.time),
        each.tool,
        "continued" if each.is_overcome else "",
        shorten(each.status_detail, DETAIL_WIDTH),
    )


def _filters(names: Sequence[str] | None, since: str | None, label: list[str] | None) -> ThreadFilters:
    if names and (since or label):
        raise typer.BadParameter("give either names or filters", param_hint="THREAD")
    return {"updated_after": read_time(since, "--since"), "labels": read_labels(label or ())}
