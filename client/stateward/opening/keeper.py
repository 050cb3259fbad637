"""What a client of `open()` has of its daemon: the lock that keeps the daemon, and the way to start it again.

Who holds which lock when is described in README.md beside this.
"""

from __future__ import annotations

import os
import threading
import time
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING

from stateward._version import VERSION
from stateward.errors import CannotStart, OtherVersion, ServerUnavailable
from stateward.opening.files import FileLock
from stateward.opening.launch import Died, InUse, launch
from stateward.opening.places import Place, check_owner, prepare_data_dir
from stateward.opening.record import DaemonRecord, find_live, is_live, read_record
from stateward.opening.settings import Asked, check_running
from stateward.opening.stopping import stop_daemon
from stateward.opening.users import users_lock

if TYPE_CHECKING:
    from stateward._io.local import Socket

DEATHS_MAX = 3
"""How often a daemon may be killed while it starts, before `open` gives up."""
PAUSE_MIN_S, PAUSE_MAX_S = 0.05, 1.0


class Keeper:
    """Finds or starts the daemon of a data directory, and keeps it from ending while this process uses it."""

    def __init__(
        self, place: Place, asked: Asked, *, idle_exit_s: float, may_start: bool, patience_s: float, revive_s: float,
        has_credentials: bool = False,
    ) -> None:  # fmt: skip
        self.place = place
        self.target = ""
        """Where the daemon listens."""
        self.trouble = ""
        """Why the daemon could not be started again; "" = it could, or was not tried."""
        self._asked, self._idle_exit_s, self._may_start = asked, idle_exit_s, may_start
        self._patience_s, self._revive_s = patience_s, revive_s
        self._users = users_lock(place)
        self._has_credentials = has_credentials
        self._ahead: list[tuple[Socket, int]] = []  # at most one, and for which user; several threads may ask for it
        self._reviving = (0, False)  # the process, and whether its thread is at work
        self._has_given_up = False
        self._is_released = False

    # -- at the beginning ---------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """Finds or starts the daemon, and keeps it.

        Raises CannotStart, OtherSettings, and ServerUnavailable if no daemon runs and none may be started.
        """
        self._is_released = False
        deadline = time.monotonic() + self._patience_s
        self._look_around()
        try:
            self._share(deadline)
            record = self._see()
            if record is None:
                record = self._start(deadline)
            check_running(self.place, record, self._asked)
            if record.version != VERSION:
                self._drop_ahead()  # the daemon may be stopped
                record = self._meet_other_version(record, deadline)
        except OSError as error:  # too many open files, a disk that fails
            self.release()
            raise CannotStart(f"cannot use the data directory {self.place.data_dir}: {error.strerror}") from None
        except BaseException:
            self.release()
            raise
        self.target = record.target

    def _look_around(self) -> None:
        if self._may_start:
            prepare_data_dir(self.place)
            return
        try:
            is_there = self.place.data_dir.is_dir()
        except OSError as error:
            raise CannotStart(f"cannot look into {self.place.data_dir}: {error.strerror}") from None
        if not is_there:
            raise ServerUnavailable(f"no daemon runs for {self.place.data_dir}: there is no such directory")
        check_owner(self.place)

    def _share(self, deadline: float) -> None:
        if not self._users.is_held and not self._users.take(shared=True, deadline=deadline):
            raise CannotStart(f"the daemon of {self.place.data_dir} is ending, and has not ended in time")

    def _see(self) -> DaemonRecord | None:
        """Returns the daemon that works on the data directory; None if none is ready.

        The connection that shows that it lives is kept for the client's first call. Raises CannotStart."""
        from stateward._io.local import connect_ahead  # noqa: PLC0415  the commands' `--help` needs none of it

        self._drop_ahead()  # of an opening before this one
        record = read_record(self.place)
        if record is None:
            return None
        ahead = None if self._has_credentials else connect_ahead(record.target, record.is_process)
        if ahead is None:
            return record if is_live(record) else None
        self._ahead.append((ahead, os.geteuid()))
        return record

    def _start(self, deadline: float) -> DaemonRecord:
        """Starts the daemon, or finds the one that another process starts."""
        if not self._may_start:
            raise ServerUnavailable(f"no daemon runs for {self.place.data_dir}, and none may be started here")
        lock = FileLock(self.place.data_dir / "start.lock")
        if not lock.take(deadline=deadline):
            raise CannotStart(
                f"process {lock.noted() or 'unknown'} starts the daemon of {self.place.data_dir}, and it is not ready "
                "in time"
            )
        with lock:
            lock.note(f"{os.getpid()}\n")
            return find_live(self.place) or self._launch(deadline)

    def _launch(self, deadline: float) -> DaemonRecord:
        """Does the same. `start.lock` is held."""
        deaths, pause_s = 0, PAUSE_MIN_S
        while True:
            try:
                target = launch(self.place, self._asked, self.target, self._idle_exit_s, deadline)
            except InUse as error:  # it starts, and whoever started it was killed; or it ends
                if time.monotonic() + pause_s > deadline:
                    raise CannotStart(f"{error}; it is not ready in time") from None
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)
            except Died as error:
                deaths += 1
                if deaths == DEATHS_MAX or time.monotonic() > deadline:
                    raise CannotStart(
                        f"the daemon of {self.place.data_dir} ended while it started, {deaths} times: {error}"
                    ) from None
            else:
                # Without daemon.json the disk is full; this client has the target nevertheless.
                return find_live(self.place) or DaemonRecord(0, "", target, VERSION, self._idle_exit_s, "")
            if (found := find_live(self.place)) is not None:
                return found

    def _meet_other_version(self, record: DaemonRecord, deadline: float) -> DaemonRecord:
        """Puts a daemon of this version in the place of an older one that nobody else uses; else warns."""
        lock = FileLock(self.place.data_dir / "start.lock")
        if self._may_start and record.is_ours and record.is_older and lock.take(deadline=deadline):
            with lock:
                self._users.release()
                if self._users.take():  # nobody else uses it, and nobody can begin to
                    stop_daemon(self.place, max(deadline - time.monotonic(), 0), kills=False)
                    record = find_live(self.place) or self._launch(deadline)
                    self._users.share()
                else:
                    self._share(deadline)
                    record = find_live(self.place) or self._launch(deadline)
        if record.version != VERSION:
            warnings.warn(
                f"the daemon of {self.place.data_dir} has version {record.version}, and this client has {VERSION}; "
                + ("stop it when nobody uses it: stateward stop" if record.is_older else "upgrade this client"),
                OtherVersion, stacklevel=4,
            )  # fmt: skip
        return record

    # -- while it is used ---------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Keeps the daemon for this process. A forked child has none of its parent's locks."""
        if self._users.is_held:
            return
        with suppress(CannotStart, OSError):  # the call fails by itself if the daemon is gone
            self._share(time.monotonic() + self._patience_s)

    def ahead(self) -> Socket | None:
        """Returns the connection by which the daemon was seen, for the first caller; None = there is none."""
        try:
            found, uid = self._ahead.pop()
        except IndexError:
            return None
        if uid == os.geteuid():
            return found
        found.close()  # the daemon would see the user that the program was before
        return None

    def _drop_ahead(self) -> None:
        if (ahead := self.ahead()) is not None:
            ahead.close()

    def away(self) -> None:
        """Notes that no daemon answered. Starts it again, on a thread of its own; the call is retried meanwhile."""
        pid = os.getpid()
        if self._reviving == (pid, True):
            return
        self._reviving = (pid, True)
        threading.Thread(target=self._revive, args=(pid,), name="stateward-revive", daemon=True).start()

    def _revive(self, pid: int) -> None:
        try:
            deadline = time.monotonic() + self._revive_s
            record = find_live(self.place)
            if record is None and self._may_start and not (self._has_given_up or self._is_released):
                record = self._start(deadline)
            if record is not None:
                self._has_given_up, self.trouble = False, ""
        except Exception as error:  # noqa: BLE001  (the call that waits raises, with this as its cause)
            self._has_given_up, self.trouble = True, str(error)
        finally:
            self._reviving = (pid, False)

    def release(self) -> None:
        """Lets the daemon end if nobody else uses it, and starts none for calls that nobody waits for any more."""
        self._is_released = True
        self._drop_ahead()
        self._users.release()
