"""An overview of the archive, for commands only: its threads, their HEADs, and what this disk has of them.

It lists the bucket.

    survey      one walk over all names: where there are HEADs, and where there are objects without a HEAD
    heads       the HEADs of many threads, in one round trip
    read        the same with keys and images: one round trip, and a second one if a name was used before or an image is
                too large for HEAD

A thread that cannot be read has its error in the result. The other threads are read all the same.

Compares a HEAD that was read with what this disk knows of the thread. Changes nothing.

Lists the threads in the archive, and with ``index`` keeps the listed threads on this disk.

With ``index``, a thread that this disk lacks is installed from its image alone. ListThreads then shows it, and a
hydrate fetches the rest. Copies without entries are installed again from the new image, and copies with entries are
brought up to HEAD. Threads that are no copies are left alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import TypeVar

from stateward.storage.v1.archive_pb2 import ArchiveHead, ObjectRef, ThreadImage
from stateward.v1.archive_service_pb2 import ListArchiveRequest, ListArchiveResponse
from stateward.v1.thread_pb2 import THREAD_ACCESS_ORPHAN, THREAD_ACCESS_OWNED, THREAD_ACCESS_REMOTE
from stateward.v1.thread_pb2 import ThreadInfo as ThreadMessage
from stateward_sidecar.archive.objects.fetch import Seen
from stateward_sidecar.archive.objects.heads import open_head
from stateward_sidecar.archive.objects.holds import ArchiveState, Name, row_of
from stateward_sidecar.archive.objects.image import open_image, part_refs
from stateward_sidecar.archive.objects.judge import Local, Verdict, judge
from stateward_sidecar.archive.objects.keys import ThreadKey, open_thread
from stateward_sidecar.archive.objects.packs import check_object
from stateward_sidecar.archive.own.takeover import Attacher
from stateward_sidecar.archive.requests.metered import PARALLEL
from stateward_sidecar.archive.requests.places import FIRST_EPOCH, HEAD, THREADS, Place, place_of
from stateward_sidecar.bucket.base import Object
from stateward_sidecar.codec.seal import Cipher
from stateward_sidecar.errors import (
    ArchiveUnavailable,
    Corrupt,
    DiskFull,
    KeyUnavailable,
    Locked,
    ShuttingDown,
    StatewardError,
)
from stateward_sidecar.storage import layout
from stateward_sidecar.storage.namespacekeys import NamespaceKeys
from stateward_sidecar.store.journal.views import add_archive, view_head
from stateward_sidecar.store.thread.thread import Identity, Thread, rows
from stateward_sidecar.store.thread.threads import not_found
from stateward_sidecar.store.travel.install import Incoming, entries_here

# After this many keys a command reports that it is alive, and can be cancelled.
KEYS_A_STEP = 500

T = TypeVar("T")
Answer = Object | ArchiveUnavailable | None


@dataclass(slots=True)
class Survey:
    """The result of a walk over the bucket."""

    heads: list[Place] = field(default_factory=list)
    # Places with objects and without HEAD. HEAD is made first and never deleted, so somebody removed it from outside.
    headless: list[Place] = field(default_factory=list)


@dataclass(slots=True)
class Found:
    """A thread in the archive as it was read. ``error`` says why a part is missing that is needed."""

    place: Place
    namespace: NamespaceKeys | None = None
    seen: Seen | None = None
    image: ThreadImage | None = None
    error: StatewardError | None = None
    head_bytes: int = 0  # size of HEAD in the bucket

    @property
    def is_live(self) -> bool:
        """Whether HEAD was read and is neither a tombstone nor a claim without entries."""
        return self.seen is not None and not self.seen.head.deleted and not self.seen.is_empty


class Fleet:
    """Reads many threads. Made for one command; runs on the archive's threads."""

    def __init__(self, state: ArchiveState) -> None:
        self._state = state
        self._namespaces: dict[bytes, NamespaceKeys | StatewardError] = {}

    # -- finding --------------------------------------------------------------------------------------------------

    def survey(self, namespace: str, into: Survey) -> Iterator[None]:
        """Walks over the bucket or one namespace. Yields from time to time. Raises ArchiveUnavailable."""
        prefix = THREADS
        if namespace:
            prefix += self._state.context.keystore.namespace_id(namespace).hex() + "/"
        has_head: dict[Place, bool] = {}
        number = 0
        for number, (key, _) in enumerate(self._state.wire.walk(prefix), 1):
            folder, _, name = key.rpartition("/")
            place = place_of(f"{folder}/{HEAD}")
            if place is not None:
                has_head[place] = has_head.get(place, False) or name == HEAD
            if number % KEYS_A_STEP == 0:
                yield
        if not number:
            self._state.wire.check_there()  # an archive that is not mounted looks empty
        into.heads = [place for place, found in has_head.items() if found]
        for places in in_chunks([place for place, found in has_head.items() if not found]):
            self._sort(places, into)  # the bucket may have changed during the listing
            yield

    def _sort(self, places: Sequence[Place], into: Survey) -> None:
        for found in self.heads(places):
            is_there = found.seen is not None or found.error is not None
            (into.heads if is_there else into.headless).append(found.place)

    def add_lost(self, namespace: str, into: Survey) -> Iterator[None]:
        """Adds threads that were archived according to this disk, but of which the bucket has nothing.

        HEAD contains the whole of a small thread. If HEAD is lost, nothing is left to list. Yields from time to time.
        """
        state, keystore = self._state, self._state.context.keystore
        wanted = keystore.namespace_id(namespace) if namespace else b""
        listed = {*into.heads, *into.headless}
        with state.context.engine.read() as txn:
            known = [(key[1:], layout.unpack_name(value)) for key, value in rows(txn, b"N")]
        for names in in_chunks(known):
            places = []
            for name_hash, (number, uid) in names:
                place = Place(keystore.namespace_of(uid) or b"", name_hash)
                is_meant = place not in listed and wanted in (b"", place.namespace_id)
                if is_meant and self._was_archived(number):
                    places.append(place)
            if places:
                self._sort(places, into)
            yield

    def _was_archived(self, number: int) -> bool:
        try:
            with self._state.context.engine.read() as txn:
                thread = self._state.store.threads.head(txn, number)
        except StatewardError:
            return False  # Verify of the disk reports it
        return (
            thread is not None
            and thread.archive is not None
            and thread.access != THREAD_ACCESS_ORPHAN
            and max(thread.archived_sequence, thread.archive.head.tip_sequence) > 0
        )

    def place(self, namespace: str, name: str) -> Place:
        """Returns the place of a thread. Raises ThreadNotFound, KeyUnavailable, ArchiveUnavailable."""
        keys = self._state.keys.find_namespace(namespace)
        if keys is None:
            raise not_found(namespace, name)
        return self._state.place(keys, name)

    def name_here(self, place: Place) -> Name | None:
        """Returns this disk's name for the thread of a place; None if it has none or cannot read it."""
        state = self._state
        try:
            with state.context.engine.read() as txn:
                row = txn.get(layout.name_key(place.name_hash))
                thread = state.store.threads.head(txn, layout.unpack_name(row)[0]) if row is not None else None
        except StatewardError:
            return None
        if thread is None or thread.identity.namespace_keys.id != place.namespace_id:
            return None
        return thread.identity.namespace, thread.name

    def thread_here(self, name: Name) -> Thread | None:
        """Returns the thread on this disk; None = there is none. Raises Corrupt, KeyUnavailable."""
        with self._state.context.engine.read() as txn:
            return self._state.store.threads.find(txn, *name)

    # -- reading --------------------------------------------------------------------------------------------------

    def heads(self, places: Sequence[Place]) -> list[Found]:
        """Reads and opens HEADs. Raises ArchiveUnavailable if the bucket answers no request."""
        return [
            self._open_head(place, answer)
            for place, answer in zip(places, self._ask([place.head for place in places]), strict=True)
        ]

    def read(self, places: Sequence[Place]) -> list[Found]:
        """Reads HEADs with their keys and images. Raises as ``heads`` does."""
        keys = [place.head for place in places] + [place.key(FIRST_EPOCH) for place in places]
        answers = self._ask(keys)
        founds = [self._open_head(place, answer) for place, answer in zip(places, answers, strict=False)]
        guesses = dict(zip(places, answers[len(places) :], strict=True))
        wanted = dict[str, Answer]()
        for found in founds:
            wanted.update(dict.fromkeys(_more(found)))
        wanted = dict(zip(wanted, self._ask(list(wanted)), strict=True))
        for found in founds:
            if found.is_live:
                self._open_rest(found, guesses[found.place], wanted)
        return founds

    def _ask(self, keys: Sequence[str]) -> list[Answer]:
        wire = self._state.wire

        def find(key: str) -> Answer:
            try:
                return wire.find(key)
            except ArchiveUnavailable as error:
                return error

        answers = wire.together(*(partial(find, key) for key in keys))
        failed = [answer for answer in answers if isinstance(answer, ArchiveUnavailable)]
        if len(failed) == len(keys) > 1:
            raise failed[0]
        return answers

    def namespace(self, identity: bytes) -> NamespaceKeys:
        """Returns the keys of a namespace, and fetches them once. Raises KeyUnavailable, Corrupt."""
        found = self._namespaces.get(identity)
        if found is None:
            try:
                found = self._state.keys.by_id(identity) or KeyUnavailable(
                    "the key of its namespace is not in the archive", namespace_id=identity.hex()
                )
            except (KeyUnavailable, Corrupt) as error:
                found = error
            self._namespaces[identity] = found
        if isinstance(found, StatewardError):
            raise found
        return found

    def _open_head(self, place: Place, answer: Answer) -> Found:
        found = Found(place)
        try:
            found.namespace = self.namespace(place.namespace_id)
            if isinstance(answer, ArchiveUnavailable):
                raise answer
            if answer is not None:  # else it was removed since the listing
                found.head_bytes = len(answer.data)
                found.seen = Seen(open_head(found.namespace, place, answer.data), answer.etag, None)
        except StatewardError as error:
            found.error = error
        return found

    def _open_rest(self, found: Found, guess: Answer, more: dict[str, Answer]) -> None:
        place, namespace = found.place, found.namespace
        assert found.seen is not None
        assert namespace is not None
        head = found.seen.head
        try:
            key = _open_key(namespace, more.get(place.key(head.created_epoch), guess))
            if key.uid != head.uid:
                raise Corrupt("HEAD and the key object belong to two threads")
            found.seen = Seen(head, found.seen.etag, key)
            parts = [_read_part(ref, more[place.object(ref)]) for ref in part_refs(head)]
            image = open_image(Cipher(key.data_key), head, parts)
            name_hash = namespace.names.thread(image.head.thread)
            own_id = self._state.context.keystore.namespace_id(image.head.namespace)
            if (own_id, name_hash) != (place.namespace_id, place.name_hash):
                raise Corrupt(f"HEAD is stored under another name than that of its thread {image.head.thread!r}")
            found.image = image
        except StatewardError as error:
            found.error = error

    # -- for answers ----------------------------------------------------------------------------------------------

    def explain(self, found: Found) -> str:
        """Returns the error of a thread, with the thread's name if it is known."""
        assert found.error is not None
        name = self.name_here(found.place)
        where = f"thread {name[1]!r} of namespace {name[0]!r}" if name else found.place.prefix.rstrip("/")
        return f"{where}: {found.error.message}"

    def view(self, found: Found) -> ThreadMessage:
        """Returns a thread that was read in the form of lists."""
        seen, image = found.seen, found.image
        assert seen is not None
        assert image is not None
        assert seen.key is not None
        assert found.namespace is not None
        head, name = seen.head, (image.head.namespace, image.head.thread)
        held = self._state.store.threads.cached(*name)
        access = THREAD_ACCESS_OWNED if held is not None and held.number in self._state.holds else THREAD_ACCESS_REMOTE
        identity = Identity(0, seen.key.uid, *name, found.namespace, seen.key.data_key)
        return add_archive(view_head(identity, image.head), row_of(head, access), head.tip_sequence)


def in_chunks(items: Sequence[T]) -> Iterator[list[T]]:
    """Yields the items in chunks that are read in one round trip each."""
    rest = iter(items)
    while chunk := list(islice(rest, PARALLEL)):
        yield chunk


def object_refs(head: ArchiveHead) -> list[ObjectRef]:
    """Returns the objects that HEAD itself names and needs."""
    return [*head.objects, *part_refs(head), *([head.index] if head.HasField("index") else [])]


def _more(found: Found) -> Iterator[str]:
    """Yields what else must be read: the key, if it is not that of the first epoch, and parts of an image."""
    if not found.is_live:
        return
    assert found.seen is not None
    head = found.seen.head
    if head.created_epoch != FIRST_EPOCH:
        yield found.place.key(head.created_epoch)
    yield from map(found.place.object, part_refs(head))


def _open_key(namespace: NamespaceKeys, answer: Answer) -> ThreadKey:
    if isinstance(answer, ArchiveUnavailable):
        raise answer
    if answer is None:
        raise KeyUnavailable("the thread's key is not in the archive")
    return open_thread(answer.data, namespace)


def _read_part(ref: ObjectRef, answer: Answer) -> bytes:
    if isinstance(answer, ArchiveUnavailable):
        raise answer
    if answer is None:
        raise Corrupt("an object with a part of the thread's image, which HEAD names, is missing in the archive")
    check_object(ref, answer.data)
    return answer.data


def known_head(state: ArchiveState, thread: Thread) -> ArchiveHead:
    """Returns HEAD as this disk last wrote or accepted it; empty if it never did."""
    hold = state.holds.get(thread.number)
    if hold is not None:
        return hold.head
    return thread.archive.head if thread.archive is not None else ArchiveHead()


def judge_here(state: ArchiveState, thread: Thread, known: ArchiveHead, head: ArchiveHead) -> Verdict:
    """Judges by HEAD alone, without the entries in the bucket. ``known``: see ``known_head``."""
    local = Local(
        thread.identity.uid, known, thread.head.tip_sequence, thread.floor_sequence,
        lambda sequence: state.outbox.digest_at(thread.identity, sequence), state.boots, state.former,
    )  # fmt: skip
    return judge(local, head).verdict


class ArchiveLister:
    """Lists threads. Runs on the archive's threads."""

    def __init__(self, state: ArchiveState, attacher: Attacher) -> None:
        self._state = state
        self._attacher = attacher

    def list(self, request: ListArchiveRequest) -> Iterator[ListArchiveResponse | None]:
        """Yields an answer for each thread, also if it cannot be read. Yields None while there is no answer yet, so
        that the caller can cancel.

        Raises ArchiveUnavailable, and with ``index`` DiskFull, ShuttingDown.
        """
        fleet, survey = Fleet(self._state), Survey()
        yield from fleet.survey(request.namespace, survey)
        if not request.elsewhere:
            yield from fleet.add_lost(request.namespace, survey)
        for places in in_chunks(survey.heads):
            yield None
            if request.elsewhere:
                places = [place for place in places if fleet.name_here(place) is None]
            for found in fleet.read(places):
                if isinstance(found.error, Locked):
                    yield self._outline(found)
                elif found.error is not None:
                    yield ListArchiveResponse(problem=fleet.explain(found))
                elif found.is_live:
                    yield self._answer(fleet, found, keep=request.index)
        for place in () if request.elsewhere else survey.headless:
            lost = Found(place, error=Corrupt("HEAD is missing in the archive"))
            yield ListArchiveResponse(problem=fleet.explain(lost))

    @staticmethod
    def _outline(found: Found, thread: ThreadMessage | None = None) -> ListArchiveResponse:
        """Returns what HEAD alone tells. ``thread``: None = it is held, and cannot be opened."""
        assert found.seen is not None
        head = found.seen.head
        if thread is None:
            thread = ThreadMessage(uid=head.uid.hex())
        answer = ListArchiveResponse(
            thread=thread, detached=head.detached,
            object_bytes=found.head_bytes + sum(ref.size_bytes for ref in object_refs(head)),
        )  # fmt: skip
        answer.archive_time.FromMicroseconds(head.update_time_us)
        return answer

    def _answer(self, fleet: Fleet, found: Found, *, keep: bool) -> ListArchiveResponse:
        answer = self._outline(found, fleet.view(found))
        if keep:
            try:
                self._keep(fleet, found)
            except (DiskFull, ShuttingDown):
                raise
            except StatewardError as error:
                answer.problem = error.message
        return answer

    def _keep(self, fleet: Fleet, found: Found) -> None:
        image, seen = found.image, found.seen
        assert image is not None
        assert seen is not None
        assert seen.key is not None
        assert found.namespace is not None
        name = image.head.namespace, image.head.thread
        with self._state.locks.of(name):
            here = fleet.thread_here(name)
            if here is not None:
                if here.access != THREAD_ACCESS_REMOTE:
                    return
                if entries_here(here) or here.identity.uid != seen.key.uid:
                    self._attacher.know(name)
                    return
                if here.head.tip_sequence > image.head.tip_sequence:
                    return  # renewed since HEAD was read
            row = row_of(seen.head, THREAD_ACCESS_REMOTE)
            self._state.installer.install(
                Incoming(
                    found.namespace, seen.key.uid, seen.key.data_key, image, row, is_first=here is None,
                    held=seen.key.held,
                )
            )
