"""`stateward service`: the daemon as a service of this user, kept by systemd or launchd."""

from __future__ import annotations

import os
import plistlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import typer

from stateward.cli.options.catalog import CONTEXT
from stateward.cli.options.connect import JsonOption
from stateward.cli.show.output import CommandError, note, print_json, say
from stateward.opening.launch import choose_socket, first_listen
from stateward.opening.places import Place, find_place, prepare_data_dir
from stateward.opening.settings import read_kept

UNIT, LABEL = "stateward.service", "dev.stateward.daemon"
SETTLE_S = 30.0
HELP = """Run the daemon as a service of your user: systemd on Linux, launchd on macOS.

\b
Examples:
  stateward service install
  stateward service print
"""
service = typer.Typer(
    help=HELP,
    add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True,
    context_settings=CONTEXT,
)  # fmt: skip
DataDirOption = Annotated[
    Path | None,
    typer.Option("--data-dir", metavar="DIR", help="Data directory of the daemon; default: that of stateward.open()."),
]
UNIT_TEXT = """\
[Unit]
Description=Stateward: durable state for agents
StartLimitIntervalSec=60
StartLimitBurst=5

[Service]
Type=exec
ExecStart={command}
Restart=on-failure
RestartSec=1
UMask=0077
LimitCORE=0
NoNewPrivileges=yes
TimeoutStopSec=30

[Install]
WantedBy=default.target
"""


@service.command("print")
def print_(data_dir: DataDirOption = None) -> None:
    """Print the unit or the agent that install would write.

    \b
    Example:
      stateward service print > stateward.service
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    sys.stdout.write(_text(find_place(data_dir)))


@service.command()
def install(
    data_dir: DataDirOption = None,
    begin: Annotated[bool, typer.Option("--start/--no-start", help="Whether to start the service now.")] = True,
    as_json: JsonOption = False,
) -> None:
    """Write the unit or the agent, and start it. The daemon then starts with your session, and again after a crash.

    It has the data directory of stateward.open(), so that programs find it, and never ends because it is idle.

    \b
    Examples:
      stateward service install
      stateward service install --data-dir /srv/agents --no-start
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    place, path = find_place(data_dir), _path()
    prepare_data_dir(place)
    text = _text(place)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary = path.with_name(f".{path.name}.new")
        temporary.write_text(text)
        temporary.replace(path)
    except OSError as error:
        raise CommandError(f"cannot write {path}: {error.strerror}") from None
    if not as_json:
        say(f"wrote {path}")
    if begin:
        _run(_begin_commands(path))
    if as_json:
        print_json({"path": str(path), "data_dir": str(place.data_dir), "started": begin})


@service.command()
def uninstall(as_json: JsonOption = False) -> None:
    """Stop the service and remove its file. The data stay.

    \b
    Example:
      stateward service uninstall
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    path = _path()
    was_there = path.exists()
    if was_there:
        _run(_end_commands(path))
        path.unlink(missing_ok=True)
    if as_json:
        print_json({"path": str(path), "removed": was_there})
    else:
        say(f"removed {path}" if was_there else f"there is no {path}")


def _path() -> Path:
    if sys.platform == "darwin":
        return Path.home() / "Library/LaunchAgents" / f"{LABEL}.plist"
    base = Path(os.environ.get("XDG_CONFIG_HOME") or Path.home() / ".config")
    return base / "systemd/user" / UNIT


def _text(place: Place) -> str:
    command = _command(place)
    if sys.platform == "darwin":
        return launch_agent(command, place)
    return UNIT_TEXT.format(command=" ".join(map(quoted, command)))


def _command(place: Place) -> list[str]:
    kept = read_kept(place)
    listen = first_listen((kept or {}).get("listen")) or choose_socket(place, "", reuses=True)
    flags = {"--data-dir": str(place.data_dir), "--listen": listen}
    if kept is not None:
        flags = {"--config": str(place.settings_file), **flags}
    else:
        source = os.environ.get("STATEWARD_KEY")
        flags |= {"--key": source} if source else {}
        if not source:
            flags["--key-file"] = os.environ.get("STATEWARD_KEY_FILE") or str(place.key_file)
    return [sys.executable, "-P", "-m", "stateward_sidecar", *(part for pair in flags.items() for part in pair)]


def launch_agent(command: list[str], place: Place) -> str:
    """Returns the property list of the daemon for launchd."""
    found = {
        "Label": LABEL, "ProgramArguments": [*command, "--log-file", str(place.log_file)], "RunAtLoad": True,
        "KeepAlive": {"SuccessfulExit": False}, "ThrottleInterval": 1, "Umask": 0o077, "ProcessType": "Background",
        "HardResourceLimits": {"Core": 0},
    }  # fmt: skip
    return plistlib.dumps(found).decode()


def quoted(part: str) -> str:
    """A part of a command line in a unit: % and $ have a meaning of their own there."""
    escaped = part.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{escaped}"' if escaped != part or any(each.isspace() or each in "';" for each in part) else part


def _begin_commands(path: Path) -> list[list[str]]:
    if sys.platform == "darwin":
        return [["launchctl", "bootstrap", f"gui/{os.getuid()}", str(path)]]
    return [["systemctl", "--user", "daemon-reload"], ["systemctl", "--user", "enable", "--now", UNIT]]


def _end_commands(path: Path) -> list[list[str]]:
    if sys.platform == "darwin":
        return [["launchctl", "bootout", f"gui/{os.getuid()}", str(path)]]
    return [["systemctl", "--user", "disable", "--now", UNIT]]


def _run(commands: list[list[str]]) -> None:
    """Runs commands of the service manager. Says which one to run later if that is not possible here."""
    for at, command in enumerate(commands):
        if shutil.which(command[0]) is None:
            why = f"{command[0]} is not installed"
        else:
            done = subprocess.run(  # noqa: S603  the system's own program
                command, capture_output=True, text=True, timeout=SETTLE_S, check=False
            )
            why = "" if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it failed"])[-1]
        if why:
            rest = " && ".join(" ".join(each) for each in commands[at:])
            note(f"{why}; run it in a session of your user: {rest}")
            return
