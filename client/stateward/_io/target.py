"""The address of a daemon: finding it, and saying what is wrong with one at which there is no daemon.

A lasting fault is raised at once: a directory does not become a socket by waiting. A daemon may still start at a socket
that nobody listens on, so the client waits for it; for one that does not exist only if its user says how long.
"""

from __future__ import annotations

import errno
import os
import re
import socket
import stat
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

from stateward.errors import WrongTarget

RUN, TMP = Path("/run"), Path("/tmp")  # noqa: S108  a directory of this user's own is looked for there
MAX_SOCKET_PATH_BYTES = 104  # sun_path on macOS and the BSDs; Linux allows 108
PORT_MAX = 65535
PROBE_S = 0.25
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
# The schemes of gRPC. Other schemes, such as http, are refused.
_SCHEMES = ("unix", "dns", "ipv4", "ipv6")
HTTP2_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + b"\0\0\0\x04\0\0\0\0\0"
_HEAD_BYTES = 9
_KEPT = "daemon.toml"
_SETTINGS = 4
_TLS_RECORDS = (0x15, 0x16)


def resolve_target(
    target: str | None, environment: Mapping[str, str] = os.environ, platform: str = sys.platform
) -> str:
    """The gRPC target for an argument or, without one, the default: STATEWARD_TARGET, else `default_path`.

    Accepts `unix:///path`, `unix:path`, a bare path, and host:port. Raises ValueError for anything else, and for a
    socket path that is too long.
    """
    given: object = target  # from a program without type checks
    if given is not None and not isinstance(given, str):
        raise TypeError(f"a target is a text, such as unix:///path, host:port or client.target, not {given!r}")
    if not target and (named := environment.get("STATEWARD_TARGET")):
        try:
            return resolve_target(named, environment, platform)
        except ValueError as error:
            raise ValueError(f"STATEWARD_TARGET: {error}") from None
    target = target or str(default_path(environment, platform))
    if is_tcp(target):
        return _check_tcp(target)
    path = target
    if target.startswith("unix:"):
        path = target.removeprefix("unix:")
        path = path.removeprefix("//") if path.startswith("///") else path
    path = str(Path(path).expanduser().absolute())
    size_bytes = len(os.fsencode(path))
    if size_bytes > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"the socket path has {size_bytes} bytes and the system allows {MAX_SOCKET_PATH_BYTES}; "
            f"choose a shorter one: {path}"
        )
    return f"unix://{path}"


def default_path(environment: Mapping[str, str] = os.environ, platform: str = sys.platform) -> Path:
    """The default socket: `$XDG_RUNTIME_DIR/stateward/stateward.sock`; on macOS the same in $TMPDIR. Without these,
    /tmp/stateward-UID/stateward.sock if a daemon of this user has made it there, because the user may not write /run;
    else /run/stateward/stateward.sock."""
    temporary = environment.get("TMPDIR") if platform == "darwin" else None
    runtime_dir = environment.get("XDG_RUNTIME_DIR") or temporary
    if runtime_dir:
        return Path(f"{runtime_dir.rstrip('/')}/stateward/stateward.sock")
    own = TMP / f"stateward-{_user()}" / "stateward.sock"
    return own if _is_private(own.parent) and own.exists() else RUN / "stateward/stateward.sock"


def _is_private(directory: Path) -> bool:
    """Whether a directory is this user's own: anybody may make one of that name in /tmp, and listen there."""
    try:
        found = directory.lstat()
    except OSError:
        return False
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == _user()
    return is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH)


def is_tcp(target: str) -> bool:
    """Returns whether a target is an address of a network, not a path."""
    is_path = target.startswith("unix:") or ("/" in target and "://" not in target)
    return not is_path or target.startswith(("dns:", "ipv4:", "ipv6:"))


def _check_tcp(target: str) -> str:
    scheme, mark, rest = target.partition("://")
    if mark and scheme.lower() not in _SCHEMES:
        host = rest.partition("/")[0]
        instead = host if re.fullmatch(r"[^:]+:\d+", host) else "unix:///path or host:port"
        raise ValueError(f"{target} is a web address; give {instead}")
    if target.startswith(("dns:", "ipv4:", "ipv6:")):
        return target
    host, _, port = target.rpartition(":")
    if not host or not port.isdigit():
        raise ValueError(f"{target} has no port; give host:port, unix:///path, or a path with a /")
    if ":" in host and not (host.startswith("[") and host.endswith("]")):
        raise ValueError(f"{target} has several colons; give host:port, and an IPv6 address in brackets: [::1]:7700")
    if not 0 < int(port) <= PORT_MAX:
        raise ValueError(f"{target} has port {port}; ports are 1 to {PORT_MAX}")
    return target


def advice(target: str, said: str) -> str:
    """Returns the advice to start a daemon, if one could listen there. `said` is gRPC's message."""
    if "before receiving SETTINGS" in said:
        return "; something listens there, but it does not answer as a daemon does"
    is_near = target.startswith("unix:") or target.rpartition(":")[0] in LOOPBACK
    if not is_near:
        return ""
    if (kept := find_kept_settings(target)) is not None:
        named = "" if kept.parent == _default_data() else f" with STATEWARD_DATA_DIR={kept.parent}"
        return f"; stateward.open() and commands without --target start it{named}, with its settings in {kept}"
    listen = f"{target} --exposed-port" if is_tcp(target) else target
    flags = "with the flags that it had before, such as --access"
    return f"; start one with: stateward-sidecar --listen {listen}, {flags}; or let stateward.open() start one"


def find_kept_settings(target: str) -> Path | None:
    """Returns the `daemon.toml` of the daemon that listens at a socket, if clients started it: `stateward-sidecar` does
    not read these settings, such as the archive. None = no client did, or nothing shows it."""
    if not target.startswith("unix://"):
        return None
    folder = Path(target.removeprefix("unix://")).parent
    kept = _default_data() / _KEPT
    with suppress(OSError, ValueError):  # of files that are missing, or another user's
        if folder.name == "run" and (beside := folder.parent / _KEPT).is_file():
            return beside
        if f'listen = "{target}"' in kept.read_text():
            return kept
    return None


def _default_data() -> Path:
    """The data directory that `stateward.open()` uses if its caller names none."""
    named, base = os.environ.get("STATEWARD_DATA_DIR"), os.environ.get("XDG_DATA_HOME")
    path = named or f"{base or '~/.local/share'}/stateward"
    return Path(os.path.realpath(os.path.expanduser(path)))  # noqa: PTH111  Path's raises without a home directory


def is_socket_missing(target: str) -> bool:
    """Whether the target is a socket of the file system that does not exist."""
    if not target.startswith("unix://"):
        return False
    try:
        Path(target.removeprefix("unix://")).stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False
    return False


OWNER_VARIABLE = "STATEWARD_SOCKET_OWNER"
LINKS_MAX = 40


def check_owner(target: str) -> None:
    """Raises WrongTarget if a socket, or a directory or link on the way to it, belongs to a user whom this program need
    not trust: who owns a directory puts there what he likes. Does nothing for other targets, and where nothing is."""
    if target.startswith("unix://"):
        try:
            for uid in _owners(target.removeprefix("unix://")):
                check_uid(uid, target)
        except OSError:
            return  # connecting says why


def _owners(path: str) -> Iterator[int]:
    """Yields the owner of each directory and link on the way to a path, and of what is there. Raises OSError."""
    at, rest, links = "/", path.split("/"), 0
    while rest:
        part = rest.pop(0)
        if part in {"", "."}:
            continue
        if part == "..":
            at = str(Path(at).parent)
            continue
        place = f"{at.rstrip('/')}/{part}"
        found = os.lstat(place)
        yield found.st_uid
        if not stat.S_ISLNK(found.st_mode):
            at = place
            continue
        links += 1
        if links > LINKS_MAX:
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        to = os.readlink(place)  # noqa: PTH115  its text, also if it leads nowhere
        at, rest = ("/" if to.startswith("/") else at), [*to.split("/"), *rest]


def check_uid(uid: int, target: str) -> None:
    """Raises WrongTarget if the daemon's user is neither this program's own, nor root, nor the one that is expected."""
    if uid in {0, _user()} or uid in _expected_uids():
        return
    raise WrongTarget(
        f"the socket {target.removeprefix('unix://')}, or a directory on the way to it, belongs to user {uid}, neither "
        f"to user {_user()}, who runs this program, nor to root; if user {uid} runs your daemon, set "
        f"{OWNER_VARIABLE}={uid}",
        code="PERMISSION_DENIED",
    )


def _expected_uids() -> list[int]:
    given = os.environ.get(OWNER_VARIABLE, "")
    return [_uid_of(each.strip()) for each in given.split(",")] if given else []


@cache
def _uid_of(expected: str) -> int:
    if expected.isascii() and expected.isdigit():
        return int(expected)
    try:
        import pwd  # noqa: PLC0415  Windows has none

        return pwd.getpwnam(expected).pw_uid
    except (ImportError, KeyError):
        raise WrongTarget(
            f"{OWNER_VARIABLE}={expected} is no user of this system; give the name or the number of the daemon's user",
            code="INVALID_ARGUMENT",
        ) from None


def find_fault(target: str, said: str) -> str:
    """Returns the lasting fault of a target; "" if a daemon may still start there. `said` is gRPC's message."""
    if target.startswith("unix://"):
        path = target.removeprefix("unix://")
        fault = _find_path_fault(path, said)
        return fault or _find_protocol_fault(target, said)
    return _find_protocol_fault(target, said)


def _find_path_fault(path: str, said: str) -> str:
    try:
        found = Path(path).stat()
    except PermissionError:
        return f"user {_user()} has no access to {Path(path).parent}; run as a user who has, or change its mode"
    except OSError:
        return ""
    if stat.S_ISDIR(found.st_mode):
        return f"{path} is a directory; give the path of the daemon's socket, such as {Path(path, 'stateward.sock')}"
    if not stat.S_ISSOCK(found.st_mode):
        return f"{path} is a file, not a socket; give the path of the daemon's socket"
    if "permission denied" in said.lower():
        owner, mode = f"user {found.st_uid} and group {found.st_gid}", stat.S_IMODE(found.st_mode)
        return f"user {_user()} may not use {path}: it belongs to {owner} (mode {mode:04o}); run as one of them"
    return ""


def _user() -> int:
    return os.geteuid() if hasattr(os, "geteuid") else 0


def _find_protocol_fault(target: str, said: str) -> str:
    """Asks the peer what it is, if gRPC found that it does not speak HTTP/2."""
    may_be_tls = is_tcp(target) and "Socket closed" in said
    if "HTTP/2" not in said and "wrong version" not in said.lower() and not may_be_tls:
        return ""
    with suppress(OSError, ValueError), _dial(target) as probe:
        probe.sendall(HTTP2_PREFACE)
        answer = probe.recv(_HEAD_BYTES)
        if answer.startswith((b"HTTP/", b"<")):
            return f"{target} is a web server, not a stateward daemon"
        if answer and answer[0] in _TLS_RECORDS:
            return _say_tls(target)
        if len(answer) == _HEAD_BYTES and answer[3] != _SETTINGS:
            return f"{target} does not speak gRPC, so it is not a stateward daemon"
        if not answer and may_be_tls:
            return _say_tls(target) if _speaks_tls(target) else ""
    return ""


def _say_tls(target: str) -> str:
    return f"{target} speaks TLS; set STATEWARD_TLS_CA, or give the client tls_ca"


def _dial(target: str) -> socket.socket:
    if target.startswith("unix://"):
        probe = socket.socket(socket.AF_UNIX)
        probe.settimeout(PROBE_S)
        probe.connect(target.removeprefix("unix://"))
        return probe
    return socket.create_connection(host_and_port(target), PROBE_S)


def _speaks_tls(target: str) -> bool:
    """Whether somebody at a port answers as TLS does."""
    import ssl  # noqa: PLC0415  most clients need none

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE  # nothing is sent
    with suppress(OSError, ValueError):
        host, port = host_and_port(target)
        with socket.create_connection((host, port), PROBE_S) as plain, context.wrap_socket(plain):
            return True
    return False


def host_and_port(target: str) -> tuple[str, int]:
    """Returns host and port of a target of the network. Raises ValueError."""
    host, _, port = re.sub(r"^(?:dns|ipv4|ipv6):(?://[^/]*/)?", "", target).rpartition(":")
    return host.strip("[]"), int(port)
