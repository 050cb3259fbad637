"""Structured logs on standard error: one line an event, as text on a terminal and as JSON elsewhere.

Logs never contain values, and no names of threads, slots and labels: these are sealed at rest, and a log is at rest as
well. This holds for exceptions, too, also for those that nobody catches: `tracebacks` says what is told of them.

The uid identifies a thread. A line about a call has its request id, and the id of its trace if traces are on.
"""

from __future__ import annotations

import hashlib
import json
import logging
import logging.handlers
import os
import re
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from stateward_sidecar.errors import ShuttingDown, StartError
from stateward_sidecar.spans import call_id, trace_id
from stateward_sidecar.tracebacks import LOGGED_FACTS, trace

# Pauses before a failed background task is started again.
AGAIN_S, AGAIN_MAX_S = 1.0, 30.0
# Of a log file; its predecessor has as much.
LOG_BYTES_MAX = 5 << 20
# UUIDs and other numbers in hexadecimal.
_RANDOM = re.compile(r"[0-9a-fA-F-]{16,64}")


class Log:
    """A logger whose facts are keyword arguments."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._logger = logging.getLogger(name)

    @property
    def shows_calls(self) -> bool:
        """Whether each call gets a line."""
        return self._logger.isEnabledFor(logging.DEBUG)

    def debug(self, event: str, **facts: Any) -> None:
        self._logger.debug(event, extra={"facts": facts})

    def info(self, event: str, **facts: Any) -> None:
        self._logger.info(event, extra={"facts": facts})

    def warning(self, event: str, **facts: Any) -> None:
        self._logger.warning(event, extra={"facts": facts})

    def error(self, event: str, *, exc_info: BaseException | None = None, **facts: Any) -> None:
        self._logger.error(event, extra={"facts": facts}, exc_info=exc_info)

    def exception(self, event: str, **facts: Any) -> None:
        """Like ``error``, with the traceback of the exception that is being handled."""
        self._logger.error(event, extra={"facts": facts}, exc_info=True)  # noqa: LOG014


log = Log("stateward")
# Loggers whose whole messages are shown: ours, and OpenTelemetry's, which knows our spans alone.
_OWN = re.compile(r"stateward$|opentelemetry(\.|$)")


def log_damage(event: str, error: Any, **facts: Any) -> None:
    """Logs an error of stored data with its reason and numbers only: its message and its other facts contain names.
    A thread that is only locked has no damage."""
    if error.reason == "LOCKED":
        return
    known = {key: error.metadata[key] for key in LOGGED_FACTS if key in error.metadata}
    log.error(event, reason=error.reason, **{**known, **facts})


class Failures:
    """Counts the unforeseen failures of background tasks since the start. Nobody waits for these tasks."""

    def __init__(self) -> None:
        self.count = 0

    def note(self, what: str, **facts: Any) -> None:
        """Logs and counts the exception that is being handled. The caller continues."""
        self.count += 1
        event = "a background task failed unexpectedly; it is started again"
        log.exception(event, what=what, **facts)  # noqa: LOG004  (callers are handlers)


failures = Failures()


def guarded(what: str, call: Callable[..., object], *arguments: Any) -> bool:
    """Runs a background task. Returns False if it failed, after logging and counting the failure."""
    try:
        call(*arguments)
    except ShuttingDown:
        return True  # the next start continues it
    except Exception:  # noqa: BLE001  (whatever it is)
        failures.note(what)
        return False
    return True


def persist(what: str, call: Callable[[], object], over: threading.Event) -> None:
    """Runs a task until it succeeds once, or until ``over`` is set. Pauses between tries, each longer than the last."""
    pause_s = AGAIN_S
    while not guarded(what, call) and not over.wait(pause_s):
        pause_s = min(2 * pause_s, AGAIN_MAX_S)


class _Text(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        facts = " ".join(f"{key}={value}" for key, value in _facts(record).items())
        moment = time.strftime("%H:%M:%S", time.localtime(record.created))
        line = f"{moment} {record.levelname.lower():7} {_event(record)} {facts}".rstrip()
        return f"{line}\n{_traceback(record)}" if record.exc_info else line


class _Json(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        moment = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line = {
            "time": f"{moment}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "event": _event(record),
            **{key: value if isinstance(value, int | float) else str(value) for key, value in _facts(record).items()},
        }
        if record.exc_info:
            line["traceback"] = _traceback(record)
        return json.dumps(line)


def _facts(record: logging.LogRecord) -> dict[str, Any]:
    facts: dict[str, Any] = dict(getattr(record, "facts", {}))
    if given := call_id.get():
        facts.setdefault("request_id", show_request_id(given))
    if found := trace_id():
        facts["trace_id"] = found
    return facts


def _event(record: logging.LogRecord) -> str:
    """What a library says may have values in it, so that only its own words are shown, or where it says something."""
    if _OWN.match(record.name):
        return record.getMessage()
    return f"{record.name}: {record.msg if record.args else f'line {record.lineno} of {record.funcName}'}"


def _traceback(record: logging.LogRecord) -> str:
    error = record.exc_info[1] if record.exc_info else None
    return "" if error is None else trace(error)


def show_request_id(given: str) -> str:
    """Returns a request id as logs may show it: a random one as it is. Any other may hold a name, so its hash is shown,
    which whoever knows the id can compute."""
    if _RANDOM.fullmatch(given):
        return given
    return f"sha256:{hashlib.sha256(given.encode()).hexdigest()[:16]}"


class _LogFile(logging.handlers.RotatingFileHandler):
    """A log file with one predecessor. Standard output and error follow it, so that nothing that libraries print grows
    without a limit."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, maxBytes=LOG_BYTES_MAX, backupCount=1, encoding="utf-8")
        self._lead_streams()

    def doRollover(self) -> None:  # noqa: N802  (the name in `logging`)
        path = Path(self.baseFilename)
        mode = stat.S_IMODE(path.stat().st_mode)
        super().doRollover()
        path.chmod(mode)  # whoever was allowed to read the log still is
        self._lead_streams()

    def _lead_streams(self) -> None:
        if self.stream is not None:
            for stream in (sys.stdout, sys.stderr):
                stream.flush()
                os.dup2(self.stream.fileno(), stream.fileno())


def configure_logging(level: str, form: str, path: Path | None = None) -> None:
    """Sends logs of at least a level to a file, or to standard error; form is "console" (or "text"), "json" or "auto".

    Raises StartError if the file cannot be written.
    """
    is_terminal = path is None and sys.stderr.isatty()
    try:
        handler = logging.StreamHandler(sys.stderr) if path is None else _LogFile(path)
    except OSError as error:
        raise StartError(f"--log-file {path}: {error.strerror}") from None
    as_text = form in ("console", "text") or (form == "auto" and is_terminal)
    handler.setFormatter(_Text() if as_text else _Json())
    for name, least in ((log.name, level.upper()), ("opentelemetry", "WARNING"), ("", "WARNING")):
        root = logging.getLogger(name)
        root.handlers[:] = [handler]
        root.propagate = False
        root.setLevel(least)


def hear_uncaught() -> None:
    """Logs what nobody catches, in place of Python, which would print it with values."""
    said = "an exception that nobody caught"

    def in_main(kind: type[BaseException], error: BaseException, place: TracebackType | None) -> None:
        if issubclass(kind, KeyboardInterrupt):
            sys.__excepthook__(kind, error, place)
        else:
            log.error(said, exc_info=error)

    def in_thread(args: threading.ExceptHookArgs) -> None:
        if args.exc_value is not None:
            log.error(said, exc_info=args.exc_value, what="a thread")

    def unraisable(args: sys.UnraisableHookArgs) -> None:
        if args.exc_value is not None:
            log.error(said, exc_info=args.exc_value, what="a finalizer")

    sys.excepthook, threading.excepthook, sys.unraisablehook = in_main, in_thread, unraisable
