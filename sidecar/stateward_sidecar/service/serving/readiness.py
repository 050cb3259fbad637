"""Whether the daemon is ready: it can take a save, and will be able to read it again.

A round every second looks for each cause that speaks against it. A cause that holds makes the daemon not ready, and is
logged once. Calls are served nevertheless, as far as they can be: readiness only tells clients and orchestrators where
new work is better off. Liveness never changes, because a restart helps against none of the causes.

| cause | holds while |
| --- | --- |
| draining | the daemon is drained |
| disk | map or disk have no room for a save, or the last commit found the disk full |
| data | the data file or the key store were removed or replaced: what is committed would be lost with the process |
| key | the key file is missing or holds another key: the next start could not open the data |
| archive | the bucket denies or refuses requests, or is away while saves are archived by default |
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from time import monotonic
from typing import TYPE_CHECKING

from stateward.v1.checkpoint_pb2 import DURABILITY_ARCHIVED, Durability
from stateward_sidecar.errors import StartError
from stateward_sidecar.settings import KeySource
from stateward_sidecar.storage.engine import DATA_FILE, Engine
from stateward_sidecar.storage.secretfiles import fingerprint, read_key_file
from stateward_sidecar.storage.wrappedkey import is_wrapped, read_wrapped
from stateward_sidecar.storage.writer import Writer
from stateward_sidecar.store.store import KEYS_FILE
from stateward_sidecar.telemetry import failures, log

if TYPE_CHECKING:  # a daemon without an archive does not load it
    from stateward_sidecar.archive.archive import Archive

ROUND_S = 1.0
# How often the archive is asked whether a key file that was replaced holds its next key.
ASK_KEY_S = 10.0
# A file system that does not answer for so long makes the daemon not ready.
ANSWER_S = 5.0
# A small save takes five pages. The daemon is ready again when there is room for some of them.
ROOM_MIN_BYTES, ROOM_AGAIN_BYTES = 64 << 10, 256 << 10
# How long the bucket may be away if saves are archived by default, and how often it is asked whether it is back.
AWAY_S, ASK_S = 5.0, 10.0
DRAINING, DISK, DATA, KEY, ARCHIVE = "draining", "disk", "data", "key", "archive"
# Returns why the cause holds; empty = it does not hold.
Check = Callable[[], str]


class Readiness:
    """Knows the causes that hold. Used on the event loop; any thread may read ``reasons``."""

    def __init__(self, checks: Mapping[str, Check], set_ready: Callable[[bool], Awaitable[None]]) -> None:
        self._checks = checks
        self._set_ready = set_ready
        # One thread of its own: a file system that hangs holds no other.
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="readiness")
        self._round: asyncio.Future[dict[str, str]] | None = None
        # By cause; empty = it does not hold.
        self.reasons = dict.fromkeys((DRAINING, *checks), "")

    @property
    def is_ready(self) -> bool:
        """Whether no cause holds."""
        return not any(self.reasons.values())

    def list_reasons(self) -> list[str]:
        """Returns the causes that hold, for people: ``disk: the disk is full``."""
        return [f"{cause}: {why}" for cause, why in self.reasons.items() if why]

    async def hold(self, cause: str, why: str) -> None:
        """Says that a cause holds, or with an empty text that it no longer does."""
        before, self.reasons[cause] = self.reasons[cause], why
        if bool(before) == bool(why):
            return
        if why:
            log.error("not ready", cause=cause, reason=why)
        else:
            log.info("a cause for not being ready is over", cause=cause, ready=self.is_ready)
        await self._set_ready(self.is_ready)

    async def look(self) -> None:
        """Runs the checks once, on a worker, because they ask the file system. Waits for a round that still runs."""
        if self._round is None:
            self._round = asyncio.get_running_loop().run_in_executor(self._worker, self._check)
        try:
            async with asyncio.timeout(ANSWER_S):
                found = await asyncio.shield(self._round)
        except TimeoutError:
            found = {DATA: f"the file system has not answered for {ANSWER_S:g} s"}
        finally:
            if self._round.done():
                self._round = None
        for cause, why in found.items():
            await self.hold(cause, why)

    def _check(self) -> dict[str, str]:
        return {cause: check() for cause, check in self._checks.items()}

    async def watch(self) -> None:
        """Looks for ever."""
        while True:
            await asyncio.sleep(ROUND_S)
            try:
                await self.look()
            except Exception:  # noqa: BLE001  (the next round looks again)
                failures.note("readiness")


def check_room(engine: Engine, writer: Writer) -> Check:
    """Returns the check whether map and disk have room."""
    was_full = False

    def check() -> str:
        nonlocal was_full
        room_bytes = engine.room_bytes()
        is_full = room_bytes < (ROOM_AGAIN_BYTES if was_full else ROOM_MIN_BYTES)
        if not is_full and writer.found_full:  # also by a quota, which the file system's free space does not show
            is_full = not engine.can_grow(ROOM_AGAIN_BYTES)
            writer.found_full = is_full
        was_full = is_full
        return "map or disk are full; free space, prune, or give a larger --map-size" if is_full else ""

    return check


def check_data(engine: Engine) -> Check:
    """Returns the check whether the files that the process has open are still those of the data directory."""
    directory, keys = engine.directory, (engine.directory / KEYS_FILE).stat().st_ino

    def check() -> str:
        for name in (DATA_FILE, KEYS_FILE):
            try:
                if engine.is_in_place() if name == DATA_FILE else (directory / name).stat().st_ino == keys:
                    continue
            except FileNotFoundError:
                pass
            except OSError as error:
                return f"{directory / name} cannot be looked at: {error.strerror}"
            return (
                f"{directory / name} was removed or replaced while the daemon runs; committed versions will be lost "
                "when it ends: export the threads, then restore the directory"
            )
        return ""

    return check


def check_key(source: KeySource, key: bytes, is_next: Callable[[str], bool] | None = None) -> Check:
    """Returns the check whether the key file still holds the key, or one that a rotation made the next (``is_next``, by
    its fingerprint). No service is asked: one that is away stops no agent."""
    expected, path = fingerprint(key), source.path
    nexts, asked_at = set[str](), float("-inf")

    def check() -> str:
        nonlocal asked_at
        if path is None:
            return ""
        try:
            is_plain = source.kind == "file" and not is_wrapped(path)
            found = fingerprint(read_key_file(path)) if is_plain else read_wrapped(path).key_id
        except StartError as error:
            return f"{error.message}; the next start will fail"
        if found != expected and found not in nexts and is_next is not None and monotonic() > asked_at + ASK_KEY_S:
            asked_at = monotonic()
            nexts.update({found} if is_next(found) else ())
        if found != expected and found not in nexts:
            return f"the key file {path} holds key {found} now, and the data need {expected}; put that key back"
        return ""

    return check


def check_archive(archive: Archive, default_durability: Durability) -> Check:
    """Returns the check whether the bucket takes what the daemon ships."""
    wire = archive.state.wire
    asked_at = float("-inf")

    def check() -> str:
        nonlocal asked_at
        why = ""
        if wire.refuses:
            why = f"the bucket refuses requests: {wire.error}"
        elif default_durability == DURABILITY_ARCHIVED and wire.away_s > AWAY_S:
            why = f"the bucket is away, and saves are archived by default: {wire.error}"
        if why and wire.now() - asked_at > ASK_S:
            asked_at = wire.now()
            wire.ask_again(tries_write=True)
        return why

    return check
