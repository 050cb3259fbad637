"""`stateward waiting`: lists the threads that wait, and their questions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import typer

from stateward.cli.commands.threads import collected, count_elsewhere, end_with
from stateward.cli.options.connect import EVERY_NAMESPACE, JsonOption, NamespaceOption, TargetOption
from stateward.cli.options.embedded import ArchiveOption, KeyFileOption, reach
from stateward.cli.show.describe import compact, question_as_json, question_text
from stateward.cli.show.output import counted, fail, filled, note, print_json, print_table, shorten
from stateward.cli.show.ticker import Ticker
from stateward.cli.show.times import time_ago
from stateward.handoff import handed_to
from stateward.models import Status

if TYPE_CHECKING:
    from stateward import Client, ThreadInfo
    from stateward.errors import ThreadsUnreadable

COLUMNS = ("NAMESPACE", "THREAD", "SINCE", "REASON", "ASKS", "WAIT ID", "ANSWER", "SIGNALS")
PROMPT_WIDTH = 200


def waiting(
    context: typer.Context,
    archive: ArchiveOption = None,
    key_file: KeyFileOption = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """List the threads that wait, with their questions and the time of their last change.

    With --archive the command lists the threads of all sidecars in that archive, even if none of them runs. It sends
    two to four requests to the bucket for each thread, and without --namespace it lists all namespaces. A thread with
    signals has an answer that its agent has not acknowledged yet. The wait id names the question: with --wait-id,
    `stateward approve` answers this question and no later one. If several things are asked at once, each has a name:
    `stateward answer --part` answers one of them. A thread that is handed to an agent waits for that agent, and takes
    no answer.

    \b
    Examples:
      stateward waiting
      stateward waiting --archive s3://bucket/agents --key-file KEY
      stateward waiting --json | jq -r '.[] | select(.signals == 0).thread'
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    problems: list[str] = []
    others = ""
    fallback = "default" if archive is None else EVERY_NAMESPACE
    with (
        Ticker("reading the archive" if archive else "asking") as ticker,
        reach(context, target, namespace, archive, key_file, fallback=fallback) as client,
    ):
        unread: ThreadsUnreadable | None = None
        if archive is None:
            found, unread = collected(client.waiting())
            others = "" if as_json else count_elsewhere(client)
        else:
            found = _listed(client, ticker, problems)
    found.sort(key=lambda each: each.update_time)
    if as_json:
        print_json([_as_json(each) for each in found])
    elif found:
        columns, rows = filled(COLUMNS, list(map(_row, found)), optional=("REASON", "WAIT ID", "ANSWER", "SIGNALS"))
        if archive is None or namespace:
            columns, rows = columns[1:], [row[1:] for row in rows]
        print_table(columns, rows, right=("SIGNALS",), below=("ASKS", "WAIT ID", "ANSWER"))
    else:
        note("no thread waits")
    if others:
        note(others)
    for each in problems:
        fail(each)
    if problems:
        fail(f"{counted(len(problems), 'thread')} of the archive could not be read")
        raise typer.Exit(1)
    end_with(unread)


def _listed(client: Client, ticker: Ticker, problems: list[str]) -> list[ThreadInfo]:
    found = []
    with client.archive.list() as listing:
        for count, each in enumerate(listing, 1):
            ticker.say(counted(count, "thread"))
            if each.problem:
                problems.append(f"{each.thread.name}: {each.problem}" if each.thread is not None else each.problem)
            elif each.thread is not None and each.thread.status == Status.WAITING:
                found.append(each.thread)
    return found


def _row(info: ThreadInfo) -> tuple[str, ...]:
    question, taker = info.question, handed_to(info.wait_id)
    asks = "" if question is None else question_text(question)
    if taker is not None:
        asks = f"handoff to {taker}"
    return (
        info.namespace,
        info.name,
        time_ago(info.update_time),
        info.status_detail,
        shorten(asks, PROMPT_WIDTH if question is None else PROMPT_WIDTH * max(1, len(question.parts))),
        "" if question is None else info.wait_id,
        "" if question is None or question.schema is None else compact(question.schema, PROMPT_WIDTH),
        str(info.pending_signals or ""),
    )


def _as_json(info: ThreadInfo) -> dict[str, Any]:
    question = info.question
    return {
        "namespace": info.namespace,
        "thread": info.name,
        "wait_id": info.wait_id,
        "reason": info.status_detail,
        "prompt": None if question is None else question.prompt,
        "answer_schema": None if question is None else question.schema,
        "parts": (question_as_json(question) or {"parts": []})["parts"],
        "since": info.update_time.isoformat(),
        "signals": info.pending_signals,
        "labels": dict(info.labels),
        "owner_id": info.owner_id,
    }
