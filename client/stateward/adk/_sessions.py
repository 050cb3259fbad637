"""How sessions lie in Stateward: names, state by its scopes, events, and the revision of a session object."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from google.adk.errors import StaleSessionError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.sessions._session_util import make_json_safe_state
from google.adk.sessions.base_session_service import GetSessionConfig
from google.adk.sessions.session import Session
from google.adk.sessions.state import State as Scope

from stateward._async.thread import AsyncThread
from stateward._keeping import find_unwritable, kept
from stateward._naming import HASHED, NAME_BYTES_MAX, escape, name_for, text_of, unescape
from stateward.errors import BlobNotFound, ThreadNotFound, VersionMismatch, VersionNotFound, VersionPruned
from stateward.models import Checkpoint, ThreadInfo
from stateward.state import State
from stateward.v1 import checkpoint_pb2
from stateward.values import RawValue

EVENTS, STATE = "events", "state"
# A session whose name is too long for a thread's has its place, [app, user, session], in this slot.
PLACE = "place"
# A version has the time of its session's last change as a metric, so a list needs no further read for it.
UPDATED = "last_update_time"
# How many sessions a list reads at a time.
READS = 16
# How many events are read first where only those after a time are wanted.
TAIL = 64
_MARKER = re.compile("([0-9]+):([0-9a-f]{32}):([0-9a-f]{32})")
T = TypeVar("T")
R = TypeVar("R")


class Scopes(NamedTuple):
    """A change of state by the place that keeps it, without prefixes."""

    app: dict[str, Any]
    user: dict[str, Any]
    session: dict[str, Any]


def split(delta: dict[str, Any], path: str) -> Scopes:
    """Takes a change of state apart, as JSON has it in ADK's own services. What begins with `temp:` is kept nowhere.

    Raises ValueError, with the place in `path`, for what is no JSON there.
    """
    try:
        delta = make_json_safe_state(delta)
    except (TypeError, ValueError, RecursionError) as error:
        raise ValueError(f"{find_unwritable(delta, path, 'utf8')}: {error}") from error
    prefixes = (Scope.APP_PREFIX, Scope.USER_PREFIX, Scope.TEMP_PREFIX)
    session = {key: value for key, value in delta.items() if not key.startswith(prefixes)}
    return Scopes(unprefixed(delta, prefixes[0]), unprefixed(delta, prefixes[1]), session)


def unprefixed(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    """The keys with a prefix, without it."""
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def prefixed(state: State, prefix: str) -> dict[str, Any]:
    """The state of an app or a user as it appears in a session."""
    return {prefix + key: value for key, value in map(_read_key, state.slots, map(kept, state.slots.values()))}


def slot_of(key: str, value: Any) -> tuple[str, Any]:
    """Returns slot and value for a key of the state of an app or a user. A key that is too long for a name is with the
    value."""
    slot = name_for(key)
    return slot, [key, value] if slot.startswith(HASHED) else value


def _read_key(slot: str, value: Any) -> tuple[str, Any]:
    key = text_of(slot)
    return (key, value) if key is not None else (value[0], value[1])


async def read_events(thread: AsyncThread, config: GetSessionConfig) -> tuple[State, list[Event]]:
    """Reads the state of a session and the events that are asked for: of a part of them, only the end of the log."""
    most, after = config.num_recent_events, config.after_timestamp
    if after is None:
        state = await (thread.hydrate() if most is None else thread.hydrate(slots=[STATE], logs={EVENTS: most}))
        return state, _events(state)
    size = TAIL
    while True:
        wanted = size if most is None else min(size, most)
        state = await thread.hydrate(slots=[STATE], logs={EVENTS: wanted})
        events = _events(state)
        older = next((at for at in reversed(range(len(events))) if events[at].timestamp < after), None)
        if older is not None or len(events) < wanted or wanted == most:
            return state, events if older is None else events[older + 1 :]
        size *= 4


def _events(state: State) -> list[Event]:
    log = state.logs[EVENTS]
    return [Event.model_validate_json(log.raw(at).data) for at in range(len(log))]


def make_session(
    app_name: str,
    user_id: str,
    session_id: str,
    head: Checkpoint | ThreadInfo,
    state: dict[str, Any],
    events: list[Event],
) -> Session:
    """A session object as ADK takes it. `head` is its thread's newest version."""
    updated = head.metrics.get(UPDATED, 0.0)  # a program that is not ADK may have saved the version
    session = Session(
        app_name=app_name, user_id=user_id, id=session_id, state=state, events=events, last_update_time=updated
    )
    session._storage_update_marker = marker_of(head)
    return session


def marker_of(made: Checkpoint | ThreadInfo) -> str:
    """What ADK keeps with a session object and its copies, to tell whether it is still the stored one."""
    return f"{made.version}:{made.digest.hex()}:{made.uid}"


async def find_base(thread: AsyncThread, session: Session) -> Checkpoint:
    """Returns the version that a session object was read from.

    A session object from elsewhere, such as from JSON or another service, has no marker of this service. It counts as
    the newest one if it ends with the same event.
    """
    if found := _MARKER.fullmatch(session._storage_update_marker or ""):
        version, digest = int(found[1]), bytes.fromhex(found[2])
        return Checkpoint.from_proto(checkpoint_pb2.Checkpoint(version=version, digest=digest, uid=found[3]))
    state = await thread.hydrate(slots=[], logs={EVENTS: 1})
    if state.checkpoint is None:
        raise gone(session)
    if [each.id for each in _events(state)] != [each.id for each in session.events[-1:]]:
        raise stale(session)
    return state.checkpoint


async def read_stored_state(thread: AsyncThread, session: Session, base: Checkpoint) -> dict[str, Any]:
    """Returns the session's own state as it is stored; what a program put into `session.state` besides is not."""
    try:
        state = await thread.hydrate(base, slots=[STATE])
    except ThreadNotFound:
        raise gone(session) from None
    except (VersionMismatch, VersionNotFound, VersionPruned, BlobNotFound):
        raise stale(session) from None
    found: dict[str, Any] = kept(state.slots[STATE])
    return found


async def find_stored(thread: AsyncThread, base: Checkpoint, encoded: RawValue) -> Checkpoint | None:
    """Returns the newest version if it is the one that added this event to `base`."""
    state = await thread.hydrate(slots=[], logs={EVENTS: 1})
    head, log = state.checkpoint, state.logs[EVENTS]
    if head is None or (head.uid, head.parent_version) != (base.uid, base.version) or not len(log):
        return None
    return head if log.raw(0).data == encoded.data else None


def stale(session: Session) -> StaleSessionError:
    """The error for a session object that is not the newest one."""
    return StaleSessionError(f"Session {session.id} has got other events since it was read; get it again.")


def gone(session: Session) -> SessionNotFoundError:
    """The error for a session that was deleted, or never made."""
    return SessionNotFoundError(f"Session {session.id} not found.")


async def gather(read: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Reads many things, a few at a time."""
    turns = asyncio.Semaphore(READS)

    async def read_in_turn(item: T) -> R:
        async with turns:
            return await read(item)

    return list(await asyncio.gather(*map(read_in_turn, items)))


def name_of(kind: str, *parts: str) -> str:
    """The name of a thread. Different parts have different names."""
    begin = f"adk/{kind}/"
    return begin + name_for("/".join(escape(part, "/") for part in parts), NAME_BYTES_MAX - len(begin))


def parts_of(name: str) -> list[str] | None:
    """The parts of such a name; None = they are too long for a name, and in the slot PLACE."""
    text = text_of(name.split("/", 2)[2])
    return None if text is None else [unescape(part) for part in text.split("/")]
