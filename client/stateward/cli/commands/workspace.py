"""`stateward workspace`: the group of commands about the files of threads."""

from __future__ import annotations

import typer

from stateward.cli.commands.workspace_snapshot import snapshot, usage
from stateward.cli.options.catalog import CONTEXT

workspace = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=CONTEXT
)


@workspace.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Keep the files that an agent works on with the versions of its thread.

    \b
    Examples:
      stateward workspace snapshot coding-7 /app
      stateward workspace du coding-7
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if context.invoked_subcommand is None:
        print(context.get_help())


workspace.command("snapshot", short_help="Save a version with the files of a directory.")(snapshot)
workspace.command("du", short_help="Show what the files of a thread take.")(usage)
