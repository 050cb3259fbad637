"""The command `stateward`, for people: import recorded runs, look at threads, see a demo.

Nothing but the standard library is imported here, so that a missing extra is one line and not a stack trace, and so
that the demo's agent (`python -m stateward.cli.agent`) starts without the terminal libraries.
"""

from __future__ import annotations

import sys

NEEDED = ("typer", "rich")
EXIT_INTERRUPTED = 130


def main() -> None:
    """Runs the command and exits: 0 done, 1 it failed, 2 wrong usage, 130 interrupted."""
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
            "run: pip install 'stateward[cli]'",
            file=sys.stderr,
        )
        sys.exit(1)
    sys.exit(run(sys.argv[1:]))
