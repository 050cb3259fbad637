"""`stateward completion`: the script that makes a shell complete commands, options and names of threads.

The shell asks by running `stateward` with _STATEWARD_COMPLETE set; typer reads what was typed so far and answers.
"""

from __future__ import annotations

import sys
from enum import StrEnum
from typing import Annotated, Any

import typer

PROGRAM, VARIABLE = "stateward", "_STATEWARD_COMPLETE"


class Shell(StrEnum):
    """The shells there is a script for."""

    BASH = "bash"
    ZSH = "zsh"
    FISH = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="bash|zsh|fish", help="Your shell.")]) -> None:
    """Print the script that makes your shell complete commands, options and, where a daemon answers, threads.

    \b
    Examples:
      eval "$(stateward completion bash)"    a line for ~/.bashrc
      eval "$(stateward completion zsh)"     for ~/.zshrc, after compinit
      stateward completion fish | source     for ~/.config/fish/config.fish
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    from typer import completion as shells  # noqa: PLC0415  help needs none

    script = shells.get_completion_script(  # type: ignore[attr-defined]  # where it is used, not where it is made
        prog_name=PROGRAM, complete_var=VARIABLE, shell=shell.value
    )
    if shell is Shell.ZSH:  # its first line is meant for a file in fpath, and means nothing to eval
        script = script.removeprefix(f"#compdef {PROGRAM}").lstrip()
    print(script)


def answer_shell(app: Any) -> int:
    """Prints what the words typed so far can go on with. Whatever goes wrong, the shell completes nothing."""
    from typer import completion as shells  # noqa: PLC0415

    shells.completion_init()  # type: ignore[attr-defined]
    try:
        app([], prog_name=PROGRAM, standalone_mode=False)
    except SystemExit as end:
        return int(end.code or 0)
    except Exception:  # noqa: BLE001  a stack trace in the middle of a line that is being typed helps nobody
        return 1
    finally:
        sys.stdout.flush()
    return 0
