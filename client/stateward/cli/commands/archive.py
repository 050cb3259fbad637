"""`stateward archive`: the group of commands that look after the archive as a whole, and its status."""

from __future__ import annotations

import typer

from stateward.cli.commands.archive_list import index, list_
from stateward.cli.commands.archive_repair import gc, repair
from stateward.cli.commands.archive_restore import restore
from stateward.cli.commands.archive_verify import verify
from stateward.cli.options.catalog import CONTEXT
from stateward.cli.options.connect import JsonOption, NamespaceOption, TargetOption, connect
from stateward.cli.show.archive_facts import archive_facts, cost_facts, status_as_json
from stateward.cli.show.output import print_facts, print_json, say
from stateward.cli.show.times import length

archive = typer.Typer(
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


@archive.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Manage the archive in object storage, where threads survive the loss of a machine.

    The daemon must have an archive: `stateward-sidecar --archive URL`. list, verify, gc, index and restore list the
    bucket; the number of requests grows with the number of threads.

    \b
    Examples:
      stateward archive status
      stateward archive verify --read-data 5%
      stateward archive gc --dry-run
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if context.invoked_subcommand is None:
        print(context.get_help())


@archive.command(short_help="Show the archive's URL, and how far it is behind this disk.")
def status(
    context: typer.Context,
    as_json: JsonOption = False,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
) -> None:
    """Show the archive's URL, whether it answers, and how far it is behind this disk.

    \b
    Examples:
      stateward archive status
      stateward archive status --json | jq .stats.lag_entries
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, namespace) as client:
        found = client.archive.status()
    if as_json:
        print_json(status_as_json(found))
        return
    print_facts(
        [
            ("archive", found.url),
            ("identity", found.archive_id),
            ("this sidecar", found.owner_id),
            ("archived every", length(found.interval)),
            ("free after", f"{length(found.lease)} without a change"),
            *archive_facts(found.stats),
        ]
    )
    say()
    say("since the daemon's start", style="bold")
    print_facts(cost_facts(found.stats))


archive.command("list", short_help="List the threads of all sidecars in the archive.")(list_)
archive.command("verify", short_help="Check that all objects exist, and read a share of them back.")(verify)
archive.command("restore", short_help="Copy threads from the archive to this disk.")(restore)
archive.command("repair", short_help="Rewrite a thread's HEAD and objects in the archive from this disk.")(repair)
archive.command("gc", short_help="Remove objects that no thread needs.")(gc)
archive.command("index", short_help="Make all threads of the archive known to `threads` and `stats`.")(index)
