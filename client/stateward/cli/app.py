"""The entry point of the command: the options before a subcommand. Every failure becomes one line on stderr and an exit
code."""

from __future__ import annotations

import errno
import os
import re
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import Annotated, Any

import typer

from stateward._version import VERSION
from stateward.cli.options.catalog import CONTEXT, Catalog
from stateward.cli.options.connect import Globals, NamespaceOption, TargetOption
from stateward.cli.show.output import CommandError, fail
from stateward.errors import (
    ArchiveUnavailable,
    Corrupt,
    FeatureUnavailable,
    Fenced,
    InvalidField,
    NoArchive,
    NotOwner,
    StatewardError,
    ThreadExists,
    ThreadNotFound,
    VersionNotFound,
    VersionPruned,
)

EXIT_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130
EXIT_BY_SIGNAL = 128  # and the number of the signal
ENDINGS = (signal.SIGTERM, signal.SIGHUP)  # the second comes when a terminal is closed, or an ssh connection breaks
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)  # of stdout: writers of other files report their own errors

# typer brings its own click or uses the installed one, by version; this is the base of its usage errors in both.
_ClickException: type[Exception] = next(
    kind for kind in typer.BadParameter.__mro__ if kind.__name__ == "ClickException"
)

app = typer.Typer(
    name="stateward",
    cls=Catalog,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings=CONTEXT,
)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"stateward {VERSION}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def globals_(
    context: typer.Context,
    target: TargetOption = None,
    namespace: NamespaceOption = None,
    no_start: Annotated[
        bool, typer.Option("--no-start", help="Fail if the daemon does not run, and never start it.")
    ] = False,
    session_key_file: Annotated[
        str | None,
        typer.Option(
            "--session-key-file", metavar="FILE", envvar="STATEWARD_SESSION_KEY_FILE", show_envvar=False,
            help="The session key of the held threads that the command is about, in hex digits.",
        ),
    ] = None,
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Inspect and manage the state of agents.

    \b
    Examples:
      stateward demo                        watch an agent continue after a kill
      stateward threads --status waiting    list the threads that wait
      stateward show booking-42 --at 12     a thread as it was at version 12
      stateward diff booking-42 11 12       what that version changed
      stateward export --all --versions -o all.jsonl.gz

    Without --target and $STATEWARD_TARGET the command finds the daemon as `stateward.open()` does: through its data
    directory ($STATEWARD_DATA_DIR, else $XDG_DATA_HOME/stateward). It starts the daemon only if a program has started
    it there before. If there is neither, it looks at $XDG_RUNTIME_DIR/stateward/stateward.sock, else at
    /run/stateward/stateward.sock, or /tmp/stateward-UID/stateward.sock for users who may not write /run (on macOS
    $TMPDIR instead of /run). To a daemon that asks for tokens it sends the first one in the file $STATEWARD_TOKEN_FILE.
    A held thread opens with the session key in the file $STATEWARD_SESSION_KEY_FILE, or that of --session-key-file.
    To a port with TLS it connects with the files $STATEWARD_TLS_CA, $STATEWARD_TLS_CERT and $STATEWARD_TLS_KEY.
    `stateward COMMAND --help` prints the options and examples of a command.
    """  # noqa: D301  \b keeps the lines of a paragraph apart
    context.obj = Globals(target, namespace, may_start=not no_start, session_key_file=session_key_file)
    if context.invoked_subcommand is None:
        print(context.get_help())


def run(arguments: Sequence[str]) -> int:
    """Runs a command line; returns the exit code."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # agents may write text that the terminal's encoding cannot show
            stream.reconfigure(errors="backslashreplace")
    _end_in_order()
    if "_STATEWARD_COMPLETE" in os.environ:  # the shell asks, by the script of `stateward completion`
        from stateward.cli.commands.completion import answer_shell  # noqa: PLC0415

        return answer_shell(app)
    try:
        code = app(list(arguments), prog_name="stateward", standalone_mode=False)
        sys.stdout.flush()
    except CommandError as error:
        fail(str(error))
    except StatewardError as error:
        fail(_advise(error))
    except ValueError as error:
        fail(f"an argument is not UTF-8: {_find_wrong(error, arguments)!a}")
    except _ClickException as error:
        return _explain_usage(error)
    except (KeyboardInterrupt, typer.Abort):
        return EXIT_INTERRUPTED
    except OSError as error:
        _leave_stdout(error)
    else:
        return code if isinstance(code, int) else 0
    return EXIT_FAILED


def _find_wrong(error: ValueError, arguments: Sequence[str]) -> str:
    """Returns the text that is not UTF-8: its bytes reach Python as lone surrogates. Raises `error` if there is
    none."""
    if isinstance(error, UnicodeEncodeError):
        return str(error.object)
    for each in arguments:
        if any(0xD800 <= ord(character) < 0xE000 for character in each):
            return each
    raise error


def _leave_stdout(error: OSError) -> None:
    """Discards all further output, and the buffered rest: stdout is full, or its reader has ended, as `head` does."""
    if error.errno not in (errno.EPIPE, *FULL):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if error.errno != errno.EPIPE:
        fail(f"cannot write to stdout: {error.strerror}")


def _end_in_order() -> None:
    """Lets signals end the command in order, unless they are ignored, as with nohup."""
    for number in ENDINGS:
        if signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _end)


def _end(number: int, _frame: FrameType | None) -> None:
    """Ends the command in order, so that unfinished files are removed and the demo's processes end too.

    Later signals do not interrupt that: a shell and the kernel both send SIGHUP for a closed terminal.
    """
    for each in ENDINGS:
        signal.signal(each, _pass_over)  # no SIG_IGN, which programs that are started later would inherit
    raise SystemExit(EXIT_BY_SIGNAL + number)


def _pass_over(_number: int, _frame: FrameType | None) -> None:
    """Does nothing about a signal."""


def _explain_usage(error: Any) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "stateward"
    message = error.format_message().replace(": Value error, ", ": ").rstrip(".")  # a prefix that some typers add
    message = re.sub(r"\. Did you mean (.+)\?$", r" (did you mean \1?)", message)  # typer's own words
    fail(f"{message}{_meant(message, context) or _belongs(message, path)}; see: {path} --help")
    return int(getattr(error, "exit_code", EXIT_USAGE))


def _belongs(message: str, path: str) -> str:
    """Returns where an option belongs that no command has, because it stands before the command."""
    program, _, command = path.partition(" ")
    found = re.match(r"No such option: (--no-start|--session-key-file)", message)
    if found is None or not command:
        return ""
    value = " FILE" if found[1] == "--session-key-file" else ""
    return f"; it stands before the command: {program} {found[1]}{value} {command}"


def _meant(message: str, context: Any) -> str:
    """Returns the command that was probably meant, for one that does not exist."""
    unknown = re.match(r"No such command '(.+)'", message)
    names = getattr(getattr(context, "command", None), "list_commands", None)
    if unknown is None or names is None or "did you mean" in message.lower():
        return ""
    from difflib import get_close_matches  # noqa: PLC0415  only for the one who mistyped

    near = get_close_matches(unknown[1], names(context), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""


def _advise(error: StatewardError) -> str:
    match error:
        case ThreadNotFound():
            advice = "`stateward threads` lists all threads"
        case VersionNotFound() | VersionPruned():
            advice = "`stateward history THREAD --all` lists the versions, `stateward tag THREAD` the tags"
        case NotOwner() if error.owner_id:
            advice = "`stateward attach THREAD --wait 2m` waits for it, --take-over takes it from a dead machine"
        case Fenced() if error.orphan:
            advice = f"`stateward show '{error.orphan}'` shows the unarchived versions, `stateward fork` copies them"
        case Fenced():
            advice = "`stateward show THREAD` shows the thread as it is now"
        case NoArchive() if "--archive" not in error.message:
            advice = "start it with: stateward-sidecar --archive URL"
        case ArchiveUnavailable():
            advice = "`stateward archive status` shows its state; threads on this disk can still be read"
        case FeatureUnavailable() if not error.reason:  # gRPC's own answer to a method that it does not know
            advice = "the daemon is older than this command; `stateward stats` shows its version"
        case ThreadExists():
            advice = "choose another name, or remove that thread with `stateward rm`"
        case Corrupt():
            advice = "`stateward verify` shows the extent of the damage"
        case InvalidField() if ";" not in error.message:
            advice = "check the names on the command line"
        case _:
            return error.message
    return f"{error.message}; {advice}"
