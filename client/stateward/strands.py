"""Storage of Strands Agents in Stateward. Needs the extra `strands`."""

from __future__ import annotations

import builtins
import json
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from strands.storage import Storage
from strands.types.exceptions import StorageError

from stateward._async.client import AsyncClient
from stateward._connected import Connected
from stateward._keeping import keep, kept
from stateward._naming import HASHED, NAME_BYTES_MAX, is_orphans, name_for, text_of
from stateward._settling import settle
from stateward._spreading import Spreader, logs_of
from stateward._telling import COMPLETED, RUNNING, Told, prompt_of, waiting
from stateward.changes import SetSlot
from stateward.durations import Duration
from stateward.errors import StatewardError, ThreadNotFound, UidMismatch, VersionMismatch
from stateward.models import Checkpoint
from stateward.options import Retention
from stateward.values import OCTETS, RawValue

__all__ = ["StatewardStorage"]

SLOT = "data"
PREFIX = "strands/"
# A key that is too long for a name is in this slot, too.
KEY = "key"
# Each thread has its folders as labels, so that an index leads from a folder to its keys. Deeper folders have none.
FOLDER, FOLDERS_MAX = "strands_folder_", 16
# The newest snapshot of an agent tells a status. A larger one is not looked into: that would take as long as its save.
LATEST_KEY, PARSED_BYTES_MAX = "/snapshots/snapshot_latest.json", 1 << 20
LATEST = Retention(keep_last=1)
# The daemon stores only what differs from the value before, wherever that is. Larger values are spread over a log.
SPREAD_BYTES = 32 << 20
# How many keys are remembered with the versions that were seen of them.
SEEN_MAX = 10_000


class StatewardStorage(Connected, Storage[str, str]):
    """Keeps each key as a thread of Stateward, whose slot `data` has the bytes.

    It implements the framework's `Storage`, for sessions, memory, and everything else. A value is durable when `write`
    returns, and takes only the difference from the value before. Deleting a key destroys the key that encrypts it. Keys
    are opaque, but a slash ends a folder: `list` finds the keys of a folder by an index. A write or a deletion that is
    cancelled comes to its end first: when CancelledError comes, it is done, or never will be.

    The last writer of a key wins, as in the framework's own storages. But if somebody else deleted a key since this
    object read or wrote it, a write raises StorageError until the key is read again: a late write of a session does not
    bring it back. With `write_ownership` a write raises
    StorageError if somebody else wrote the key since this object read or wrote it: then two processes cannot continue
    one session unnoticed. `retention` says which earlier values of a key are kept; by default none is, except for the
    seconds until the daemon's next sweep. None = all of them; `stateward history` shows them. `ttl` says how long after
    its last write a key is deleted, None = never. Both are used when the first write of a key makes its thread.

    `client` is an AsyncClient that you keep; without it the storage makes one from `target`, `namespace` and the
    further options of `stateward.AsyncClient`, and `close` closes it.
    """

    def __init__(
        self,
        *,
        write_ownership: bool = False,
        ttl: Duration | None = None,
        retention: Retention | None = LATEST,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        **options: Any,
    ) -> None:
        options = options if client else {"blob_threshold": SPREAD_BYTES, **options}
        super().__init__(client, target, namespace, options, ttl=ttl, retention=retention)
        self._write_ownership = write_ownership
        self._seen: OrderedDict[str, Checkpoint | int] = OrderedDict()
        self._spreader = Spreader(self._client)

    async def write(self, key: str, data: bytes) -> None:
        """Stores data under a key. Raises StorageError, and TypeError for data that are no bytes."""
        await settle(self._write(key, memoryview(data).tobytes()))

    async def _write(self, key: str, data: bytes) -> None:
        create = replace(self._made_with, labels=_labels(key))
        parent = self._seen.get(key) if self._write_ownership else None
        thread, value = self._continued(self._name(key)), {SLOT: RawValue(OCTETS, data)}
        changes = [SetSlot(KEY, keep(key, "key"))] if thread.name.startswith(PREFIX + HASHED) else []
        with _explained(f"{key!r} is not written"):
            made = await self._spreader.apply(
                thread, value, changes, parent=parent, create=create, **_status_of(key, data)
            )
        self._see(key, made)

    async def read(self, key: str) -> bytes | None:
        """Returns the data of a key; None = there is no such key. Raises StorageError."""
        with _explained(f"{key!r} cannot be read"):
            state = await self._client.thread(self._name(key)).hydrate(slots=[SLOT], logs=logs_of([SLOT]))
            spread = self._spreader.read(self._name(key), state, [SLOT])
        self._see(key, state.checkpoint or 0)
        data: bytes | None = spread[SLOT].data if SLOT in spread else state.slots.get(SLOT)
        return data

    async def delete(self, key: str) -> None:
        """Removes a key, if it is there. Raises StorageError."""
        await settle(self._delete(key))

    async def _delete(self, key: str) -> None:
        with _explained(f"{key!r} is not deleted"):
            await self._client.thread(self._name(key)).delete(missing_ok=True)
        self._spreader.forget(self._name(key))
        self._see(key, 0)

    async def list(self, query: str = "") -> builtins.list[str]:
        """Returns the keys that begin with `query`, in order. Raises StorageError."""
        folders = _labels(query)
        deepest = dict([folders.popitem()]) if folders else None
        with _explained(f"keys with {query!r} cannot be listed"):
            infos = self._client.threads(labels=deepest, page_size=1000)
            found = {info.name async for info in infos}
            names = {name for name in found if name.startswith(PREFIX) and not is_orphans(name)}
            keys = [await self._key_of(name) for name in names]
        return sorted(key for key in keys if key is not None and key.startswith(query))

    async def _key_of(self, name: str) -> str | None:
        """Returns the key of a thread; None = it was deleted meanwhile."""
        key = text_of(name.removeprefix(PREFIX))
        if key is None:
            key = kept((await self._client.thread(name).hydrate(slots=[KEY])).slots.get(KEY))
        return key

    def _name(self, key: str) -> str:
        if not key:
            raise StorageError("a key must not be empty")
        return PREFIX + name_for(key, NAME_BYTES_MAX - len(PREFIX))

    def _see(self, key: str, version: Checkpoint | int) -> None:
        self._work_on(self._name(key), version.uid if isinstance(version, Checkpoint) else "")
        if self._write_ownership:
            self._seen[key] = version
            self._seen.move_to_end(key)
            if len(self._seen) > SEEN_MAX:
                self._seen.popitem(last=False)


def _status_of(key: str, data: bytes) -> Told:
    """What the newest snapshot of an agent tells; of other keys, and of what is no snapshot, nothing is told."""
    if not key.endswith(LATEST_KEY):
        return {}
    if len(data) > PARSED_BYTES_MAX:
        return RUNNING
    try:
        held = json.loads(data)["data"]
        state = held.get("interrupt_state") or {}
        if state.get("activated"):
            open_ = [each for each in state["interrupts"].values() if each.get("response") is None]
            return waiting((each["id"], _prompt(each), None) for each in open_) if open_ else RUNNING
        last = held["messages"][-1]
        calls = any("toolUse" in part for part in last["content"])
        return COMPLETED if last["role"] == "assistant" and not calls else RUNNING
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        return RUNNING  # of another form, such as that of several agents


def _prompt(interrupt: dict[str, Any]) -> str:
    reason = interrupt.get("reason")
    return interrupt["name"] if reason is None else f"{interrupt['name']}: {prompt_of(reason)}"


def _labels(key: str) -> dict[str, str]:
    """The folders of a key, the outermost first: `a/b/c` is in `a` and in `a/b`."""
    parts = key.split("/")[:-1][:FOLDERS_MAX]
    return {f"{FOLDER}{depth}": name_for("/".join(parts[:depth])) for depth in range(1, len(parts) + 1)}


@contextmanager
def _explained(text: str) -> Iterator[None]:
    try:
        yield
    except VersionMismatch as error:
        raise StorageError(f"{text}: somebody else wrote it since it was read here") from error
    except (ThreadNotFound, UidMismatch) as error:
        raise StorageError(f"{text}: somebody else deleted it since it was read or written here") from error
    except StatewardError as error:
        raise StorageError(f"{text}: {error}") from error
