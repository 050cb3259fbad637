"""`stateward doctor`: examines client, socket, daemon and machine, and says what to do about each finding."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from stateward.cli.commands.doctor_checks import Item, examine, find_kept
from stateward.cli.options.connect import JsonOption, TargetOption, connect
from stateward.cli.show.output import clean, counted, fail, print_json, say

WORDS = {"ok": ("ok  ", "green"), "warning": ("warn", "yellow"), "failed": ("FAIL", "red"), "skipped": ("skip", "dim")}


def doctor(
    context: typer.Context,
    probe: Annotated[
        bool, typer.Option("--probe/--no-probe", help="Whether to prove that the bucket honours conditional writes.")
    ] = True,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 also if there are only warnings.")] = False,
    config: Annotated[
        Path | None, typer.Option("--config", metavar="FILE", help="Settings file of a daemon that does not run.")
    ] = None,
    data_dir: Annotated[
        Path | None, typer.Option("--data-dir", metavar="DIR", help="Data directory of a daemon that does not run.")
    ] = None,
    key_file: Annotated[
        Path | None, typer.Option("--key-file", metavar="FILE", help="Key file of a daemon that does not run.")
    ] = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
) -> None:
    """Examine the daemon, its machine and the way to it, and say what to do. Exit code 1 if something is wrong.

    The running daemon examines its disk (is a sync honest, and how long does it take?), space, files, key, bucket and
    limits. If no daemon answers, `stateward-sidecar --check` examines them with the settings that `stateward.open()`
    would start it with, or with those that the options name. The examination makes a small file in the data directory
    and an object in the bucket, and removes both.

    \b
    Examples:
      stateward doctor
      stateward doctor --json | jq '.findings[] | select(.verdict != "ok")'
      stateward doctor --data-dir /var/lib/stateward/data
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    stopped = {"--config": config, "--data-dir": data_dir, "--key-file": key_file}
    place, kept = find_kept(data_dir, has_config=config is not None)
    if key_file is not None:
        kept.pop("--key", None)
    stopped = {**kept, **{k: v for k, v in stopped.items() if v}}
    has_target = bool(target or context.obj.target or os.environ.get("STATEWARD_TARGET"))
    opened = None if has_target or data_dir is not None else place
    flags = [part for name, value in stopped.items() for part in (name, str(value))]
    with connect(context, target, None, retry_timeout_s=0.0, finds=False) as client:
        items = examine(client, probe, flags, opened)
    if as_json:
        print_json({"target": client.target, "findings": [item.as_json() for item in items]})
    else:
        _print(items)
    count = {verdict: sum(item.verdict == verdict for item in items) for verdict in WORDS}
    if count["failed"] or (strict and count["warning"]):
        fail(f"{counted(count['failed'], 'failure')} and {counted(count['warning'], 'warning')}")
        raise typer.Exit(1)


def _print(items: Sequence[Item]) -> None:
    width = max(len(item.check) for item in items)
    for item in items:
        word, style = WORDS[item.verdict]
        say(f"{word}  {item.check:<{width}}  {clean(item.summary)}", style="" if item.verdict == "ok" else style)
        if item.advice:
            say(f"{'':<{width + 8}}{clean(item.advice)}")
