"""`stateward archive verify`, which is `stateward verify --archive` too: what is wrong with the archive."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from stateward.cli.options.connect import (
    EVERY_NAMESPACE,
    JsonOption,
    NamespaceOption,
    OneThreadArgument,
    TargetOption,
    archived_names,
    connect,
)
from stateward.cli.show.findings import print_findings
from stateward.cli.show.output import counted, fail, print_json, say, size
from stateward.cli.show.ticker import Ticker

if TYPE_CHECKING:
    from stateward.admin import Finding

ReadDataOption = Annotated[
    str | None,
    typer.Option("--read-data", metavar="PERCENT", help="Also read back and decrypt this share of the bytes: 5%, 100."),
]


def verify(
    context: typer.Context,
    thread: OneThreadArgument = None,
    read_data: ReadDataOption = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Check that the archive has all objects that it needs. Exit code 1 if an object is missing or damaged.

    Without THREAD and --namespace the command checks all threads of all sidecars. It reads objects only with
    --read-data.

    \b
    Examples:
      stateward archive verify
      stateward archive verify --read-data 5%
      stateward archive verify booking-42 --read-data 100 --json | jq .findings
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    percent = read_percent(read_data)
    findings: list[Finding] = []
    threads = objects = read_bytes = 0
    with (
        connect(context, target, namespace, fallback=EVERY_NAMESPACE if thread is None else "default") as client,
        archived_names(),
        Ticker("verifying the archive") as ticker,
        client.archive.verify(thread, data_percent=percent) as progress,
    ):
        for each in progress:
            threads, objects, read_bytes = each.threads, each.objects, each.read_bytes
            ticker.say(f"{threads:,} threads, {objects:,} objects, {size(read_bytes)}, {len(findings)} findings")
            if each.finding is not None:
                findings.append(each.finding)
    checked = f"the heads of {counted(threads, 'thread')} and {counted(objects, 'object')}"
    if as_json:
        counts = {"threads": threads, "objects": objects, "read_bytes": read_bytes}
        print_json({**counts, "findings": [asdict(each) for each in findings]})
    elif findings:
        print_findings(findings)
    else:
        opened = (
            f"{size(read_bytes)} of them were read back" if percent else "--read-data 5% also reads some of them back"
        )
        say(f"all is well: {checked} are there; {opened}", style="green")
    if findings:
        fail(
            f"{counted(len(findings), 'finding')} in {checked}; if this disk has the thread, "
            "`stateward archive repair THREAD` rewrites it; the rest of a damaged thread stays readable"
        )
        raise typer.Exit(1)


def read_percent(text: str | None) -> float:
    """A share such as 5, 5% or 0.1%; None = 0."""
    if text is None:
        return 0.0
    try:
        percent = float(text.strip().removesuffix("%"))
    except ValueError:
        percent = -1.0
    if not 0 <= percent <= 100:
        raise typer.BadParameter(f"{text!r} is not a percentage such as 5% or 100", param_hint="--read-data")
    return percent
