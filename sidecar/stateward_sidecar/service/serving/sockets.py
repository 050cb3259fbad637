"""Makes unix sockets: their directories and modes, and what stands in their way.

A socket is for its owner and its group. Sockets of the start get their mode from the umask. That holds for the whole
process, so while other threads make files, a socket is made for its owner alone, and gets its mode afterwards.
"""

from __future__ import annotations

import errno
import os
import socket
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

import grpc.aio

from stateward_sidecar.addresses import SOCKET_PATH_BYTES_MAX, beside
from stateward_sidecar.errors import StartError
from stateward_sidecar.service.local.listener import Listener
from stateward_sidecar.settings import private_directory
from stateward_sidecar.telemetry import log

SOCKET_MODE, DIRECTORY_MODE, PRIVATE_MODE = 0o660, 0o750, 0o700


class Place(NamedTuple):
    """Where a socket is made, and for whom."""

    path: Path
    is_own: bool = False
    """Whether it is a principal's, and not everybody's."""

    @property
    def said(self) -> str:
        """How messages name it."""
        return f'socket = "unix://{self.path}" of the access file' if self.is_own else f"--listen unix://{self.path}"

    @property
    def own(self) -> Path | None:
        """The socket, if it is a principal's."""
        return self.path if self.is_own else None


def prepare(place: Place, *, has_frames: bool) -> None:
    """Makes the directory, and removes sockets of a dead daemon. May wait for a second. Raises StartError."""
    path = place.path
    if len(os.fsencode(path)) > SOCKET_PATH_BYTES_MAX:
        raise StartError(f"{place.said}: the path is longer than {SOCKET_PATH_BYTES_MAX} bytes; shorten it")
    try:
        is_private = path.parent == private_directory()
        _make_directory(path.parent, PRIVATE_MODE if is_private else DIRECTORY_MODE)
        if is_private:
            _check_private(path.parent)
        _clear_stale_socket(place, path)
        if has_frames:
            if _has_room(path):
                _clear_stale_socket(place, beside(path))
        else:
            with suppress(StartError, OSError):
                _clear_stale_socket(place, beside(path))  # of a daemon that had one
    except OSError as error:
        raise StartError(f"{place.said}: {error.strerror}") from None


def listen(place: Place, server: grpc.aio.Server, local: Listener | None, *, is_start: bool) -> None:
    """Makes the socket of a server, and that of the local wire beside it. ``is_start``: no other thread makes files.
    Raises StartError."""
    path = place.path
    try:
        if local is not None:
            _listen_beside(place, local, is_start=is_start)  # first: who finds gRPC's socket alone takes gRPC
        with _open_to_group(path, is_start=is_start):
            server.add_insecure_port(f"unix:{path}")
    except OSError as error:
        raise StartError(f"{place.said}: {error.strerror}") from None
    except RuntimeError:
        raise StartError(f"{place.said}: the socket cannot be created; is the directory writable?") from None


def _listen_beside(place: Place, local: Listener, *, is_start: bool) -> None:
    path = beside(place.path)
    if not _has_room(place.path):
        log.info("there is no socket for frames, because its path would be too long", path=str(path))
        return
    try:
        with _open_to_group(path, is_start=is_start):
            local.bind(path, place.own)
    except PermissionError:
        raise  # gRPC's socket could not be made, either
    except OSError as error:
        raise StartError(f"{place.said}: {path}: {error.strerror}; or give --no-frames") from None


def _has_room(path: Path) -> bool:
    """Whether the path of the second socket is not too long."""
    return len(os.fsencode(beside(path))) <= SOCKET_PATH_BYTES_MAX


@contextmanager
def _open_to_group(path: Path, *, is_start: bool) -> Iterator[None]:
    """Gives the socket that is made inside its mode."""
    if not is_start:
        yield
        _set_mode(path)
        return
    before = os.umask(0o777 & ~SOCKET_MODE)
    try:
        yield
    finally:
        os.umask(before)


def _set_mode(path: Path) -> None:
    """Never that of something else: whoever may write the directory may put a link in the socket's place."""
    if sys.platform != "linux":
        os.chmod(path, SOCKET_MODE, follow_symlinks=False)  # noqa: PTH101  Path.chmod has it only from here on
        return
    descriptor = os.open(path, os.O_PATH | os.O_NOFOLLOW)
    try:
        if not stat.S_ISSOCK(os.fstat(descriptor).st_mode):
            raise StartError(f"{path} is no socket any more: somebody else writes that directory")
        os.chmod(f"/proc/self/fd/{descriptor}", SOCKET_MODE)  # noqa: PTH101  a descriptor of this kind has no fchmod
    finally:
        os.close(descriptor)


def _make_directory(directory: Path, mode: int) -> None:
    """Makes the socket's directory and those above it, all with one mode: the socket's group has to get through."""
    missing = [each for each in (directory, *directory.parents) if not each.exists()]
    for each in reversed(missing):
        try:
            each.mkdir()
        except FileExistsError:
            continue
        descriptor = os.open(each, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        try:
            os.fchmod(descriptor, os.fstat(descriptor).st_mode & stat.S_ISGID | mode)  # that bit may be inherited
        finally:
            os.close(descriptor)
    if not directory.is_dir():
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))


def _check_private(directory: Path) -> None:
    """Anybody may make a directory of that name in /tmp. Raises StartError if it is not this user's own."""
    found = directory.lstat()
    is_own = stat.S_ISDIR(found.st_mode) and found.st_uid == os.geteuid()
    if not is_own or found.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        raise StartError(
            f"{directory}, the directory for the socket, is not only user {os.geteuid()}'s: it belongs to user "
            f"{found.st_uid} and has mode {stat.S_IMODE(found.st_mode):04o}; remove it, or give --listen"
        )


def _clear_stale_socket(place: Place, path: Path) -> None:
    """Removes the socket of a dead daemon. Raises StartError if anything else is at the path."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise StartError(f"{place.said}: {path} exists and is not a socket; remove it, or listen elsewhere")
    probe = socket.socket(socket.AF_UNIX)
    try:
        probe.settimeout(1)
        probe.connect(os.fspath(path))
    except (ConnectionRefusedError, FileNotFoundError):
        path.unlink(missing_ok=True)
        return
    except OSError:
        pass  # a daemon is there, and too busy to answer
    finally:
        probe.close()
    raise StartError(f"{place.said}: another daemon answers there; stop it, or listen elsewhere")
