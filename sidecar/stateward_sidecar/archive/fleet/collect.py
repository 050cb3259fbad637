"""Removes from the bucket what nobody can need any more.

The name of an object has the epoch of the process that put it. A process whose epoch is over can never write HEAD
again. So an object that HEAD does not lead to may go if its epoch is older than HEAD's, or if another process put it
than the one that wrote HEAD. An object of HEAD's own process stays if the next HEAD may name it: HEAD says up to which
number its process has forgotten what HEAD does not lead to. After a HEAD that gives the thread up, no HEAD of this
epoch follows, so nothing stays after ``grace``. For each thread the collection lists the objects, reads HEAD, and reads
HEAD again right before it removes anything.

    tombstones         all objects of epochs up to the tombstone's, blobs too; keys up to the epoch of the thread's
                       creation
    live threads       objects that HEAD, its indexes and its garbage do not name, as above; garbage after
                       ``grace``; keys of earlier threads of the name; and, if the owner gave the thread up, blobs that
                       no row names
    claims             names that a process claimed before it ended, and under which nothing was ever archived: given
                       back after ``grace`` if the process was of this disk, or if its HEAD has not changed for a lease
                       since an earlier collection
    expired threads    deleted as by a caller, if the owner gave them up or is this process. It happens an hour after
                       the expiry, because a sidecar that has a copy deletes the thread on time
    no readable HEAD, or a HEAD of a newer version: nothing is removed
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial

from stateward.storage.v1.archive_pb2 import ArchiveHead, ObjectRef
from stateward.v1.archive_service_pb2 import CollectGarbageRequest, CollectGarbageResponse
from stateward.v1.thread_service_pb2 import DeleteThreadRequest
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar import security
from stateward_sidecar.archive.fleet.fleet import Fleet, Found, Survey, in_chunks, object_refs
from stateward_sidecar.archive.fleet.reread import CountedFetcher
from stateward_sidecar.archive.objects.fetch import Seen
from stateward_sidecar.archive.objects.formats import ROTATED_FORMAT, open_format, read_format
from stateward_sidecar.archive.objects.heads import check_writable, is_over
from stateward_sidecar.archive.objects.holds import ArchiveState, Name
from stateward_sidecar.archive.requests.metered import PARALLEL
from stateward_sidecar.archive.requests.places import FORMAT_KEY, THREAD_KEYS, Place, is_blob, origin_of, whole_of
from stateward_sidecar.clock import Clock
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    FeatureUnavailable,
    Locked,
    NotOwner,
    StatewardError,
    ThreadNotFound,
)
from stateward_sidecar.security import DELETED
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.storage.queue import Write
from stateward_sidecar.store.thread.times import has_expired
from stateward_sidecar.telemetry import log
from stateward_sidecar.tracebacks import told

GRACE_S = 3600.0
EXPIRED_S = 3600
# If the wall clock moved by more than this against the boot-time clock, no thread expires, as in the store's sweep.
CLOCK_JUMP_S = 3600.0
KEYS_A_STEP = 500


@dataclass(frozen=True, slots=True)
class Verbs:
    """What is done to an expired thread, and to a claim that nobody uses."""

    own: Callable[[Name], None]
    delete: Callable[[DeleteThreadRequest], object]
    bury_claim: Callable[[NamespaceKeys, Place, Seen], bool]
    remove_locked: Callable[[NamespaceKeys, Place, ArchiveHead], None]


@dataclass(frozen=True, slots=True)
class _Rule:
    """What one collection may remove."""

    dry_run: bool
    unlinked_before_us: int
    expired_before_second: int  # 0 = no thread expires
    now_us: int


class Collector:
    """Runs on the archive's threads."""

    def __init__(self, state: ArchiveState, verbs: Verbs) -> None:
        self._state = state
        self._verbs = verbs
        self._clock_offset_s = _offset(state.context.clock)

    def collect(self, request: CollectGarbageRequest) -> Iterator[CollectGarbageResponse]:
        """Yields the removed keys and progress.

        Raises ArchiveUnavailable, FeatureUnavailable.
        """
        self._check_format()
        clock = self._state.context.clock
        grace_us = request.grace.ToMicroseconds() if request.HasField("grace") else int(GRACE_S * 1e6)
        is_sane = abs(_offset(clock) - self._clock_offset_s) <= CLOCK_JUMP_S
        if not is_sane:
            log.error("the clock jumped by more than an hour; no thread in the archive expires until the next start")
        now_us = clock.now_us()
        expired_before = now_us // 1_000_000 - EXPIRED_S if is_sane else 0
        rule = _Rule(request.dry_run, now_us - grace_us, expired_before, now_us)
        yield from _Run(self._state, self._verbs, rule).collect(request.namespace)

    def _check_format(self) -> None:
        """Raises FeatureUnavailable if a newer version wrote the archive: it may name objects in ways unknown here.
        Raises ArchiveUnavailable if the archive is not there, and Corrupt if somebody changed `_format`."""
        self._state.wire.check_there()
        data = self._state.wire.get(FORMAT_KEY).data
        form = read_format(data)
        if max(form.min_reader, form.min_writer) > ROTATED_FORMAT:
            raise FeatureUnavailable(
                f"the archive has format {max(form.min_reader, form.min_writer)} and this version knows formats up to "
                f"{ROTATED_FORMAT}, so nothing is removed"
            )
        open_format(data, self._state.context.keystore.root_names)


class _Run:
    """One collection."""

    def __init__(self, state: ArchiveState, verbs: Verbs, rule: _Rule) -> None:
        self._state = state
        self._verbs = verbs
        self._rule = rule
        self._fleet = Fleet(state)
        self._fetcher = CountedFetcher(state.wire)
        self._told = CollectGarbageResponse()
        # Where old keys may be left: by namespace and by name, the newest epoch whose key may go.
        self._old_keys: dict[bytes, dict[bytes, int]] = defaultdict(dict)

    def collect(self, namespace: str) -> Iterator[CollectGarbageResponse]:
        survey = Survey()
        for _ in self._fleet.survey(namespace, survey):
            yield self._tell()
        for places in in_chunks(survey.heads):
            listings = self._state.wire.together(*(partial(self._list, place) for place in places))
            for listing, found in zip(listings, self._fleet.heads(places), strict=True):
                self._told.progress.threads += 1
                self._told.progress.items += len(listing)
                try:
                    yield from self._thread(found, listing)
                except StatewardError as error:
                    if isinstance(error, ArchiveUnavailable) and self._state.wire.away_s:
                        raise
                    if isinstance(error, NotOwner):
                        continue  # it has expired, and another sidecar works on it
                    yield self._fail(found, error)
            yield self._tell()
        for place in survey.headless:
            self._told.progress.items += len(self._list(place))
        yield from self._keys()
        yield self._tell()

    def _list(self, place: Place) -> dict[str, int]:
        return dict(self._state.wire.walk(place.prefix))

    def _fail(self, found: Found, error: StatewardError) -> CollectGarbageResponse:
        log.warning("the garbage of a thread was not removed", place=found.place.prefix, error=told(error))
        self._told.failed += 1
        answer = self._tell()
        answer.problem = f"{found.place.prefix}: {error.message}"
        return answer

    def _tell(self, key: str = "") -> CollectGarbageResponse:
        answer = CollectGarbageResponse(key=key)
        answer.MergeFrom(self._told)
        return answer

    # -- objects --------------------------------------------------------------------------------------------------

    def _thread(self, found: Found, listing: dict[str, int]) -> Iterator[CollectGarbageResponse]:
        if found.error is not None:
            raise found.error
        if found.seen is None:
            return
        check_writable(found.seen.head)
        head = found.seen.head
        if self._is_left(found.place, head):
            yield from self._give_back(found)
            return
        if self._is_expired(head):
            key = found.place.key(head.created_epoch)
            found = self._expire(found)
            assert found.seen is not None
            head = found.seen.head
            if head.deleted and head.boot_id == self._state.boot_id and not self._rule.dry_run:
                # Destroyed with the thread, so that nothing lists it any more; a dry run meets it among the keys.
                self._told.progress.items += 1
                self._told.removed += 1
                yield self._tell(key)
        last = head.epoch if head.deleted else head.created_epoch - 1
        if last > 0:
            self._old_keys[found.place.namespace_id][found.place.name_hash] = last
        doomed = self._choose(found, listing)
        if not doomed:
            return
        if not self._rule.dry_run:
            again = self._fleet.heads([found.place])[0]
            if again.seen is None or again.seen.head.epoch != head.epoch or again.seen.head.deleted != head.deleted:
                return  # somebody took or deleted it meanwhile; the next collection looks again
            if again.seen.head.write_id != head.write_id:
                doomed = [key for key in doomed if key in self._choose(again, listing)]
        yield from self._remove(doomed, listing)

    def _choose(self, found: Found, listing: dict[str, int]) -> list[str]:
        """Returns which of the objects, listed before HEAD was read, may go. Raises Corrupt."""
        assert found.seen is not None
        place, head = found.place, found.seen.head
        if head.deleted:
            return [key for key in listing if _is_until(key, head.epoch) or is_blob(key)]
        unlinked = {place.object(item.object): item.time_us for item in head.garbage}
        needed = {place.object(ref) for ref in self._refs(place, head)}
        due = {key for key, time_us in unlinked.items() if self._is_unlinked(time_us)}
        due |= self._unnamed_blobs(found, listing)
        is_given_up = head.detached and self._is_unlinked(head.update_time_us)

        def may_go(key: str) -> bool:
            if key in needed or key in due:
                return key not in needed
            return key not in unlinked and _is_forgotten(key, head, is_given_up=is_given_up)

        return [name for name in listing if may_go(whole_of(name))]

    def _unnamed_blobs(self, found: Found, listing: dict[str, int]) -> set[str]:
        """Returns the blobs that no row names, if the owner gave the thread up. An owner may be putting a blob now."""
        assert found.seen is not None
        place, head = found.place, found.seen.head
        blobs = {whole_of(name) for name in listing if is_blob(name)}
        if not blobs or not head.detached or not self._is_unlinked(head.update_time_us):
            return set()
        read = self._fleet.read([place])[0]
        if read.image is None or read.seen is None or read.seen.head.write_id != head.write_id:
            return set()
        return blobs - {place.blob(row.record.blob_id) for row in read.image.blobs}

    def _is_unlinked(self, time_us: int) -> bool:
        """Returns whether something was dropped long enough ago. A time of the future was told by a wrong clock."""
        return min(time_us, self._rule.now_us) <= self._rule.unlinked_before_us

    def _refs(self, place: Place, head: ArchiveHead) -> Iterator[ObjectRef]:
        yield from object_refs(head)
        for ref, index in self._fetcher.chain(place, head):
            yield ref
            yield from index.objects

    def _remove(self, keys: list[str], sizes: dict[str, int]) -> Iterator[CollectGarbageResponse]:
        for start in range(0, len(keys), PARALLEL):
            some = keys[start : start + PARALLEL]
            if not self._rule.dry_run:
                self._state.wire.together(*(partial(self._state.wire.delete, key) for key in some))
            for key in some:
                if not self._rule.dry_run:
                    self._told.removed += 1
                    self._told.removed_bytes += sizes[key]
                yield self._tell(key)

    # -- keys -----------------------------------------------------------------------------------------------------

    def _keys(self) -> Iterator[CollectGarbageResponse]:
        """Removes keys that are left because a deletion, or a claim that came too late, was interrupted."""
        for namespace_id, names in self._old_keys.items():
            for number, (key, size) in enumerate(self._state.wire.walk(f"{THREAD_KEYS}{namespace_id.hex()}/"), 1):
                if number % KEYS_A_STEP == 0:
                    yield self._tell()
                name, _, epoch = key.rpartition("/")[2].partition(".")
                last = names.get(_from_hex(name), 0)
                if epoch.isdigit() and int(epoch) <= last and self._is_old_key(namespace_id, _from_hex(name), epoch):
                    self._told.progress.items += 1
                    yield from self._remove([key], {key: size})

    def _is_old_key(self, namespace_id: bytes, name_hash: bytes, epoch: str) -> bool:
        """Reads HEAD once more. In a dry run, the threads that would be deleted still exist."""
        seen = self._fleet.heads([Place(namespace_id, name_hash)])[0].seen
        if seen is None:
            return False
        head = seen.head
        is_its_key = int(epoch) == head.created_epoch
        return is_over(head, int(epoch)) or (is_its_key and self._rule.dry_run and self._is_expired(head))

    # -- claims ---------------------------------------------------------------------------------------------------

    def _is_left(self, place: Place, head: ArchiveHead) -> bool:
        """Whether a name was claimed for a thread that was never made: by a process of this disk that has ended, or by
        one that has written nothing for a lease, as far as this process has seen."""
        state = self._state
        if head.deleted or head.tip_sequence or state.context.keystore.has_thread(head.uid):
            return False
        if any(claim.uid == head.uid for claim in list(state.hooks.claims.values())):
            return False
        is_over = state.is_own(head) and head.boot_id != state.boot_id
        is_free = state.observe(place, head) >= state.options.lease_s or is_over or head.detached
        return is_free and self._is_unlinked(head.update_time_us)

    def _give_back(self, found: Found) -> Iterator[CollectGarbageResponse]:
        assert found.seen is not None
        assert found.namespace is not None
        key = found.place.key(found.seen.head.created_epoch)
        if not self._rule.dry_run:
            if not self._verbs.bury_claim(found.namespace, found.place, found.seen):
                return
            self._told.removed += 1
        self._told.progress.items += 1
        yield self._tell(key)

    # -- expired threads ------------------------------------------------------------------------------------------

    def _is_expired(self, head: ArchiveHead) -> bool:
        is_free = head.detached or head.boot_id == self._state.boot_id
        return is_free and not head.deleted and 0 < head.expire_second <= self._rule.expired_before_second

    def _expire(self, found: Found) -> Found:
        """Deletes a thread as by a caller, and returns its HEAD afterwards. Raises NotOwner, Corrupt and others."""
        state, place = self._state, found.place
        read = self._fleet.read([place])[0]
        is_locked = isinstance(read.error, Locked)
        if read.error is not None and not is_locked:
            raise read.error
        assert read.seen is not None
        if not self._is_expired(read.seen.head) or (read.image is None and not is_locked):
            return read
        if self._rule.dry_run:
            buried = ArchiveHead()
            buried.CopyFrom(read.seen.head)
            buried.deleted = True
            read.seen = type(read.seen)(buried, read.seen.etag, None)
            return read
        if read.image is None:
            assert read.namespace is not None
            self._verbs.remove_locked(read.namespace, place, read.seen.head)
            return self._fleet.heads([place])[0]
        head, uid = read.image.head, read.seen.head.uid
        name = head.namespace, head.thread
        request = DeleteThreadRequest(
            namespace=head.namespace, thread=head.thread, options=WriteOptions(expected_uid=uid.hex()),
            allow_missing=True,
        )  # fmt: skip
        with state.locks.of(name):
            try:
                self._verbs.own(name)  # from now on nobody else can change its TTL
            except ThreadNotFound:  # another sidecar has deleted it
                return self._fleet.heads([place])[0]
            here = self._fleet.thread_here(name)
            if here is None or not has_expired(here.head, self._rule.expired_before_second * 1_000_000):
                return self._fleet.heads([place])[0]
            self._verbs.delete(request)
            write = Write(run=state.store.deleter.delete(request), frees_space=True)
            state.context.writer.submit(write, wait=True).wait()
        security.note(DELETED, "an expired thread was deleted", uid=uid.hex(), everywhere=True)
        return self._fleet.heads([place])[0]


def _is_until(key: str, epoch: int) -> bool:
    """Whether an object was put in this epoch or before. False for HEAD, blobs, and foreign objects."""
    origin = origin_of(key)
    return origin is not None and origin.epoch <= epoch


def _is_forgotten(key: str, head: ArchiveHead, *, is_given_up: bool) -> bool:
    """Whether no later HEAD can name an object that this one does not lead to."""
    origin = origin_of(key)
    if origin is None or origin.epoch > head.epoch:
        return False
    if is_given_up or origin.epoch < head.epoch or origin.boot != int.from_bytes(head.boot_id[:8], "big"):
        return True  # of a process that cannot write HEAD under this epoch any more
    return origin.counter <= head.settled_counter


def _from_hex(text: str) -> bytes:
    try:
        return bytes.fromhex(text)
    except ValueError:
        return b""


def _offset(clock: Clock) -> float:
    return clock.now_us() / 1e6 - clock.boottime()
