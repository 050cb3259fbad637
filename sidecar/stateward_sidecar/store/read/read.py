"""Reads versions: hydrate, get, history, and the difference of two versions. Each step takes one short transaction."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import lmdb

from stateward.storage.v1.archive_pb2 import ArchiveRow
from stateward.v1.checkpoint_pb2 import Checkpoint
from stateward.v1.checkpoint_service_pb2 import (
    READ_ORDER_NEWEST_FIRST,
    DiffCheckpointsRequest,
    DiffCheckpointsResponse,
    GetCheckpointRequest,
    HydrateRequest,
    HydrateResponse,
    ReadHistoryRequest,
    ReadHistoryResponse,
)
from stateward.v1.effect_pb2 import RecordedEffect
from stateward.v1.state_pb2 import State
from stateward.v1.thread_pb2 import THREAD_ACCESS_REMOTE
from stateward_sidecar.codec.diff import diff_trees, unshared_bytes
from stateward_sidecar.codec.pages import (
    END,
    Page,
    Position,
    Selection,
    needs_segments,
    page,
    selection_of,
    with_segments_at_hand,
)
from stateward_sidecar.codec.seal import DIGEST_BYTES
from stateward_sidecar.codec.state import EMPTY, StateTree, has_segments, resident_bytes
from stateward_sidecar.codec.varints import varint
from stateward_sidecar.errors import Fenced, InvalidField, StateTooLarge
from stateward_sidecar.store.items.effectlist import EffectList, Place, pack_place, place_of, take_fitting, unpack_place
from stateward_sidecar.store.items.signals import list_signals
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.journal.finding import resolve, resolve_or_head
from stateward_sidecar.store.journal.views import hydrate_start, read_facts, view_entry
from stateward_sidecar.store.kinds.version import select_edits
from stateward_sidecar.store.thread import paging
from stateward_sidecar.store.thread.cache import Facts
from stateward_sidecar.store.thread.context import Context
from stateward_sidecar.store.thread.paging import PAGE_BYTES, bare
from stateward_sidecar.store.thread.thread import MAIN, Thread
from stateward_sidecar.store.thread.threads import Threads, not_found
from stateward_sidecar.store.versions.since import NOTHING, Since, changes_since

# A checkpoint of up to this size does not count in a page.
START_BYTES_FREE = 64 << 10
HISTORY_STATE_BYTES = 3 << 20
# A page of a larger state is made on a worker, because it would block the event loop.
HOT_BYTES_MAX = 4 << 20
# The edits of more versions are read on a worker, too.
HOT_VERSIONS_MAX = 4
_STATE_TAG = HydrateResponse(state=State()).SerializeToString()[:1]
_VERSION = struct.Struct(">Q16s?")
_EDITS = struct.Struct(">QQQ16s16s")
_NO_DIGEST = bytes(DIGEST_BYTES)
_BEHIND = Position(END, "", 0, 0)
_BEHIND_BYTES = len(_BEHIND.pack())
# Behind the effects, too. The sequence of the last signal follows.
_SIGNALS, _SEQUENCE = Position(END, "", 1, 0).pack(), struct.Struct(">Q")


@dataclass(slots=True)
class Found:
    """What a hydrate shows. ``since``: None = the whole state. ``position``: where the page begins. ``effects``: those
    of the version, read as they are taken. ``after``: those up to this place are on earlier pages. ``signals_after``:
    the sequence of the last signal on earlier pages, if the page begins behind the effects."""

    thread: Thread
    facts: Facts
    tree: StateTree
    since: Since | None
    position: Position | None
    after: Place | None = None
    effects: Iterable[RecordedEffect] = ()
    signals_after: int | None = None

    def selection(self, request: HydrateRequest) -> Selection:
        """The part of the state that is shown."""
        if self.since is not None:
            return self.since.selection
        return selection_of(request.projection if request.HasField("projection") else None)


class Reader:
    """The reading verbs."""

    def __init__(self, context: Context, threads: Threads, effects: EffectList) -> None:
        self._context = context
        self._threads = threads
        self._effects = effects

    def find_hot(self, request: HydrateRequest) -> Found | None:
        """Returns what a hydrate shows if the event loop can find it: a small state in memory, with few effects. Else
        None.

        Raises the errors of ``hydrate``, if edits since a known version or effects are read.
        """
        found = self._head_in_memory(request)
        if found is None and not self._is_near(request):
            return None
        if found is None or _shows_effects(request, found):
            # Memory shows a version after its commit. So effects of the same commit are in this later transaction.
            with self._context.engine.read() as txn:
                found = found or self._find(txn, request)
                if self._is_quick(request, found) and _shows_effects(request, found):
                    few = self._effects.few_of_version(txn, found.thread, found.facts.body.checkpoint_id)
                    if few is None:
                        return None
                    found.effects = few
        return found if self._is_quick(request, found) else None

    def _is_quick(self, request: HydrateRequest, found: Found) -> bool:
        """Whether the event loop may make the page: little of the state is in memory, and no segment is read."""
        if found.tree.size_bytes <= HOT_BYTES_MAX and not has_segments(found.tree):
            return True
        if resident_bytes(found.tree) > HOT_BYTES_MAX:
            return False
        selection = found.selection(request)
        if not needs_segments(found.tree, selection):
            return True
        # The newest entries of a log may lie in a segment that was just read. Without it each look at them waits for a
        # worker, which takes as long again.
        number, cache = found.thread.number, self._context.cache
        held = with_segments_at_hand(found.tree, selection, lambda each: cache.segment(number, each.digest))
        if held is None or found.position is not None or found.since is not None:
            return False
        found.tree = held
        return True

    def _is_near(self, request: HydrateRequest) -> bool:
        """Whether a request names a known version shortly before a head that is in memory."""
        if not request.known_version or request.page_token or request.HasField("version"):
            return False
        thread = self._threads.cached(request.namespace, request.thread)
        branch = thread.branches.get(request.branch or MAIN) if thread is not None else None
        if thread is None or branch is None or branch.version - request.known_version > HOT_VERSIONS_MAX:
            return False
        tree = self._context.cache.state(thread.number, branch.version)
        return tree is not None and resident_bytes(tree) <= HOT_BYTES_MAX

    def cold_bytes(self, request: HydrateRequest) -> int:
        """Returns about how many bytes any other hydrate needs: its page, and snapshot and edits of its state."""
        page_bytes = request.max_bytes or PAGE_BYTES
        thread = self._threads.cached(request.namespace, request.thread)
        branch = thread.branches.get(request.branch or MAIN) if thread is not None else None
        return page_bytes + (branch.snapshot_stored_bytes + branch.weight if branch is not None else 0)

    def hydrate(self, request: HydrateRequest, max_bytes: int = 0) -> bytes:
        """Returns the serialized answer to a hydrate. ``max_bytes``: see ``answer``."""
        found = self._head_in_memory(request)
        if found is None or _shows_effects(request, found):
            with self._context.engine.read() as txn:
                found = found or self._find(txn, request)
                if _shows_effects(request, found):
                    checkpoint_id = found.facts.body.checkpoint_id
                    found.effects = self._effects.of_version(txn, found.thread, checkpoint_id, found.after)
                    return self.answer(request, found, max_bytes)
        return self.answer(request, found, max_bytes)

    def answer(self, request: HydrateRequest, found: Found, max_bytes: int = 0) -> bytes:
        """Returns the serialized answer. The state is joined from stored bytes, and is not parsed again.

        ``max_bytes``: a limit below the one of the request, in bytes; 0 = the limit of the request.
        """
        thread, facts, since = found.thread, found.facts, found.since
        selection = found.selection(request)
        start, page_bytes = hydrate_start(thread, facts), max_bytes or paging.page_bytes(request.max_bytes)
        if len(start) > START_BYTES_FREE:  # metadata may have 1 MiB, and is on every page
            page_bytes = max(page_bytes - len(start), page_bytes // 4)
        cut = page(found.tree, selection, found.position, page_bytes)
        # Parsers accept fields in any order. The state is written by hand: tag, length, bytes.
        parts = [_STATE_TAG, varint(len(cut.state)), cut.state, start]
        rest = HydrateResponse(archived_sequence=thread.archived_sequence, owner_id=self._other_owner(thread.archive))
        if cut.chunk is not None:
            rest.chunk.CopyFrom(cut.chunk)
        following = b""
        if cut.next is not None:
            following = cut.next.pack()
        elif request.include_effects and found.signals_after is None:
            following = self._add_effects(rest, cut, found, page_bytes)
        if request.include_signals and cut.next is None and not following:
            following = _add_signals(rest, cut, found, page_bytes)
        if following:
            pinned = _VERSION.pack(facts.header.version, facts.header.digest, since is not None) + following
            rest.next_page_token = self._context.tokens.pack(bare(request), pinned)
        if since is not None:
            rest.base_version = request.known_version
            if not request.page_token:
                rest.removed_slots.extend(since.removed_slots)
                rest.removed_logs.extend(since.removed_logs)
        return b"".join((*parts, rest.SerializeToString()))

    @staticmethod
    def _add_effects(answer: HydrateResponse, cut: Page, found: Found, page_bytes: int) -> bytes:
        """Adds the effects that fit behind the end of the state. Returns the place of the next page; empty = none."""
        used_bytes = len(cut.state) + answer.chunk.ByteSize()
        is_behind = found.position is not None and found.position.section == END
        shown, has_more = take_fitting(found.effects, page_bytes - used_bytes, is_alone=is_behind)
        answer.effects.extend(shown)
        if not has_more:
            return b""
        after = place_of(shown[-1]) if shown else found.after
        return _BEHIND.pack() + (pack_place(after) if after is not None else b"")

    def _head_in_memory(self, request: HydrateRequest) -> Found | None:
        """Returns the head of a branch if all of it is in memory. Nothing is read from the disk, and nothing opened."""
        if request.page_token or request.HasField("version"):
            return None
        thread = self._threads.cached(request.namespace, request.thread)
        branch = thread.branches.get(request.branch or MAIN) if thread is not None else None
        if thread is None or branch is None:
            return None
        facts = self._context.cache.facts(thread.number, branch.digest)
        if facts is None:
            return None
        if request.known_version:
            if (request.known_version, request.known_digest) != (branch.version, branch.digest):
                return None
            return Found(thread, facts, EMPTY, NOTHING, None)
        tree = self._context.cache.state(thread.number, branch.version)
        return Found(thread, facts, tree, None, None) if tree is not None else None

    def _find(self, txn: lmdb.Transaction, request: HydrateRequest) -> Found:
        """Returns what a hydrate shows, from the disk. The head's facts are kept for the next hydrate."""
        thread = self._threads.get(txn, request.namespace, request.thread)
        branch, position, after, signals_after = request.branch or MAIN, None, None, None
        if request.page_token:
            pinned = self._context.tokens.unpack(bare(request), request.page_token)
            version, digest, is_since = _VERSION.unpack_from(pinned)
            place = pinned[_VERSION.size :]
            if place.startswith(_SIGNALS):
                position, signals_after = _BEHIND, _SEQUENCE.unpack(place[len(_SIGNALS) :])[0]
            elif place.startswith(_BEHIND.pack()):
                position, after = _BEHIND, unpack_place(place[_BEHIND_BYTES:]) if place[_BEHIND_BYTES:] else None
            else:
                position = Position.unpack(place)
        else:
            ref = request.version if request.HasField("version") else None
            version, digest, is_since = resolve_or_head(txn, thread, ref, branch, "version"), b"", None
        entry = replay.read_version(txn, thread, version)
        if digest and entry.header.digest != digest:
            raise _gone()
        facts = read_facts(thread, entry)
        head = thread.branches.get(branch)
        if head is not None and head.digest == entry.header.digest:
            self._context.cache.put_facts(thread.number, facts)
        tree, since = self._state_or_changes(txn, thread, version, entry.header.digest, request, is_since)
        return Found(thread, facts, tree, since, position, after, signals_after=signals_after)

    def _state_or_changes(
        self,
        txn: lmdb.Transaction,
        thread: Thread,
        version: int,
        digest: bytes,
        request: HydrateRequest,
        is_since: bool | None,
    ) -> tuple[StateTree, Since | None]:
        """Returns the state at a version, and what changed since the version that the client knows; None = the whole
        state is sent. ``is_since``: what the first page had; None = this is the first page."""
        context, known = self._context, request.known_version
        if known == version and request.known_digest == digest:
            return EMPTY, NOTHING
        tree = replay.state_at(txn, thread, version, context.cache)
        if not known or is_since is False:
            return tree, None
        since = changes_since(context, txn, thread, version, tree, known, request.known_digest)
        if since is None and is_since:
            raise _gone()
        return tree, since

    def _other_owner(self, row: ArchiveRow | None) -> str:
        """Returns the name of another sidecar that owns the thread. Empty if this sidecar owns it, or nobody."""
        if row is None or row.access != THREAD_ACCESS_REMOTE or row.head.detached:
            return ""
        hooks = self._context.archive
        return "" if hooks is not None and hooks.is_own(row.head) else row.head.owner_id

    def get(self, request: GetCheckpointRequest) -> Checkpoint:
        """Returns the metadata of a version."""
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            ref = request.version if request.HasField("version") else None
            version = resolve_or_head(txn, thread, ref, request.branch or MAIN, "version")
            return view_entry(thread, replay.read_version(txn, thread, version))

    def history(
        self, request: ReadHistoryRequest, read: Callable[..., Any]
    ) -> Iterator[Callable[[], ReadHistoryResponse | None]]:
        """Yields one function for each version of the ancestry of a version.

        Each function reads one version through ``read``, and may be called again. The caller calls it before it asks
        for the next one. None = the line ends there.
        """
        selection = selection_of(request.projection if request.HasField("projection") else None)
        is_newest_first = request.order == READ_ORDER_NEWEST_FIRST
        is_lazy = is_newest_first and not request.HasField("oldest")
        thread, line = read(partial(self._line, request, is_whole=not is_lazy))
        step = partial(self._step, request, thread.number, selection)
        if is_lazy:
            steps = _go_back(line, step)
        else:
            versions = enumerate(line if is_newest_first else reversed(line))
            steps = (partial(step, version, is_first=number == 0) for number, version in versions)
        for each in steps:
            yield partial(read, each)

    def _step(
        self, request: ReadHistoryRequest, number: int, selection: Selection, version: int, *, is_first: bool,
        parents: list[int] | None = None,
    ) -> ReadHistoryResponse | None:  # fmt: skip
        """Reads one version. ``parents`` gets its parent, unless that was pruned; it is None where the line is known.
        Returns None if a version that was named as a parent was pruned meanwhile: the line ends there."""
        with self._context.engine.read() as txn:
            thread = self._threads.by_number(txn, number)
            if thread is None or thread.is_deleted:
                raise not_found(request.namespace, request.thread)
            if version in thread.pruned and parents is not None and not is_first:
                return None
            entry = replay.read_version(txn, thread, version)
            answer = ReadHistoryResponse(checkpoint=view_entry(thread, entry))
            if thread.name != request.thread:
                _name_as_asked(answer, thread, request)
            if is_first:
                _add_state(answer, replay.state_at(txn, thread, version, self._context.cache), selection)
            if not is_first or request.order == READ_ORDER_NEWEST_FIRST:
                edits = replay.read_edits(txn, thread.identity, entry, self._context.cache)
                answer.diff.CopyFrom(select_edits(replay.parse_edits(edits, thread.name, version), selection))
            if request.include_effects:
                self._effects.add_to(txn, thread, answer.checkpoint.checkpoint_id, answer, HISTORY_STATE_BYTES)
            if parents is not None:
                parent = entry.header.parent_version
                parents[:] = [parent] if parent and parent not in thread.pruned else []
        return answer

    def _line(self, request: ReadHistoryRequest, *, is_whole: bool) -> tuple[Thread, list[int]]:
        """Returns the versions of the ancestry, newest first; only the first of them unless ``is_whole``.

        Raises InvalidField if it lacks ``oldest``.
        """
        with self._context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            ref = request.version if request.HasField("version") else None
            version = resolve_or_head(txn, thread, ref, request.branch or MAIN, "version")
            oldest = 0
            if request.HasField("oldest"):
                oldest = resolve(txn, thread, request.oldest, request.branch or MAIN, "oldest")
            newest, line = version, list[int]()
            while version and version not in thread.pruned and version >= oldest:
                line.append(version)
                if not is_whole:
                    break
                version = replay.read_version(txn, thread, version).header.parent_version
        if oldest and line[-1:] != [oldest]:
            if version > oldest:
                gone = f"version {version}, an ancestor of version {newest}, was pruned; use a later version"
                raise InvalidField("oldest", gone)
            raise InvalidField("oldest", f"version {oldest} is not an ancestor of version {newest}")
        return thread, line

    def diff(self, request: DiffCheckpointsRequest) -> DiffCheckpointsResponse:
        """Returns a page of the edits from one version to another. An edit is never split."""
        context = self._context
        binding = bare(request)
        with context.engine.read() as txn:
            thread = self._threads.get(txn, request.namespace, request.thread)
            branch, start, pinned = request.branch or MAIN, 0, list[bytes]()
            if request.page_token:
                old, new, start, *pinned = _EDITS.unpack(context.tokens.unpack(binding, request.page_token))
            else:
                old = self._diff_base(txn, thread, request, branch)
                ref = request.target if request.HasField("target") else None
                new = resolve_or_head(txn, thread, ref, branch, "target")
            answer = DiffCheckpointsResponse(target=view_entry(thread, replay.read_version(txn, thread, new)))
            before = EMPTY
            if old:
                answer.base.CopyFrom(view_entry(thread, replay.read_version(txn, thread, old)))
                before = replay.state_at(txn, thread, old, context.cache)
            digests = [answer.base.digest or _NO_DIGEST, answer.target.digest]
            if pinned and pinned != digests:
                raise _gone()
            after = replay.state_at(txn, thread, new, context.cache)
            if (size := unshared_bytes(before, after)) > context.limits.state_bytes:
                text = f"the versions differ in logs of {size:,} bytes; read the logs themselves (ReadLog)"
                raise StateTooLarge(size, context.limits.state_bytes, text)
            edits = diff_trees(before, after).edits
        size, limit = 0, paging.page_bytes(request.max_bytes)
        for index in range(start, len(edits)):
            size += edits[index].ByteSize() + 8
            if size > limit and index > start:
                answer.next_page_token = context.tokens.pack(binding, _EDITS.pack(old, new, index, *digests))
                break
            answer.diff.edits.append(edits[index])
        answer.diff.SetInParent()
        return answer

    @staticmethod
    def _diff_base(txn: object, thread: Thread, request: DiffCheckpointsRequest, branch: str) -> int:
        ref = request.base
        if not request.HasField("base"):
            raise InvalidField("base", "is required; set version 0 for the empty state")
        if ref.WhichOneof("ref") == "version" and ref.version == 0:
            return 0
        return resolve_or_head(txn, thread, ref, branch, "base")  # type: ignore[arg-type]


def _add_signals(answer: HydrateResponse, cut: Page, found: Found, page_bytes: int) -> bytes:
    """Adds the signals that fit behind the state and its effects. Returns the place of the next page; empty = none."""
    after, is_alone = found.signals_after or 0, found.signals_after is not None
    room_bytes = page_bytes - len(cut.state) - answer.ByteSize()
    shown, has_more = list_signals(found.thread.signals, after, room_bytes, is_alone=is_alone)
    answer.signals.extend(shown)
    return _SIGNALS + _SEQUENCE.pack(shown[-1].sequence if shown else after) if has_more else b""


def _shows_effects(request: HydrateRequest, found: Found) -> bool:
    """Whether effects must be looked for."""
    is_asked = request.include_effects and found.signals_after is None
    return is_asked and found.thread.head.effects > 0 and bool(found.facts.body.checkpoint_id)


def _gone() -> InvalidField:
    """Returns the error for a token whose version is gone: all pages of an answer show one version of one line."""
    return InvalidField("page_token", "names a version that no longer exists; start again without a page_token")


def _add_state(answer: ReadHistoryResponse, tree: StateTree, selection: Selection) -> None:
    if tree.size_bytes > HISTORY_STATE_BYTES:
        answer.state_omitted = True
        return
    answer.state.ParseFromString(page(tree, selection, None, 2 * HISTORY_STATE_BYTES).state)
    answer.state.SetInParent()


def _name_as_asked(answer: ReadHistoryResponse, thread: Thread, request: ReadHistoryRequest) -> None:
    """Names a version as the caller named its thread, if the copy was set aside since the history began. Raises Fenced
    for a version that is in the orphan only."""
    common = thread.archive.common_sequence if thread.archive is not None else 0
    if answer.checkpoint.sequence > common:
        raise Fenced(
            f"thread {request.thread!r} was taken over by another sidecar while its history was read; the versions "
            f"that only this disk had are in thread {thread.name!r}; read it again",
            thread=request.thread, orphan=thread.name, common_sequence=common,
        )  # fmt: skip
    answer.checkpoint.thread = request.thread


def _go_back(
    line: list[int], step: Callable[..., ReadHistoryResponse | None]
) -> Iterator[Callable[[], ReadHistoryResponse | None]]:
    """Yields the steps from a version to the root. Each version that was read names the next one, so that the first
    versions of a long ancestry come at once. The line ends before a version that was pruned."""
    following, is_first = line[:], True
    while following:
        yield partial(step, following.pop(), is_first=is_first, parents=following)
        is_first = False
