"""The key-encryption keys of an archive: which keys wrap its root, which sidecars use which, and the change to another.

    rotate     wraps the root with the new key, too: the key object of the root has two wraps, the old one first. Before
               the first object with two wraps, `_format` is raised, because older versions read only the first one
    restart    each sidecar, at any time, with the new key: it finds its wrap, and replaces the one in its own key store
    retire     removes the old wrap, and refuses while a sidecar runs that was started with the old key

Every step may be repeated, and may end anywhere: `_format` and the root are replaced by compare-and-swap, each in one
request, and sidecars with either key start in between. No sidecar has to stop for a rotation. Nothing below the root
changes; `innerkeys.py` changes the root itself and the keys of namespaces.

A sidecar puts an object when it is ready, and removes it when it stops and all that it has is archived. Else the object
stays, as that of a sidecar which was killed, until the next process on its disk removes it: what its disk alone has
must stay readable, and only the key that it was started with may open it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import ArchiveFormat, KeyObject, KeyUser
from stateward_sidecar.archive.objects.formats import (
    ROTATED_FORMAT,
    check_format,
    open_format,
    pack_format,
    read_format,
)
from stateward_sidecar.archive.objects.keys import checked, slots_of
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import FORMAT_KEY, KEY_USERS, ROOT_KEY, user_key
from stateward_sidecar.bucket.base import ObjectChanged
from stateward_sidecar.codec.seal import KEY_BYTES, Cipher, NameKey, open_record, seal_record
from stateward_sidecar.errors import Corrupt, NewerFormat, StartError
from stateward_sidecar.storage.keyslots import generation_of
from stateward_sidecar.storage.keywraps import open_root, wrap_root, wrapping_id, wrapping_id_of
from stateward_sidecar.storage.secretfiles import fingerprint

TRIES_MAX = 5
USER_MAGIC, USER_PURPOSE = b"SU", b"key users"
_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class User:
    """A sidecar that runs, was killed, or stopped with something that the archive lacks."""

    boot_id: bytes
    key_id: str
    owner_id: str
    start: datetime
    root_generation: int
    stop: datetime | None = None
    unarchived: int = 0
    """Threads of which its disk alone has something; known if it has stopped."""

    def told(self) -> str:
        """The sidecar in words."""
        if self.stop is None:
            return f"{self.owner_id} (since {self.start:%Y-%m-%d %H:%M} UTC)"
        threads = f"{self.unarchived} thread{'s' * (self.unarchived != 1)}"
        return (
            f"{self.owner_id} (stopped {self.stop:%Y-%m-%d %H:%M} UTC with {threads} of which its disk alone has "
            "something)"
        )


@dataclass(frozen=True, slots=True)
class RootKeys:
    """Which keys wrap the root, oldest first, and who uses them."""

    archive_id: str
    key_ids: tuple[str, ...]
    generations: dict[int, datetime | None]
    """Of the root, with the time when each was added; None = with the archive."""
    users: tuple[User, ...]


def list_keys(wire: Wire, key: bytes) -> RootKeys:
    """Returns the keys that wrap the root, and the sidecars. Raises StartError, ArchiveUnavailable."""
    found, _ = read_root(wire)
    slots = slots_in(found)
    roots = open_all(slots, key)
    form, _ = _read_format(wire, names_of(roots))
    users = sorted(_users(wire, names_of(roots)), key=lambda user: (user.owner_id, user.start))
    return RootKeys(form.archive_id.hex(), _key_ids(slots), times_of(found), tuple(users))


def find_archive_id(wire: Wire, key: bytes) -> str:
    """Returns the id of an archive in hex; empty = there is none yet. Whether somebody changed it is known if the key
    opens the archive; b"" = no key. Raises StartError, ArchiveUnavailable."""
    found = wire.find(FORMAT_KEY)
    if found is None:
        return ""
    rooted = wire.find(ROOT_KEY) if key else None
    try:
        slots = slots_of(rooted.data) if rooted is not None else []
        root = next(filter(None, (open_root(slot, key) for slot in slots)), None)
        form = open_format(found.data, NameKey(root[KEY_BYTES:])) if root else read_format(found.data)
    except Corrupt as error:
        raise StartError(f"--archive: {error.message}") from None
    return form.archive_id.hex()


def rotate(wire: Wire, key: bytes, other: bytes, now_us: int) -> bool:
    """Wraps the root with another key, too. Returns False if that key wraps it already. Raises StartError,
    ArchiveUnavailable."""
    for _ in range(TRIES_MAX):
        found, etag = read_root(wire)
        slots = slots_in(found)
        roots = open_all(slots, key)
        if any(wrapping_id_of(slot) == wrapping_id(other) for slot in slots):
            open_all(slots, other)
            return False
        raise_format(wire, names_of(roots))
        for generation, root in sorted(roots.items()):
            added = next(wrap for wrap in found.wraps if generation_of(wrap.wrapped) == generation)
            add_wrap(found, wrap_root(root, other, generation), added.add_time_us or now_us)
        if _replace(wire, found, etag):
            return True
    raise StartError("somebody else changes the keys of the archive at the same time; try again")


def retire(wire: Wire, key: bytes, key_id: str, *, is_forced: bool) -> None:
    """Removes the wraps by a key. Raises StartError if it is the last one or ``key`` itself, or if a sidecar uses it
    and nobody insists, and ArchiveUnavailable."""
    for _ in range(TRIES_MAX):
        found, etag = read_root(wire)
        slots = slots_in(found)
        roots = open_all(slots, key)
        _read_format(wire, names_of(roots))
        if key_id not in map(_key_id, slots):
            raise StartError(f"the key {key_id} does not open this archive; {_told(slots)}")
        if key_id == fingerprint(key):
            raise StartError(f"{key_id} is the key that this command was given; give the one that stays")
        users = [user for user in _users(wire, names_of(roots)) if user.key_id == key_id]
        if users and not is_forced:
            raise StartError(
                f"{len(users)} of the sidecars were started with the key {key_id}: "
                f"{', '.join(user.told() for user in users[:10])}. Start them with the other key first; --force if "
                "they are gone for good"
            )
        kept = [wrap for wrap in found.wraps if _key_id(wrap.wrapped) != key_id]
        if _replace(wire, KeyObject(wraps=kept), etag):
            return
    raise StartError("somebody else changes the keys of the archive at the same time; try again")


def describe_user(
    boot_id: bytes, wrapping: bytes, cipher: Cipher, owner_id: str, start_time_us: int, root_generation: int,
    stop_time_us: int, unarchived: int,
) -> bytes:  # fmt: skip
    """Returns the bytes of a sidecar's object."""
    owner = seal_record(cipher, USER_MAGIC, owner_id.encode(), boot_id)
    return KeyUser(
        wrapping_id=wrapping, start_time_us=start_time_us, owner=owner, root_generation=root_generation,
        stop_time_us=stop_time_us, unarchived_threads=unarchived,
    ).SerializeToString()  # fmt: skip


def _users(wire: Wire, name_key: bytes) -> Iterator[User]:
    cipher = Cipher(hmac.digest(name_key, USER_PURPOSE, "sha256"))
    for name, _ in list(wire.walk(KEY_USERS)):
        found = wire.find(name)
        if found is None:  # it has stopped
            continue
        try:
            boot_id = bytes.fromhex(name.removeprefix(KEY_USERS))
            user = KeyUser.FromString(found.data)
            owner_id = open_record(cipher, USER_MAGIC, user.owner, boot_id).decode()
            start, stop = (datetime.fromtimestamp(us / 1e6, UTC) for us in (user.start_time_us, user.stop_time_us))
        except (ValueError, DecodeError, Corrupt, OverflowError):
            raise StartError(f"{name} in the archive cannot be read; remove it if no sidecar is as old") from None
        assert name == user_key(boot_id)
        stopped = stop if user.stop_time_us else None
        key_id = user.wrapping_id[:_ID_BYTES].hex()
        yield User(boot_id, key_id, owner_id, start, user.root_generation, stopped, user.unarchived_threads)


def read_root(wire: Wire) -> tuple[KeyObject, str]:
    """Returns the key object of the root, and its etag. Raises StartError, ArchiveUnavailable."""
    found = wire.find(ROOT_KEY)
    if found is None:
        raise StartError("--archive: there is no archive at this URL, or it lost its root key")
    return parse_keys(found.data), found.etag


def parse_keys(data: bytes) -> KeyObject:
    """Reads a key object. Raises StartError."""
    try:
        for slot in slots_of(data):
            checked(slot)
        return KeyObject.FromString(data)
    except (Corrupt, NewerFormat) as error:
        raise StartError(f"--archive: {error.message}") from None


def slots_in(found: KeyObject) -> list[bytes]:
    """The slots in a key object."""
    return [bytes(wrap.wrapped) for wrap in found.wraps]


def add_wrap(found: KeyObject, slot: bytes, time_us: int) -> None:
    """Adds a wrap to a key object."""
    found.wraps.add(wrapping_id=wrapping_id_of(slot), wrapped=slot, add_time_us=time_us)


def times_of(found: KeyObject) -> dict[int, datetime | None]:
    """When each generation was added to a key object, the oldest first."""
    times = {generation_of(wrap.wrapped): wrap.add_time_us for wrap in reversed(found.wraps)}
    return {each: datetime.fromtimestamp(us / 1e6, UTC) if us else None for each, us in sorted(times.items())}


def open_all(slots: list[bytes], key: bytes) -> dict[int, bytes]:
    """Root key ‖ root name key of each generation. Raises StartError if the key does not open all of them."""
    own = [slot for slot in slots if wrapping_id_of(slot) == wrapping_id(key)]
    found = {generation_of(slot): pair for slot in own if (pair := open_root(slot, key)) is not None}
    if not found or len(found) < len(own):
        raise StartError(f"KEY_UNAVAILABLE: the key {fingerprint(key)} does not open the archive; {_told(slots)}")
    return found


def names_of(roots: dict[int, bytes]) -> bytes:
    """The root name key, which all generations share."""
    return roots[max(roots)][KEY_BYTES:]


def _replace(wire: Wire, found: KeyObject, etag: str) -> bool:
    try:
        wire.replace(ROOT_KEY, found.SerializeToString(), etag)
        return True
    except ObjectChanged:
        return False


def _key_ids(slots: list[bytes]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(map(_key_id, slots)))


def _told(slots: list[bytes]) -> str:
    return f"it is wrapped by {', '.join(_key_ids(slots))}"


def _key_id(slot: bytes) -> str:
    return wrapping_id_of(slot)[:_ID_BYTES].hex()


def _read_format(wire: Wire, name_key: bytes) -> tuple[ArchiveFormat, str]:
    found = wire.find(FORMAT_KEY)
    if found is None:
        raise StartError("--archive: there is no archive at this URL, or it lost its _format object")
    try:
        check_format(read_format(found.data))
        return open_format(found.data, NameKey(name_key)), found.etag
    except Corrupt as error:
        raise StartError(f"--archive: {error.message}") from None


def raise_format(wire: Wire, name_key: bytes) -> None:
    """Keeps older versions out, which read the first wrap of a key object only. Raises StartError."""
    for _ in range(TRIES_MAX):
        form, etag = _read_format(wire, name_key)
        if min(form.min_reader, form.min_writer) >= ROTATED_FORMAT:
            return
        form.min_reader = form.min_writer = form.format = ROTATED_FORMAT
        try:
            wire.replace(FORMAT_KEY, pack_format(form, NameKey(name_key)), etag)
        except ObjectChanged:
            continue
    form, _ = _read_format(wire, name_key)
    if min(form.min_reader, form.min_writer) < ROTATED_FORMAT:
        raise StartError("the archive's _format object changes all the time; try again")
