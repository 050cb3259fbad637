"""Objects of a thread that this process has put, or is putting, and that no HEAD names yet.

An upload is paid once. A ship whose HEAD fails leaves its objects here, and the next ship names them instead of putting
them again. Tails and small snapshots are put in the background, one at a time, while HEAD carries them. What no later
HEAD can use is deleted. HEAD says up to which number the owner has forgotten everything else (``settled``), so
``stateward archive gc`` can remove the rest, such as an upload that landed after its error, while the owner lives.

If the bucket is set back while HEAD stays the same, it loses spare objects, and nothing else shows it. So an object
that was put some time ago is asked for before a HEAD names it.

Changed under the lock of the thread's name. Background uploads add their object when they end.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeAlias

from stateward.storage.v1.archive_pb2 import (
    OBJECT_KIND_PACK,
    OBJECT_KIND_SNAPSHOT,
    ArchiveHead,
    Garbage,
    ObjectKind,
    ObjectRef,
)
from stateward_sidecar.archive.requests.metered import Job, Wire
from stateward_sidecar.archive.requests.places import Place
from stateward_sidecar.errors import ArchiveUnavailable

# Dropped objects for which HEAD has no room, and that this process remembers until their time.
DROPPED_MAX = 4096  # `stateward archive gc` finds the others
# For how many seconds an object that was put is surely there. Nobody sets a bucket back to a moment ago.
SURE_S = 60.0
_Name: TypeAlias = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class _Spare:
    ref: ObjectRef
    after: int = -1  # packs of the newest entries: the pack has all entries after this sequence up to its last one
    put_at: float = 0.0  # in seconds on the boot-time clock


@dataclass(frozen=True, slots=True)
class _Upload:
    spare: _Spare
    join: Callable[[], object]  # ends with the upload, and raises its error


class Spares:
    """The spare objects of one thread."""

    def __init__(self) -> None:
        self._spares: dict[bytes, _Spare] = {}  # by content
        self._uploads: dict[bytes, _Upload] = {}  # in the background
        # Objects that HEAD dropped and has no room for; those that the HEAD that is being made drops, or deletes.
        self._dropped = deque[Garbage]()
        self._dropping, self._due = list[Garbage](), list[Garbage]()
        self._used = set[_Name]()  # by the HEAD that is being made, also if one of its indexes names them
        self._is_over = False  # whether a HEAD that gives the thread up has landed: no HEAD of this process follows

    def begin(self) -> None:
        """Begins a HEAD, which uses no spare object yet."""
        self._used.clear()
        self._dropping, self._due = [], []

    def _use(self, ref: ObjectRef) -> ObjectRef:
        self._used.add(_name(ref))
        return ref

    # -- putting --------------------------------------------------------------------------------------------------

    def stage(
        self, wire: Wire, place: Place, ref: ObjectRef, data: bytes,
        add: Callable[[int, Callable[[], object]], None], *, content: bytes = b"", after: int = -1,
    ) -> ObjectRef:  # fmt: skip
        """Adds the upload of an object by ``add``, unless there is a spare one with the same content. Returns the
        reference that HEAD must name. ``content``: identifies the content if the bytes do not."""
        key = content or ref.sha256
        upload = self._uploads.get(key)  # first: what ends meanwhile is a spare then
        found = self._spares.get(key)
        if found is not None and found.ref.kind == ref.kind:
            return self._use(found.ref)
        if upload is not None and upload.spare.ref.kind == ref.kind:
            add(0, upload.join)
            return self._use(upload.spare.ref)
        add(ref.size_bytes, partial(self._put, wire, place, key, _Spare(ref, after), data))
        return self._use(ref)

    def find(self, kind: ObjectKind, content: bytes) -> ObjectRef | None:
        """Returns the spare object with this content."""
        found = self._spares.get(content)
        return self._use(found.ref) if found is not None and found.ref.kind == kind else None

    def send(self, wire: Wire, place: Place, ref: ObjectRef, data: bytes, *, after: int = -1) -> None:
        """Begins to put an object in the background."""
        spare = _Spare(ref, after)

        def put() -> None:
            try:
                self._put(wire, place, ref.sha256, spare, data)
            finally:
                self._uploads.pop(ref.sha256, None)

        job = Job(put)
        self._uploads[ref.sha256] = _Upload(spare, partial(wire.join, job))
        wire.begin(job)

    def _put(self, wire: Wire, place: Place, key: bytes, spare: _Spare, data: bytes) -> None:
        now = wire.now()
        wire.put(place.object(spare.ref), data)
        self._spares[key] = replace(spare, put_at=now)
        if self._is_over:
            self._spares.pop(key, None)
            wire.delete(place.object(spare.ref), spare.ref.size_bytes)

    # -- using ----------------------------------------------------------------------------------------------------

    def packs(self, after: int, until: int) -> Iterator[ObjectRef]:
        """Yields packs that continue each other, with all entries after a sequence, and none after ``until``."""
        while True:
            found = [
                each.ref for each in list(self._spares.values())
                if each.after == after and each.ref.kind == OBJECT_KIND_PACK and each.ref.last_sequence <= until
            ]  # fmt: skip
            if not found:
                return
            ref = max(found, key=lambda ref: ref.last_sequence)
            yield self._use(ref)
            after = ref.last_sequence

    def upload_of_pack(self, after: int, until: int) -> tuple[ObjectRef, Callable[[], object]] | None:
        """Returns the pack with the entries after a sequence that is being put in the background, and a call that ends
        when it is there, or raises its error."""
        for each in list(self._uploads.values()):
            if each.spare.after == after and each.spare.ref.last_sequence <= until:
                return self._use(each.spare.ref), each.join
        return None

    @property
    def has_packs(self) -> bool:
        """Whether a pack of the newest entries is here or on its way."""
        return any(each.after >= 0 for each in self._all())

    @property
    def has_unused_packs(self) -> bool:
        """The same of packs that the HEAD that is being made does not use."""
        return any(each.after >= 0 and _name(each.ref) not in self._used for each in self._all())

    def _all(self) -> list[_Spare]:
        under_way = [each.spare for each in list(self._uploads.values())]  # first: what ends meanwhile is a spare then
        return [*under_way, *list(self._spares.values())]

    def snapshot(self, version: int) -> ObjectRef | None:
        """Returns the spare object of a snapshot."""
        found = (each.ref for each in list(self._spares.values()) if each.ref.kind == OBJECT_KIND_SNAPSHOT)
        return next((self._use(ref) for ref in found if ref.first_version == version), None)

    def sends_snapshot(self, version: int) -> bool:
        """Whether a snapshot is being put in the background."""
        refs = (each.spare.ref for each in list(self._uploads.values()))
        return any(ref.kind == OBJECT_KIND_SNAPSHOT and ref.first_version == version for ref in refs)

    def check(self, wire: Wire, place: Place, add: Callable[[int, Callable[[], object]], None]) -> None:
        """Adds a request, by ``add``, for each object that the HEAD that is being made uses, and that was put some time
        ago. It raises ArchiveUnavailable if the object is gone; the next ship then puts it again."""
        now = wire.now()
        for spare in list(self._spares.values()):
            if _name(spare.ref) in self._used and now - spare.put_at > SURE_S:
                add(0, partial(self._ask, wire, place, spare.ref))

    def _ask(self, wire: Wire, place: Place, ref: ObjectRef) -> None:
        key = place.object(ref)
        if not wire.has(key, ref.size_bytes):
            for content in [content for content, spare in list(self._spares.items()) if spare.ref is ref]:
                self._spares.pop(content, None)  # uploads that end at this moment add theirs
            raise ArchiveUnavailable(f"the bucket lost object {key}; shipping again")

    # -- letting go -----------------------------------------------------------------------------------------------

    def landed(self, head: ArchiveHead, missing: Collection[int]) -> list[ObjectRef]:
        """Forgets what a HEAD that landed uses, and returns what no later HEAD can use. No HEAD ever named that: an
        earlier one that did not land cannot land any more. ``missing``: versions whose snapshots were not archived when
        HEAD was made. An upload that ended late may have put another object for one that was. If HEAD gives the
        thread up, uploads that are still under way remove their objects themselves."""
        useless = list[ObjectRef]()
        self._is_over = head.detached
        for item in self._due:
            self._dropped.remove(item)
        self._dropped.extend(self._dropping[: max(DROPPED_MAX - len(self._dropped), 0)])
        self._dropping, self._due = [], []
        archived = {ref.first_version for ref in head.objects if ref.kind == OBJECT_KIND_SNAPSHOT}
        for key, spare in list(self._spares.items()):
            ref = spare.ref
            is_next = spare.after >= head.packed_sequence or (
                ref.kind == OBJECT_KIND_SNAPSHOT
                and ref.first_version in missing
                and ref.first_version not in archived
            )
            if _name(ref) in self._used:
                del self._spares[key]
            elif self._is_over or not is_next:
                del self._spares[key]
                useless.append(ref)
        return useless

    def drop(self, item: Garbage) -> None:
        """Remembers an object that HEAD drops and has no room for, once this HEAD has landed. The last HEAD may still
        need it."""
        self._dropping.append(item)

    def due(self, is_due: Callable[[Garbage], bool]) -> list[ObjectRef]:
        """Returns dropped objects that may be deleted once this HEAD has landed."""
        self._due = [item for item in self._dropped if is_due(item)]
        return [item.object for item in self._due]

    def settled(self, boot: int, last: int) -> int:
        """Returns up to which number of this process (``boot``, whose newest number is ``last``) every object is used
        by HEAD or needed by nobody."""
        uploads = [each.spare.ref for each in list(self._uploads.values())]
        kept = [*uploads, *(each.ref for each in list(self._spares.values())), *(item.object for item in self._dropped)]
        return min([last, *(ref.counter - 1 for ref in kept if ref.boot == boot and _name(ref) not in self._used)])


def _name(ref: ObjectRef) -> _Name:
    return ref.epoch, ref.boot, ref.counter
