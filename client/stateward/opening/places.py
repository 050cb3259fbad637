"""Where a data directory, its key, its log and its socket lie: the XDG base directories, or what is given.

A directory of another user is refused, and so is a symbolic link in the place of the socket's directory.
"""

from __future__ import annotations

import hashlib
import os
import pwd
import stat
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from stateward.errors import CannotStart

# The path in a socket's address, with its final zero byte: 104 on macOS and the BSDs.
SOCKET_PATH_BYTES_MAX = 103 if sys.platform == "darwin" else 104
_SHORT = Path("/tmp")  # noqa: S108  a directory of this user's own is made there
_SOCKET = "stateward.sock"


@dataclass(frozen=True)
class Place:
    """A data directory and what belongs to it."""

    data_dir: Path
    """Without symbolic links, so that there is one daemon for each directory and not for each name."""
    key_file: Path
    """Where the key is if `daemon.toml` names no other file."""
    log_file: Path
    runtime_dir: Path | None
    """The user's runtime directory, for the socket of the default data directory; None = the directory has none."""

    @cached_property
    def daemon_file(self) -> Path:
        return self.data_dir / "daemon.json"

    @cached_property
    def settings_file(self) -> Path:
        return self.data_dir / "daemon.toml"

    @cached_property
    def users_file(self) -> Path:
        return self.data_dir / "users.lock"

    @property
    def has_data(self) -> bool:
        """Whether a daemon has worked there."""
        return (self.data_dir / "data.mdb").exists()


def find_place(data_dir: str | os.PathLike[str] | None, environment: Mapping[str, str] = os.environ) -> Place:
    """Returns the place of a data directory: the given one, else STATEWARD_DATA_DIR, else
    $XDG_DATA_HOME/stateward. Makes nothing. Raises CannotStart if there is no home directory to look in."""
    bases = environment.get("XDG_DATA_HOME"), environment.get("XDG_CONFIG_HOME"), environment.get("XDG_STATE_HOME")
    data, config, state = _bases(bases, environment.get("HOME"), os.geteuid())
    given = data_dir or environment.get("STATEWARD_DATA_DIR")
    path = os.path.realpath(os.path.expanduser(given) if given else data)  # noqa: PTH111  a Path takes much longer
    is_default = not given or (_may_be_same(path, data) and path == os.path.realpath(data))
    return _place(path, config, state, _runtime_dir(environment) if is_default else None, is_default=is_default)


def _may_be_same(path: str, other: str) -> bool:
    """Whether two paths may lead to one directory. Two system calls say no; following all links takes a dozen."""
    return _identity(path) == _identity(other)


def _identity(path: str) -> tuple[int, int] | None:
    try:
        found = os.stat(path)  # noqa: PTH116  the same
    except OSError:
        return None
    return found.st_dev, found.st_ino


@lru_cache(maxsize=64)
def _place(path: str, config: str, state: str, runtime_dir: Path | None, *, is_default: bool) -> Place:
    data_dir = Path(path)
    name = "daemon.log" if is_default else f"daemon-{_hash(data_dir)[:8]}.log"
    return Place(data_dir, Path(config) / "key", Path(state) / name, runtime_dir)


def prepare_data_dir(place: Place) -> None:
    """Makes the data directory, for this user only. Raises CannotStart if it cannot, or if it is another user's."""
    if not os.path.isdir(place.data_dir):  # noqa: PTH112  a Path takes longer
        try:
            place.data_dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise CannotStart(
                f"cannot make the data directory {place.data_dir}: {error.strerror}; give another data_dir, or set "
                "STATEWARD_DATA_DIR"
            ) from None
    check_owner(place)


def check_owner(place: Place) -> None:
    """Raises CannotStart if the data directory belongs to another user: a daemon's files would keep its own user
    out."""
    owner = os.stat(place.data_dir).st_uid  # noqa: PTH116  the same
    if owner not in (os.geteuid(), 0):
        raise CannotStart(
            f"the data directory {place.data_dir} belongs to user {owner}, and this process runs as user "
            f"{os.geteuid()}; give another data_dir"
        )
    if not os.access(place.data_dir, os.W_OK | os.X_OK):
        raise CannotStart(f"the data directory {place.data_dir} is not writable; give another data_dir")


def log_files(place: Place) -> Iterator[Path]:
    """Yields where the log may be, the best first."""
    yield place.log_file
    yield place.data_dir / "daemon.log"


def find_sockets(place: Place, kept: str) -> Iterator[Path]:
    """Yields paths on which the daemon may listen, the best first, and makes the directory of each.

    `kept` is the target of earlier starts. Clients that have it find the new daemon there. Raises CannotStart in place
    of the last path if its directory is not this user's own.
    """
    first = [Path(kept.removeprefix("unix://"))] if kept.startswith("unix://") else []
    if place.runtime_dir is not None:
        first.append(place.runtime_dir / "stateward" / _SOCKET)
    for path in first:
        with suppress(CannotStart):
            yield _prepared(path)
    path = place.data_dir / "run" / _SOCKET
    if len(os.fsencode(path)) <= SOCKET_PATH_BYTES_MAX:
        yield _prepared(path)
    else:
        yield _prepared(_SHORT / f"stateward-{os.geteuid()}" / f"{_hash(place.data_dir)[:16]}.sock")


def _prepared(path: Path) -> Path:
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise CannotStart(f"the socket path {path} is longer than {SOCKET_PATH_BYTES_MAX} bytes")
    directory = path.parent
    try:
        with suppress(FileExistsError):
            directory.mkdir(mode=0o700)
        found = directory.lstat()
    except OSError as error:
        raise CannotStart(f"cannot make the directory {directory} for the socket: {error.strerror}") from None
    if not stat.S_ISDIR(found.st_mode):
        raise CannotStart(f"{directory}, the directory for the socket, is not a directory; remove it")
    if found.st_uid != os.geteuid() or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise CannotStart(
            f"{directory}, the directory for the socket, is not only user {os.geteuid()}'s: it belongs to user "
            f"{found.st_uid} and has mode {stat.S_IMODE(found.st_mode):04o}; remove it"
        )
    with suppress(FileNotFoundError):
        if not stat.S_ISSOCK(path.lstat().st_mode):
            raise CannotStart(f"{path} is in the place of the daemon's socket, and is none; remove it")
    return path


@lru_cache(maxsize=64)
def _bases(given: Sequence[str | None], home: str | None, user: int) -> list[str]:
    """The user's directories for data, settings and state in those of the XDG specification, which says that relative
    paths are ignored."""
    if not home:
        with suppress(KeyError):
            home = pwd.getpwuid(user).pw_dir
    found = []
    for path, default in zip(given, (".local/share", ".config", ".local/state"), strict=True):
        is_absolute = bool(path) and Path(str(path)).is_absolute()
        if not is_absolute and not home:
            raise CannotStart(f"user {user} has no home directory, and HOME is not set; set HOME")
        base = Path(str(path)) if is_absolute else Path(str(home)) / default
        found.append(str(base / "stateward"))
    return found


def _runtime_dir(environment: Mapping[str, str]) -> Path | None:
    """The user's runtime directory, if it is one: it must belong to the user, and only the user may write it."""
    path = Path(environment.get("XDG_RUNTIME_DIR") or "")
    if not path.is_absolute():
        return None
    try:
        found = path.stat()
    except OSError:
        return None
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    is_usable = is_own and not found.st_mode & (stat.S_IWGRP | stat.S_IWOTH) and os.access(path, os.W_OK | os.X_OK)
    return path if is_usable else None


def _hash(path: Path) -> str:
    return hashlib.sha256(os.fsencode(path)).hexdigest()
