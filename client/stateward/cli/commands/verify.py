"""`stateward verify`: reads stored records back and reports damage."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.commands import archive_verify
from stateward.cli.commands.shredded import show_shredded
from stateward.cli.options.connect import (
    EVERY_NAMESPACE,
    JsonOption,
    NamespaceOption,
    OneThreadArgument,
    TargetOption,
    connect,
)
from stateward.cli.show.findings import print_findings
from stateward.cli.show.output import counted, fail, print_json, say
from stateward.cli.show.ticker import Ticker

if TYPE_CHECKING:
    from stateward.admin import Finding


def verify(
    context: typer.Context,
    thread: OneThreadArgument = None,
    archive: Annotated[
        bool, typer.Option("--archive", help="Look at the archive instead: the same as `stateward archive verify`.")
    ] = False,
    read_data: archive_verify.ReadDataOption = None,
    shredded: Annotated[
        bool, typer.Option("--shredded", help="Name deleted threads instead, and say whether their keys are gone.")
    ] = False,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Read stored records back and report damage, while the daemon works as usual. Exit code 1 if a record is damaged.

    Without THREAD and --namespace the command checks everything that the daemon stores, including its own records.

    \b
    Examples:
      stateward verify
      stateward verify booking-42
      stateward verify --json | jq .findings
      stateward verify --archive --read-data 5%
      stateward verify --shredded

    With --shredded the command reads no states. It names the threads that were deleted on this disk in the last day,
    and all deleted threads of the archive, and looks for their keys in the key store and in the bucket. Exit code 1
    if a key is still there, or if the bucket keeps old versions of objects, where a key may be.
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if shredded:
        if archive or thread is not None or read_data is not None:
            raise typer.BadParameter("it is about all deleted threads, here and in the bucket", param_hint="--shredded")
        with connect(context, target, namespace, fallback=EVERY_NAMESPACE) as client:
            show_shredded(client, as_json=as_json)
        return
    if archive:
        archive_verify.verify(context, thread, read_data, as_json, target, namespace)
        return
    if read_data is not None:
        raise typer.BadParameter("it needs --archive; this disk is always read completely", param_hint="--read-data")
    findings: list[Finding] = []
    records = threads = 0
    with connect(context, target, namespace, fallback=EVERY_NAMESPACE if thread is None else "default") as client:
        if thread is not None:
            client.thread(thread).info()  # one that does not exist would be found to be without damage
        with Ticker("verifying") as ticker, client.verify(thread) as progress:
            for each in progress:
                records, threads = each.records, each.threads
                ticker.say(f"{records:,} records, {threads:,} threads, {len(findings)} findings")
                if each.finding is not None:
                    findings.append(each.finding)
    if as_json:
        print_json({"records": records, "threads": threads, "findings": [asdict(each) for each in findings]})
    elif findings:
        print_findings(findings)
    else:
        say(f"all is well: {counted(records, 'record')} of {counted(threads, 'thread')} can be read", style="green")
    if findings:
        found = f"{counted(len(findings), 'finding')} in {counted(records, 'record')} of {counted(threads, 'thread')}"
        fail(
            f"{found}; other versions of a damaged thread may be intact: `stateward history THREAD`, "
            "`stateward show THREAD --at VERSION`"
        )
        raise typer.Exit(1)
