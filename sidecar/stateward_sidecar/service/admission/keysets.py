"""When the keys of an issuer are read, and for how long they count. Used on the event loop; reads in threads.

Keys are read again every five minutes, when their file changes, and when a token names a key that is not known, but
then not within five seconds of the last read. If they cannot be read, those that were read last count for another hour.
"""

from __future__ import annotations

import threading
from pathlib import Path
from time import monotonic

from stateward_sidecar import security
from stateward_sidecar.security import CHANGED
from stateward_sidecar.service.admission.issuers import Source
from stateward_sidecar.service.admission.jwks import Key, KeysWrong, read_keys
from stateward_sidecar.storage.files import stamp_of
from stateward_sidecar.telemetry import log

REFRESH_S = 300.0
RETRY_S = 10.0
"""After a read that failed."""
UNKNOWN_PAUSE_S = 5.0
"""From the end of a read to the next one for a key that is not known."""
FILE_PAUSE_S = 0.5
"""How often the daemon looks whether a file is another one."""
STALE_S = 3600.0
"""How long keys count after they were read last."""


class KeySet:
    """The keys of a source, as they are now."""

    def __init__(self, source: Source) -> None:
        self.keys: dict[str, Key] = {}
        self.why = "they were not read yet"
        """Why there is no newer set of keys; empty = the last read succeeded."""
        self.source = source
        self._stamp: tuple[int, ...] | None = None
        self.asked_s = float("-inf")
        """When the read began whose keys these are: whoever published a key before is heard."""
        # When the keys were read, and when a read began and ended.
        self._read_s = self._began_s = self._ended_s = float("-inf")
        self._is_reading, self._is_told, self._has_changed = False, False, False
        self._outcome: dict[str, Key] | KeysWrong | None = None  # of a thread

    def read_now(self) -> None:
        """Reads a file. Raises KeysWrong."""
        self._stamp, asked_s = stamp_of(Path(self.source.jwks)), monotonic()
        self.keys, self.why, self._read_s, self.asked_s = read_keys(self.source), "", monotonic(), asked_s

    @property
    def pause_s(self) -> float:
        """How long it takes until a read is under way, if a token needs one."""
        if self._is_reading:
            return 0.0
        pause_s = max(self._ended_s + UNKNOWN_PAUSE_S - monotonic(), 0.0)
        return pause_s if self.source.is_url else min(pause_s, FILE_PAUSE_S)

    @property
    def is_reading(self) -> bool:
        """Whether a read is under way."""
        return self._is_reading

    def look(self) -> bool:
        """Begins a read if it is time, and takes the outcome of one that has ended. Returns whether the keys are others
        now."""
        now_s = monotonic()
        self._take()
        if not self._is_reading and self._is_due(now_s):
            self._begin(now_s)
        return self.look_at_age()

    def look_at_age(self) -> bool:
        """Drops keys that are too old. Returns whether the keys are others now. Reads nothing."""
        if self.keys and monotonic() - self._read_s > STALE_S:
            log.error("the keys of an issuer are too old; its tokens open nothing until they can be read",
                      jwks=self.source.jwks, why=self.why)  # fmt: skip
            self.keys, self._has_changed = {}, True
        has_changed, self._has_changed = self._has_changed, False
        return has_changed

    def find(self, kid: str) -> Key | None:
        """Returns a key. None = it is not known; begins a read for it, unless the last one has just ended."""
        if self._outcome is not None:
            self._take()
        if kid not in self.keys and not self._is_reading and monotonic() - self._ended_s >= UNKNOWN_PAUSE_S:
            self._begin(monotonic())
        return self.keys.get(kid)

    def _is_due(self, now_s: float) -> bool:
        if self.source.is_url:
            return now_s - self._began_s >= (RETRY_S if self.why else REFRESH_S)
        if stamp_of(Path(self.source.jwks)) != self._stamp:
            return True
        if not self.why:
            self._read_s = self.asked_s = now_s
        return bool(self.why) and now_s - self._began_s >= RETRY_S

    def _begin(self, now_s: float) -> None:
        self._is_reading, self._began_s = True, now_s
        threading.Thread(target=self._work, name="stateward-jwks", daemon=True).start()

    def _work(self) -> None:
        if not self.source.is_url:
            self._stamp = stamp_of(Path(self.source.jwks))
        try:
            self._outcome = read_keys(self.source)
        except KeysWrong as error:
            self._outcome = error
        except Exception as error:  # noqa: BLE001  (else no read would ever follow)
            self._outcome = KeysWrong(f"cannot be read: {type(error).__name__}")

    def _take(self) -> None:
        outcome, self._outcome = self._outcome, None
        if outcome is None:
            return
        self._is_reading, self._ended_s = False, monotonic()
        if isinstance(outcome, KeysWrong):
            self.why = str(outcome)
            if not self._is_told:
                log.error("the keys of an issuer are not read; those that were read last count for an hour",
                          jwks=self.source.jwks, why=self.why, keys=len(self.keys))  # fmt: skip
            self._is_told = True
            return
        if outcome != self.keys:
            self._has_changed = True  # also if `find` takes it, and `look` comes later
        if self._is_told or self._has_changed:
            security.note(CHANGED, "read the keys of an issuer", jwks=self.source.jwks, keys=len(outcome))
        self.keys, self.why, self._read_s, self._is_told = outcome, "", self._ended_s, False
        self.asked_s = self._began_s
