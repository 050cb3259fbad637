"""`stateward completion`: prints a script that lets a shell complete commands, options and thread names.

The shell runs `stateward` with _STATEWARD_COMPLETE set. typer reads the words typed so far and prints the completions.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

PROGRAM, VARIABLE = "stateward", "_STATEWARD_COMPLETE"


class Shell(StrEnum):
    """The supported shells."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")]) -> None:
    """Print a script that lets your shell complete commands, options and thread names.

    Thread names are completed only if a daemon answers.

    \b
    Examples:
      eval "$(stateward completion bash)"    a line for ~/.bashrc
      eval "$(stateward completion zsh)"     for ~/.zshrc, after compinit
      stateward completion fish | source     for ~/.config/fish/config.fish
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    from typer import completion as shells  # noqa: PLC0415  --help does not need it

    script = shells.get_completion_script(  # type: ignore[attr-defined]  # typer imports it without exporting it
        prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value  # nosec B604  # the name of a shell; runs none
    )
    if shell is Shell.ZSH:  # the first line is for a file in fpath; eval does not need it
        script = script.removeprefix(f"#compdef {PROGRAM}").lstrip()
    print(script)


def answer_shell(app: Any) -> int:
    """Prints the completions of the words typed so far. Prints none on an error. Returns the exit code."""
    from typer import completion as shells  # noqa: PLC0415

    shells.completion_init()  # type: ignore[attr-defined]
    try:
        app([], prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # noqa: BLE001  a stack trace would appear in the middle of the command line
        return 1
    finally:
        sys.stdout.flush()
    return 0
