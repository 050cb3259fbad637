"""The command ``stateward-sidecar``: arguments, then the app, then an exit code.

Exit codes: 0 stopped on request, 1 cannot start, 2 wrong arguments, 70 the disk failed in the middle of a commit, 75
another daemon works on the data directory.
"""

from __future__ import annotations

import gc
import os
import sys
from itertools import pairwise
from typing import NoReturn

from stateward_sidecar import hardening
from stateward_sidecar.addresses import CIPHER_SUITES


def main() -> None:
    """Runs the daemon."""
    hardening.begin()
    # Imports leave next to no garbage, and to look for it takes a sixth of a start.
    gc.disable()
    if "--detach" in sys.argv[1:] and os.fork():
        os._exit(0)
    # Without this, gRPC's own log appears before the one line that says what is wrong.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    # gRPC reads it when it is imported.
    os.environ["GRPC_SSL_CIPHER_SUITES"] = CIPHER_SUITES
    try:
        import cryptography  # noqa: F401
        import grpc_health  # noqa: F401
        import grpc_reflection  # noqa: F401
        import lmdb  # noqa: F401
        import zstandard  # noqa: F401
    except ImportError as error:
        from stateward._version import install_command

        _fail(
            1,
            f"the daemon's dependencies are not installed ({error.name} is missing); run: "
            f"{install_command('sidecar')}",
        )
    from stateward_sidecar.errors import StartError

    try:
        sys.exit(_run())
    except StartError as error:
        _fail(error.exit_code, error.message)


def _fail(code: int, message: str) -> NoReturn:
    from stateward_sidecar.notify import tell

    print(f"stateward-sidecar: {message}", file=sys.stderr)
    tell(_ready_fd(), f"failed {code} {message}")
    sys.exit(code)


def _ready_fd() -> int | None:
    """The descriptor of --ready-fd, which the arguments have also if they could not be parsed."""
    for flag, value in pairwise(sys.argv[1:]):
        if flag == "--ready-fd" and value.isdecimal():
            return int(value)
    return None


def _run() -> int:
    import asyncio

    from stateward_sidecar.settings import load_settings, make_parser, process_environment
    from stateward_sidecar.telemetry import configure_logging, hear_uncaught

    settings, is_health = load_settings(sys.argv[1:], process_environment())
    hardening.finish(is_debuggable=settings.is_debuggable)
    if is_health:
        from stateward_sidecar.health import ask_health

        return ask_health(settings, make_parser().parse_args(sys.argv[1:]).health)
    configure_logging(settings.log_level, settings.log_format, settings.log_file)
    hear_uncaught()
    from stateward_sidecar import app

    gc.freeze()
    gc.enable()
    if make_parser().parse_args(sys.argv[1:]).check:
        return app.check(settings)

    return asyncio.run(app.run(settings))


if __name__ == "__main__":
    main()
