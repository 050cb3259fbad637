"""`stateward workspace`: the group of commands about the files of threads."""

from __future__ import annotations

import typer

from stateward.cli.commands.workspace_restore import cat, diff, ls, plan, restore, undo
from stateward.cli.commands.workspace_snapshot import snapshot, usage
from stateward.cli.commands.workspace_tar import export_tar, import_tar
from stateward.cli.options.catalog import CONTEXT

workspace = typer.Typer(
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, context_settings=CONTEXT
)


@workspace.callback(invoke_without_command=True)
def about(context: typer.Context) -> None:
    """Keep the files that an agent works on with the versions of its thread, and go back to them.

    \b
    Examples:
      stateward workspace snapshot coding-7 /app
      stateward workspace plan coding-7 /app --at 40
      stateward workspace restore coding-7 /app --at 40
      stateward workspace undo coding-7 /app
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    if context.invoked_subcommand is None:
        print(context.get_help())


workspace.command("snapshot", short_help="Save a version with the files of a directory.")(snapshot)
workspace.command("du", short_help="Show what the files of a thread take.")(usage)
workspace.command("ls", short_help="List the files of a version.")(ls)
workspace.command("cat", short_help="Print a file of a version.")(cat)
workspace.command("diff", short_help="Show which files differ between two versions.")(diff)
workspace.command("plan", short_help="Show what a restore would change.")(plan)
workspace.command("restore", short_help="Bring a directory back to the files of a version.")(restore)
workspace.command("undo", short_help="Undo the last restore of a directory.")(undo)
workspace.command("export", short_help="Write the files of a version as a tar.")(export_tar)
workspace.command("import", short_help="Save a version with the files of a tar.")(import_tar)
