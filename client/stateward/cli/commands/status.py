"""`stateward status` and `stateward stop`: whether a daemon runs, and its end. Neither starts one."""

from __future__ import annotations

import os
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from stateward.cli.options.connect import READY_TIMEOUT_S, Globals, JsonOption, TargetOption
from stateward.cli.show.output import CommandError, note, print_facts, print_json, say
from stateward.cli.show.times import clock_time, read_length, time_ago
from stateward.errors import ServerUnavailable, Unauthenticated
from stateward.opening.commands import find_default_place, find_target
from stateward.opening.places import Place, find_place
from stateward.opening.record import dial, find_live
from stateward.opening.stopping import stop_daemon, stop_process
from stateward.opening.users import has_users

EXIT_NOT_RUNNING = 3  # what the LSB says of a status
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data directory of the daemon; default: that of stateward.open()."),
]


def status(
    context: typer.Context,
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
) -> None:
    """Say whether the daemon runs, and where. Exit code 0 if it runs, 3 if not. Starts nothing.

    \b
    Examples:
      stateward status
      stateward status --data-dir ./agents --json | jq -r .pid
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    where = _given_target(context, target, data_dir)
    place = None if where else (find_place(data_dir) if data_dir is not None else find_default_place())
    found = _ask(where) if place is None else _look(place)
    if as_json:
        print_json(found)
    elif found["running"]:
        _print(found)
    else:
        say(f"no daemon runs for {place.data_dir}" if place is not None else f"no daemon answers at {found['target']}")
    if not found["running"]:
        raise typer.Exit(EXIT_NOT_RUNNING)


def stop(
    context: typer.Context,
    grace: Annotated[
        str, typer.Option("--grace", metavar="TIME", help="How long the daemon may take; then it is killed.")
    ] = "30s",
    data_dir: DataDirOption = None,
    as_json: JsonOption = False,
    target: TargetOption = None,
) -> None:
    """Stop the daemon, and wait until it has ended. Nothing that it answered is lost, even if it has to be killed.

    Programs that have it open start it again with their next call, and the command says so.

    \b
    Examples:
      stateward stop
      stateward stop --grace 5m --data-dir ./agents
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    grace_s = read_length(grace, "--grace").total_seconds()
    where = _given_target(context, target, data_dir)
    place = None if where else (find_place(data_dir) if data_dir is not None else find_default_place())
    used = False
    if place is not None:
        pid = stop_daemon(place, grace_s, kills=True)
        used = pid is not None and has_users(place)
    else:
        pid = _stop_at(where or _default_target(), grace_s)
    if as_json:
        print_json({"stopped": pid is not None, "pid": pid, "in_use": used})
    else:
        say("no daemon runs" if pid is None else f"the daemon (pid {pid}) has ended")
    if used:
        note("programs have it open, and start it again with their next call")


def _given_target(context: typer.Context, target: str | None, data_dir: Path | None) -> str | None:
    given: Globals = context.obj
    if data_dir is not None:
        if target is not None:
            raise typer.BadParameter("give one of --target and --data-dir", param_hint="--data-dir")
        return None
    return target or given.target or os.environ.get("STATEWARD_TARGET") or None


def _look(place: Place) -> dict[str, Any]:
    record = find_live(place)
    if record is None:
        return {"running": False, "target": find_target(), "data_dir": str(place.data_dir)}
    return {
        "running": True, "pid": record.pid, "target": record.target, "version": record.version,
        "start_time": record.start_time, "idle_exit_s": record.idle_exit_s, "archive": record.archive,
        "data_dir": str(place.data_dir), "in_use": has_users(place),
        "log_file": str(place.log_file) if record.is_ours else "",
    }  # fmt: skip


def _ask(target: str | None) -> dict[str, Any]:
    from stateward import Client  # noqa: PLC0415  costs most of a start

    try:
        client = Client(target, connect_timeout=READY_TIMEOUT_S, retry_timeout=0.0)
    except ValueError as error:
        raise CommandError(f"--target: {error}") from None
    with client:
        try:
            server = client.server_info()
        except ServerUnavailable:
            return {"running": False, "target": client.target}
        except Unauthenticated:  # it answers
            return {"running": True, "target": client.target, "version": "", "start_time": ""}
        start_time = server.start_time.isoformat()
        return {"running": True, "target": client.target, "version": server.version, "start_time": start_time}


def _default_target() -> str:
    from stateward import Client  # noqa: PLC0415

    with Client() as client:
        return client.target


def _stop_at(target: str, grace_s: float) -> int | None:
    path = target.removeprefix("unix://").removeprefix("unix:")
    pid = dial(Path(path)) if path.startswith("/") else 0
    if pid == 0:
        raise CommandError(f"the process that listens at {target} is not known; stop it by its pid")
    return None if pid is None else stop_process(pid, grace_s, kills=True)


def _print(found: dict[str, Any]) -> None:
    if not found["start_time"]:
        print_facts([("daemon", "runs, and tells more to callers with a token"), ("listens", found["target"])])
        return
    started = datetime.fromisoformat(found["start_time"])
    idle_s = found.get("idle_exit_s", 0)
    print_facts(
        [
            ("daemon", f"stateward-sidecar {found['version']}" + (f", pid {found['pid']}" if "pid" in found else "")),
            ("listens", found["target"]),
            ("started", f"{clock_time(started)}, {time_ago(started)}"),
            ("data", found.get("data_dir", "")),
            ("archive", found.get("archive", "")),
            ("log", found.get("log_file", "")),
            ("ends", f"when nobody has used it for {idle_s:g} s" if idle_s else ""),
            ("in use", "by programs that have it open" if found.get("in_use") else ""),
        ]
    )
