"""Moves threads from a database of LangGraph's own savers to Stateward, with their whole history.

    with open_source("checkpoints.sqlite") as source, open_saver(target) as saver:
        for thread, _ in source.threads():
            import_thread(source, saver, thread)

StatewardSaver's own operations write every checkpoint, oldest first, as the newest one of its namespace was the last
one that was written. An import that was killed therefore left the beginning of a thread, and goes on after it. The
thread is done when every checkpoint was read back through the saver and is equal to the original.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from langchain_core.runnables import RunnableConfig
from langgraph.checkpoint.base import CheckpointTuple

from stateward._naming import name_for
from stateward.langgraph import _operations as operations
from stateward.langgraph._names import branch_of
from stateward.langgraph._operations import Put
from stateward.langgraph._verbatim import Verbatim, equal
from stateward.langgraph.saver import StatewardSaver
from stateward.langgraph.sources import Key, Source
from stateward.v1.effect_pb2 import Effect

# The source may change while it is read: writes of its newest checkpoint come one by one.
ROUNDS_MAX = 3
REQUEST_BYTES = 16 << 20
ALL_THREADS = "-"


class ThreadRefused(Exception):
    """Raised if a thread in Stateward is not the beginning of the source's thread. The message says why."""


@dataclass(slots=True)
class Imported:
    """What an import did with a thread."""

    thread: str
    checkpoints: int = 0
    """Checkpoints written now; in a dry run, those that are missing."""
    present: int = 0
    """Checkpoints that were there before, and are equal."""
    writes: int = 0
    """Pending writes written now."""
    lacking: int = 0
    """In a dry run: checkpoints that are there without some of their writes."""
    has_gone_on: bool = False
    """The thread has checkpoints or writes that are newer than the source's."""

    @property
    def was_complete(self) -> bool:
        """Whether nothing was missing."""
        return not (self.checkpoints or self.writes or self.lacking)


@dataclass(frozen=True, slots=True)
class Progress:
    """What the import tells after each checkpoint."""

    written: int = 0
    compared: int = 0


@dataclass(slots=True)
class _Comparison:
    present: set[Key] = field(default_factory=set)
    lacking: set[Key] = field(default_factory=set)
    """Checkpoints that are there without some of their writes."""
    has_gone_on: bool = False


def open_saver(target: str | None, namespace: str, **options: Any) -> StatewardSaver:
    """A saver that reads and writes values without their classes; otherwise as every StatewardSaver."""
    return StatewardSaver(target, namespace=namespace, serde=Verbatim(), **options)


def import_thread(
    source: Source,
    saver: StatewardSaver,
    thread: str,
    *,
    dry_run: bool = False,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> Imported:
    """Writes what is missing of a thread, and compares all of it with the source.

    Raises ThreadRefused if the thread has something else, and SourceInvalid if the source cannot be read.
    """
    if thread == ALL_THREADS:
        raise ThreadRefused(f"thread {thread!r} cannot be imported: in Stateward this name stands for all threads")
    wanted, result, compared = source.checkpoints(thread), Imported(thread), set[Key]()

    def tell(key: Key) -> None:
        on_progress(Progress(compared=key not in compared))
        compared.add(key)

    for round_ in range(ROUNDS_MAX):
        found = _compare(source, saver, thread, wanted, tell)
        missing = [key for key in wanted if key not in found.present]
        if round_ == 0:
            result.present, result.has_gone_on = len(found.present), found.has_gone_on
        if not (missing or found.lacking):
            return result
        _check_is_beginning(thread, wanted, found)
        if dry_run:
            result.checkpoints, result.lacking = len(missing), len(found.lacking)
            return result
        for key in wanted:
            if key not in found.present:
                _put(source, saver, thread, key)
                result.checkpoints += 1
            if key not in found.present or key in found.lacking:
                result.writes += _put_writes(saver, thread, key, source)
                on_progress(Progress(written=1))
        saver._forget(thread)
    raise ThreadRefused(f"thread {thread!r} differs from the source, which seems to change; import it again later")


def _put(source: Source, saver: StatewardSaver, thread: str, key: Key) -> None:
    found = source.get(thread, key)
    if found is None:
        raise ThreadRefused(f"{_name(thread, key)} was removed from the source meanwhile")
    rest: dict[str, Any] = dict(found.checkpoint)
    values = rest.pop("channel_values")
    # Every channel counts as new, so that its value is compared with the parent's, and not its version.
    wanted = Put(
        _parent_id(found), rest, values, rest["channel_versions"], dict(found.metadata),
        thread_id=thread, checkpoint_ns=key.checkpoint_ns,
    )  # fmt: skip
    ref = saver._refer(thread, branch_of(key.checkpoint_ns))
    saver._blocking._session.run(saver._put(ref, wanted))


def _put_writes(saver: StatewardSaver, thread: str, key: Key, source: Source) -> int:
    """Writes what is missing of a checkpoint's pending writes, as far as the rules for them allow."""
    rows = source.writes(thread, key)
    made = [
        operations.to_effect(
            key.checkpoint_id, row.place, row.channel, saver.serde.dumps_typed(source.load(row.value)), row.task_id,
            row.task_path,
        )
        for row in rows
    ]  # fmt: skip
    run, start = saver._blocking._session.run, 0
    ref = saver._refer(thread, branch_of(key.checkpoint_ns))
    for end in _pieces(made):
        uid = saver._creations.of(ref, [name_for(key.checkpoint_id)])
        run(operations.put_effects(ref, made[start:end], saver._made_with, uid))
        start = end
    return len(rows)


def _pieces(made: Sequence[Effect]) -> Iterator[int]:
    """Where to cut a list of pending writes, so that each request is small enough."""
    size_bytes = 0
    for at, each in enumerate(made):
        size_bytes += len(each.value.data)
        if at and size_bytes > REQUEST_BYTES:
            yield at
            size_bytes = len(each.value.data)
    if made:
        yield len(made)


def _compare(
    source: Source, saver: StatewardSaver, thread: str, wanted: Iterable[Key], tell: Callable[[Key], None]
) -> _Comparison:
    """Reads the thread through the saver, and compares each checkpoint with the one that the source's saver returns."""
    result, keys, config = _Comparison(), set(wanted), RunnableConfig(configurable={"thread_id": thread})
    for found in saver.list(config):
        place = found.config["configurable"]
        key = Key(place["checkpoint_ns"], place["checkpoint_id"])
        original = source.get(thread, key) if key in keys else None
        if original is None:
            result.has_gone_on = True
            continue
        _compare_checkpoint(thread, key, original, found)
        wrote, has = _writes(saver, original), _writes(saver, found)
        if Counter(wrote) == Counter(has) and not equal(original.pending_writes or [], found.pending_writes or []):
            raise ThreadRefused(f"{_name(thread, key)} has its pending writes in another order than the source's")
        result.present.add(key)
        result.has_gone_on |= bool(Counter(has) - Counter(wrote))
        if Counter(wrote) - Counter(has):
            result.lacking.add(key)
        tell(key)
    if not (result.present or result.has_gone_on):
        saver.get_tuple(config)  # raises ValueError for a thread of something else
    return result


def _check_is_beginning(thread: str, wanted: Sequence[Key], found: _Comparison) -> None:
    """Raises ThreadRefused if what is there is not what an import, which was killed, left behind."""
    if found.has_gone_on:
        raise ThreadRefused(
            f"thread {thread!r} has something else: checkpoints or writes that the source does not have, and not all "
            "that it has; remove the thread to import it, or import it to another --namespace"
        )
    gaps = set[str]()
    for key in wanted:
        if key not in found.present:
            gaps.add(key.checkpoint_ns)
        elif key.checkpoint_ns in gaps:
            raise ThreadRefused(
                f"thread {thread!r} has newer checkpoints, but not all before them, as if it was pruned; remove the "
                "thread to import it whole"
            )


def _compare_checkpoint(thread: str, key: Key, original: CheckpointTuple, found: CheckpointTuple) -> None:
    ours, theirs = _parts(found), _parts(original)
    for name in sorted(ours.keys() | theirs.keys()):
        if name not in ours or name not in theirs or not equal(ours[name], theirs[name]):
            raise ThreadRefused(f"{_name(thread, key)} has another {name} than the source's")


def _parts(found: CheckpointTuple) -> dict[str, Any]:
    """All of a checkpoint except its pending writes, whose number may grow."""
    rest: dict[str, Any] = dict(found.checkpoint)
    values = rest.pop("channel_values")
    return {
        **{f"channel {name!r}": value for name, value in values.items()},
        **{f"field {name!r}": value for name, value in rest.items()},
        "metadata": dict(found.metadata),
        "parent": _parent_id(found),
    }


def _writes(saver: StatewardSaver, found: CheckpointTuple) -> list[tuple[str, str, tuple[str, bytes]]]:
    return [(task, channel, saver.serde.dumps_typed(value)) for task, channel, value in found.pending_writes or ()]


def _parent_id(found: CheckpointTuple) -> str:
    return str(found.parent_config["configurable"]["checkpoint_id"]) if found.parent_config else ""


def _name(thread: str, key: Key) -> str:
    namespace = f" in {key.checkpoint_ns!r}" if key.checkpoint_ns else ""
    return f"checkpoint {key.checkpoint_id}{namespace} of thread {thread!r}"
