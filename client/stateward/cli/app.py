"""The border of the command: its subcommands, and how every failure becomes one line on stderr and an exit code."""

from __future__ import annotations

import importlib.metadata
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer

from stateward.cli.connect import Globals, NamespaceOption, TargetOption
from stateward.cli.demo import demo
from stateward.cli.import_ import import_
from stateward.cli.output import CommandError, fail
from stateward.cli.show import show
from stateward.cli.threads import threads
from stateward.errors import InvalidField, StatewardError, ThreadNotFound, VersionNotFound, VersionPruned

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED, EXIT_TERMINATED = 1, 2, 130, 143

# typer brings its own click or uses the installed one, by version; this is the base of its usage errors in both.
_ClickException: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

app = typer.Typer(
    name="stateward",
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
app.command("import")(import_)
app.command("show")(show)
app.command("threads")(threads)
app.command("demo")(demo)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"stateward {importlib.metadata.version('stateward')}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def globals_(
    context: typer.Context,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Look at the state of agents, and bring recorded runs in.

    \b
    Examples:
      stateward demo                          watch an agent being killed and going on where it was
      stateward import runs.jsonl.gz          one thread for each recorded run, one version for each step
      stateward threads --status running      what there is
      stateward show runs/run-7 --at 12       a thread as it was at version 12

    The daemon must run (`stateward-sidecar`); only `demo` brings its own. Without --target it is found as the agents
    find it: $STATEWARD_TARGET, else $XDG_RUNTIME_DIR/stateward/stateward.sock, else /run/stateward/stateward.sock.
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    context.obj = Globals(target, namespace)
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Runs a command line; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # what agents write need not fit the terminal's encoding
            stream.reconfigure(errors="backslashreplace")
    signal.signal(signal.SIGTERM, _end)
    try:
        code = app(list(arguments), prog_name="stateward", standalone_mode=False)
        sys.stdout.flush()
    except CommandError as error:
        fail(str(error))
    except StatewardError as error:
        fail(_advise(error))
    except UnicodeEncodeError as error:  # bytes that are no UTF-8 reach Python as lone surrogates
        fail(f"an argument is not UTF-8: {error.object!a}")
    except _ClickException as error:
        return _explain_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader has seen enough, as in `stateward threads | head`
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    else:
        return code if isinstance(code, int) else 0
    return EXIT_FAILED


def _end(_number: int, _frame: FrameType | None) -> None:
    """SIGTERM ends the command in order, so that the demo's processes go with it."""
    raise SystemExit(EXIT_TERMINATED)


def _explain_usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "stateward"
    fail(f"{error.format_message().rstrip('.')}; see: {path} --help")
    return int(getattr(error, "exit_code", EXIT_USAGE))


def _advise(error: StatewardError) -> str:
    if isinstance(error, ThreadNotFound):
        return f"{error.message}; `stateward threads` lists what there is"
    if isinstance(error, (VersionNotFound, VersionPruned)):
        return f"{error.message}; `stateward show THREAD` shows the newest version"
    if isinstance(error, InvalidField):
        return f"{error.message}; check the names on the command line"
    return error.message
