"""Starting the daemon: its program, environment and streams, and waiting until it is ready.

The daemon gets nothing of the agent's: no descriptor, no secret, no session, no directory. If it inherited a pipe,
whoever started the agent and reads that pipe would wait for as long as the daemon lives.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from stateward._version import install_command
from stateward.errors import CannotStart
from stateward.opening.places import Place, find_sockets, log_files
from stateward.opening.record import dial
from stateward.opening.settings import Asked, forget, keep, read_kept

NEEDED = ("stateward_sidecar", "lmdb", "zstandard", "cryptography", "grpc_health", "grpc_reflection")
IN_USE = 75
"""The exit code of a daemon that finds another one on its data directory."""
LINE_BYTES_MAX = 8 << 10
# Names of variables, or with * at the end their beginnings.
_ALWAYS = (
    "HOME", "PATH", "LANG", "TZ", "TMPDIR", "XDG_*", "STATEWARD_*",
    "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "all_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
    "PYTHONPATH", "PYTHONHOME", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH",  # how the interpreter finds the same packages
)  # fmt: skip
_OF_ARCHIVE = {"s3": ("AWS_*",), "gs": ("GOOGLE_*",), "az": ("AZURE_*",)}
_OF_KEY = {"awskms": ("AWS_*",), "vault": ("VAULT_*",)}


class InUse(Exception):
    """Another daemon works on the data directory: it starts, or it ends, or it could not write `daemon.json`."""


class Died(Exception):
    """The daemon ended before it was ready, and said nothing: somebody killed it."""


def clean_environment(
    archive: str, environment: Mapping[str, str] = os.environ, *, key: str = "", key_file: str = ""
) -> dict[str, str]:
    """Returns the daemon's environment: what it needs, and nothing else of the agent's. `archive` is its URL, `key` and
    `key_file` its settings of these names."""
    wanted = (*_ALWAYS, *_OF_ARCHIVE.get(archive.partition("://")[0], ()), *_names_of_key(key, key_file))
    names = re.compile("|".join(re.escape(name).replace(r"\*", ".*") for name in wanted))
    found = {name: value for name, value in environment.items() if names.fullmatch(name)}
    for name in ("PYTHONPATH", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH"):
        if name in found:  # the daemon's directory is another one
            found[name] = os.pathsep.join(str(Path(part).absolute()) for part in found[name].split(os.pathsep) if part)
    return found


def _names_of_key(key: str, key_file: str) -> tuple[str, ...]:
    """The variables that the service takes its credentials from, or that has the key itself."""
    kind, _, value = key.partition(":") if key else ("file", "", key_file)
    if kind == "env":
        return (value,)
    if kind == "file" and value:  # a wrapped one names its service
        try:
            found = json.loads(Path(value).read_bytes())
            kind = str(found["provider"])
        except (OSError, ValueError, LookupError, TypeError):
            return ()
    return _OF_KEY.get(kind, ())


def launch(place: Place, asked: Asked, kept_target: str, idle_exit_s: float, deadline: float) -> str:
    """Starts a daemon and waits until it is ready. Returns its target. The caller holds `start.lock`.

    `kept_target`: where clients of this process look for it. Raises InUse, Died, and CannotStart.
    """
    missing = next((name for name in NEEDED if importlib.util.find_spec(name) is None), "")
    if missing:
        raise CannotStart(
            f"the daemon's package {missing} is not installed; give the target of a daemon, or run: "
            f"{install_command('sidecar')}"
        )
    if not sys.executable or getattr(sys, "frozen", False):  # a frozen program would start itself again
        raise CannotStart("this program has no Python interpreter to start the daemon with; give the target of one")
    kept_before = read_kept(place)
    listen = choose_socket(place, kept_target or first_listen((kept_before or {}).get("listen")))
    kept = keep(place, asked, listen)
    log_file, log = _open_log(place)
    try:
        reading, writing = os.pipe()
    except OSError as error:
        os.close(log)
        raise CannotStart(f"cannot start a daemon: {error.strerror}") from None
    flags: dict[str, Any] = {
        "--config": place.settings_file, "--data-dir": place.data_dir, "--listen": listen, "--ready-fd": writing,
        "--log-file": log_file, "--log-format": "json", "--idle-exit": idle_exit_s,
        **key_flag(kept, place),
    }  # fmt: skip
    command = [sys.executable, "-P", "-m", "stateward_sidecar", "--detach"]
    command += [str(part) for pair in flags.items() for part in pair]
    try:
        process = subprocess.Popen(  # noqa: S603  this package's own program
            command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd="/", umask=0o077, start_new_session=True,
            pass_fds=[writing], env=clean_environment(
                str(kept.get("archive", "")), key=str(kept.get("key", "")), key_file=str(kept.get("key_file", "")),
            ),
        )  # fmt: skip
    except OSError as error:
        os.close(reading)
        raise CannotStart(f"cannot start a daemon: {error.strerror}") from None
    finally:
        os.close(log)
        os.close(writing)
    try:
        line = _read_line(reading, deadline)
    finally:
        os.close(reading)
        _reap(process)
    try:
        return _judge(line, place, log_file)
    except (CannotStart, Died):
        if kept_before is None and line is not None:  # else it may become ready later
            forget(place)
        raise


def key_flag(kept: Mapping[str, Any], place: Place) -> dict[str, Any]:
    """Returns the flag that names the key, which wins over the environment."""
    return {"--key": kept["key"]} if kept.get("key") else {"--key-file": kept.get("key_file", place.key_file)}


def _judge(line: str | None, place: Place, log_file: Path) -> str:
    word, _, rest = (line or "").partition(" ")
    if word == "ready":
        return rest
    if word == "failed":
        code, _, why = rest.partition(" ")
        if code == str(IN_USE):
            raise InUse(why)
        raise CannotStart(f"the daemon of {place.data_dir} cannot start: {why}")
    if line is None:
        raise CannotStart(f"the daemon of {place.data_dir} is not ready in time; its log is {log_file}")
    raise Died(_last_line(log_file))


def choose_socket(place: Place, kept: str, *, reuses: bool = False) -> str:
    """Returns the target of the first usable socket at which nobody listens; `reuses` takes one that is in use."""
    for path in find_sockets(place, kept):
        if reuses or dial(path) is None:
            return f"unix://{path}"
    raise CannotStart(f"another program listens at {path}, the socket of {place.data_dir}; stop it")


def first_listen(listen: object) -> str:
    """Returns the first target of a setting `listen`; "" if there is none."""
    return str(listen[0] if isinstance(listen, list) and listen else listen or "")


def _open_log(place: Place) -> tuple[Path, int]:
    why = ""
    for path in log_files(place):
        try:
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
            return path, os.open(path, flags, 0o600)
        except OSError as error:
            why = f"cannot write the log {path}: {error.strerror}"
    raise CannotStart(why)


def _read_line(descriptor: int, deadline: float) -> str | None:
    """Returns the line of a pipe, "" if it was closed before, None if nothing came in time."""
    said = b""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    while not said.endswith(b"\n") and len(said) < LINE_BYTES_MAX:
        left_s = deadline - time.monotonic()
        if left_s <= 0 or not poll.poll(left_s * 1000):
            return None
        piece = os.read(descriptor, LINE_BYTES_MAX)
        if not piece:
            return ""
        said += piece
    return said.decode(errors="replace").strip()


def _reap(process: subprocess.Popen[bytes]) -> None:
    """Waits for the process that started the daemon, which ends at once."""
    try:
        process.wait(1.0)
    except subprocess.TimeoutExpired:  # somebody has stopped it
        process.kill()
        process.wait()


def _last_line(path: Path) -> str:
    with suppress(OSError):
        lines = path.read_bytes()[-2000:].decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else ""
    return ""
