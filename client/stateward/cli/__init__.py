"""The command `stateward`, for people: import recorded runs, look at threads, see a demo.

This module imports only the standard library. A missing extra is then reported in one line, without a stack trace, and
the demo's agent (`python -m stateward.cli.demo.agent`) starts without the terminal libraries.
"""

from __future__ import annotations

import sys

from stateward._version import install_command

NEEDED = ("typer", "rich")
EXIT_INTERRUPTED = 130


def main() -> None:
    """Runs the command and exits: 0 success, 1 failure, 2 wrong usage, 130 interrupted."""
    try:
        import rich  # noqa: F401, PLC0415
        import typer  # noqa: F401, PLC0415

        from stateward.cli.app import run  # noqa: PLC0415
    except KeyboardInterrupt:
        sys.exit(EXIT_INTERRUPTED)
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            raise
        print(
            f"stateward: the command needs the package {error.name}, which is not installed; "
            f"run: {install_command('cli')}",
            file=sys.stderr,
        )
        sys.exit(1)
    sys.exit(run(sys.argv[1:]))
