"""The key-encryption keys of an archive: which keys wrap its root, which sidecars use which, and the change to another.

    rotate     wraps the root with the new key, too: the key object of the root has two wraps, the old one first. Before
               the first object with two wraps, `_format` is raised, because older versions read only the first one
    restart    each sidecar, at any time, with the new key: it finds its wrap, and replaces the one in its own key store
    retire     removes the old wrap, and refuses while a sidecar runs that was started with the old key

Every step may be repeated, and may end anywhere: `_format` and the root are replaced by compare-and-swap, each in one
request, and sidecars with either key start in between. No sidecar has to stop for a rotation: a daemon reads the root
at its start only. Nothing below the root changes.

A sidecar puts an object when it is ready, and removes it when it stops. One that was killed leaves it, until the next
process on its disk removes it.
"""

from __future__ import annotations

import hmac
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from google.protobuf.message import DecodeError

from stateward.storage.v1.archive_pb2 import ArchiveFormat, KeyUser
from stateward_sidecar.archive.objects.formats import (
    ROTATED_FORMAT,
    check_format,
    open_format,
    pack_format,
    read_format,
)
from stateward_sidecar.archive.objects.keys import key_object, slots_of
from stateward_sidecar.archive.requests.metered import Wire
from stateward_sidecar.archive.requests.places import FORMAT_KEY, KEY_USERS, ROOT_KEY, user_key
from stateward_sidecar.bucket.base import ObjectChanged
from stateward_sidecar.codec.seal import KEY_BYTES, Cipher, NameKey, open_record, seal_record
from stateward_sidecar.errors import Corrupt, StartError
from stateward_sidecar.storage.keystore import open_root, wrap_root, wrapping_id, wrapping_id_of
from stateward_sidecar.storage.secretfiles import fingerprint

TRIES_MAX = 5
USER_MAGIC, USER_PURPOSE = b"SU", b"key users"
_ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class User:
    """A sidecar that runs, or was killed."""

    boot_id: bytes
    key_id: str
    owner_id: str
    start: datetime


@dataclass(frozen=True, slots=True)
class RootKeys:
    """Which keys wrap the root, oldest first, and who uses them."""

    archive_id: str
    key_ids: tuple[str, ...]
    users: tuple[User, ...]


def list_keys(wire: Wire, key: bytes) -> RootKeys:
    """Returns the keys that wrap the root, and the sidecars. Raises StartError, ArchiveUnavailable."""
    slots, _ = _read_root(wire)
    root = _open(slots, key)
    form, _ = _read_format(wire, root)
    users = sorted(_users(wire, root), key=lambda user: (user.owner_id, user.start))
    return RootKeys(form.archive_id.hex(), tuple(map(_key_id, slots)), tuple(users))


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


def rotate(wire: Wire, key: bytes, other: bytes) -> bool:
    """Wraps the root with another key, too. Returns False if that key wraps it already. Raises StartError,
    ArchiveUnavailable."""
    for _ in range(TRIES_MAX):
        slots, etag = _read_root(wire)
        root = _open(slots, key)
        if any(wrapping_id_of(slot) == wrapping_id(other) for slot in slots):
            _open(slots, other)
            return False
        _raise_format(wire, root)
        try:
            wire.replace(ROOT_KEY, key_object(*slots, wrap_root(root, other)), etag)
            return True
        except ObjectChanged:
            continue
    raise StartError("somebody else changes the keys of the archive at the same time; try again")


def retire(wire: Wire, key: bytes, key_id: str, *, is_forced: bool) -> None:
    """Removes the wrap by a key. Raises StartError if it is the last one or ``key`` itself, or if a sidecar uses it and
    nobody insists, and ArchiveUnavailable."""
    for _ in range(TRIES_MAX):
        slots, etag = _read_root(wire)
        root = _open(slots, key)
        _read_format(wire, root)
        if key_id not in map(_key_id, slots):
            raise StartError(f"the key {key_id} does not open this archive; {_told(slots)}")
        if key_id == fingerprint(key):
            raise StartError(f"{key_id} is the key that this command was given; give the one that stays")
        users = [user for user in _users(wire, root) if user.key_id == key_id]
        if users and not is_forced:
            names = ", ".join(f"{user.owner_id} (since {user.start:%Y-%m-%d %H:%M} UTC)" for user in users[:10])
            raise StartError(
                f"{len(users)} of the sidecars were started with the key {key_id}: {names}. Start them with the other "
                "key first; --force if they are gone for good"
            )
        try:
            wire.replace(ROOT_KEY, key_object(*(slot for slot in slots if _key_id(slot) != key_id)), etag)
            return
        except ObjectChanged:
            continue
    raise StartError("somebody else changes the keys of the archive at the same time; try again")


def describe_user(boot_id: bytes, wrapping: bytes, cipher: Cipher, owner_id: str, start_time_us: int) -> bytes:
    """Returns the bytes of a sidecar's object."""
    owner = seal_record(cipher, USER_MAGIC, owner_id.encode(), boot_id)
    return KeyUser(wrapping_id=wrapping, start_time_us=start_time_us, owner=owner).SerializeToString()


def _users(wire: Wire, root: bytes) -> Iterator[User]:
    cipher = Cipher(hmac.digest(root[:KEY_BYTES], USER_PURPOSE, "sha256"))
    for name, _ in list(wire.walk(KEY_USERS)):
        found = wire.find(name)
        if found is None:  # it has stopped
            continue
        try:
            boot_id = bytes.fromhex(name.removeprefix(KEY_USERS))
            user = KeyUser.FromString(found.data)
            owner_id = open_record(cipher, USER_MAGIC, user.owner, boot_id).decode()
            start = datetime.fromtimestamp(user.start_time_us / 1e6, UTC)
        except (ValueError, DecodeError, Corrupt, OverflowError):
            raise StartError(f"{name} in the archive cannot be read; remove it if no sidecar is as old") from None
        assert name == user_key(boot_id)
        yield User(boot_id, user.wrapping_id[:_ID_BYTES].hex(), owner_id, start)


def _read_root(wire: Wire) -> tuple[list[bytes], str]:
    found = wire.find(ROOT_KEY)
    if found is None:
        raise StartError("--archive: there is no archive at this URL, or it lost its root key")
    try:
        return slots_of(found.data), found.etag
    except Corrupt as error:
        raise StartError(f"--archive: {error.message}") from None


def _open(slots: list[bytes], key: bytes) -> bytes:
    for slot in slots:
        if wrapping_id_of(slot) == wrapping_id(key) and (root := open_root(slot, key)) is not None:
            return root
    raise StartError(f"KEY_UNAVAILABLE: the key {fingerprint(key)} does not open the archive; {_told(slots)}")


def _told(slots: list[bytes]) -> str:
    return f"it is wrapped by {', '.join(map(_key_id, slots))}"


def _key_id(slot: bytes) -> str:
    return wrapping_id_of(slot)[:_ID_BYTES].hex()


def _read_format(wire: Wire, root: bytes) -> tuple[ArchiveFormat, str]:
    found = wire.find(FORMAT_KEY)
    if found is None:
        raise StartError("--archive: there is no archive at this URL, or it lost its _format object")
    try:
        check_format(read_format(found.data))
        return open_format(found.data, NameKey(root[KEY_BYTES:])), found.etag
    except Corrupt as error:
        raise StartError(f"--archive: {error.message}") from None


def _raise_format(wire: Wire, root: bytes) -> None:
    for _ in range(TRIES_MAX):
        form, etag = _read_format(wire, root)
        if min(form.min_reader, form.min_writer) >= ROTATED_FORMAT:
            return
        form.min_reader = form.min_writer = form.format = ROTATED_FORMAT
        try:
            wire.replace(FORMAT_KEY, pack_format(form, NameKey(root[KEY_BYTES:])), etag)
        except ObjectChanged:
            continue
    form, _ = _read_format(wire, root)
    if min(form.min_reader, form.min_writer) < ROTATED_FORMAT:
        raise StartError("the archive's _format object changes all the time; try again")
