"""`stateward verify`: reads stored records back and tells what is wrong with them."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.connect import JsonOption, NamespaceOption, TargetOption, complete_thread, connect
from stateward.cli.output import fail, filled, print_json, print_table, say
from stateward.cli.ticker import Ticker

if TYPE_CHECKING:
    from stateward.admin import Finding

EVERY_NAMESPACE = ""


def verify(
    context: typer.Context,
    thread: Annotated[
        str | None,
        typer.Argument(metavar="THREAD", help="Only this thread; default: all.", autocompletion=complete_thread),
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Read stored records back, beside normal operation, and report what is damaged. Exit code 1 if anything is.

    Without THREAD and --namespace everything the daemon stores is checked, its own records too.

    \b
    Examples:
      stateward verify
      stateward verify booking-42
      stateward verify --json | jq .findings
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    findings: list[Finding] = []
    records = threads = 0
    with connect(context, target, namespace, fallback=EVERY_NAMESPACE if thread is None else "default") as client:
        if thread is not None:
            client.thread(thread).get()  # one that does not exist would be found to be without damage
        with Ticker("verifying") as ticker, client.verify(thread) as progress:
            for each in progress:
                records, threads = each.records, each.threads
                ticker.say(f"{records:,} records, {threads:,} threads, {len(findings)} findings")
                if each.finding is not None:
                    findings.append(each.finding)
    if as_json:
        print_json({"records": records, "threads": threads, "findings": [asdict(each) for each in findings]})
    elif findings:
        columns, rows = filled(
            ("REASON", "NAMESPACE", "THREAD", "VERSION", "SEQUENCE", "WHAT IS WRONG"),
            list(map(_row, findings)),
            optional=("NAMESPACE", "THREAD", "VERSION", "SEQUENCE"),
        )
        print_table(columns, rows, right=("VERSION", "SEQUENCE"), below=("WHAT IS WRONG",))
    else:
        say(f"all is well: {records:,} records of {threads:,} threads were read back", style="green")
    if findings:
        fail(
            f"{len(findings)} findings in {records:,} records of {threads:,} threads; other versions of a thread that "
            "is named may be whole: `stateward history THREAD`, `stateward show THREAD --at VERSION`"
        )
        raise typer.Exit(1)


def _row(each: Finding) -> tuple[str, ...]:
    version, sequence = str(each.version or ""), str(each.sequence or "")
    return each.reason, each.namespace, each.thread or each.uid, version, sequence, each.message
