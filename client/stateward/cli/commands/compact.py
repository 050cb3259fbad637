"""`stateward compact`: writes the data file anew, without what was freed, and removes the old one."""

from __future__ import annotations

from dataclasses import asdict

import typer

from stateward.cli.options.connect import JsonOption, TargetOption, connect
from stateward.cli.show.output import CommandError, print_json, say, size
from stateward.cli.show.ticker import Ticker


def compact(context: typer.Context, as_json: JsonOption = False, target: TargetOption = None) -> None:
    """Rewrite the daemon's data file without freed space, then overwrite and remove the old one. Agents go on.

    The file of a store never shrinks by itself, and keeps the sealed bytes of deleted threads until they are written
    over. Their keys are destroyed at once, so nobody can read them; `stateward verify --shredded` shows that. The
    command needs as much free space as the data take. Saves wait at the end, for less than a second as a rule. Exit
    code 1 if the old file is still there because another program has it open, such as a copy that runs.

    \b
    Examples:
      stateward compact
      stateward compact --json | jq .after_bytes
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    with connect(context, target, None) as client, Ticker("compacting"):
        done = client.compact()
    if as_json:
        print_json({**asdict(done), "pause": done.pause.total_seconds()})
    else:
        pause_ms = done.pause.total_seconds() * 1e3
        say(f"{size(done.before_bytes)} became {size(done.after_bytes)}; writes waited for {pause_ms:.0f} ms")
    if not done.old_file_removed:
        raise CommandError(
            "the old file is still in the data directory, because another program reads it; the daemon's next start or "
            "another `stateward compact` removes it"
        )
