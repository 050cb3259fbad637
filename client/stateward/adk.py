"""Sessions of Google's Agent Development Kit in Stateward. Needs the extra `adk`."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from hashlib import sha256
from typing import Any, NamedTuple, TypeVar
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.platform import time, uuid
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.state import State as Scope

from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward._connected import Connected
from stateward._operations.applying import PreparedEdits, apply_all
from stateward.changes import Change, EntriesAppended, SlotSet
from stateward.errors import ThreadNotFound, VersionMismatch, VersionNotFound, VersionPruned
from stateward.models import Checkpoint
from stateward.options import ThreadOptions
from stateward.state import State
from stateward.v1 import checkpoint_pb2
from stateward.values import JSON, RawValue

__all__ = ["StatewardSessionService"]

EVENTS, STATE = "events", "state"
APP_LABEL, USER_LABEL = "adk_app", "adk_user"
# A version has the time of its session's last change as a metric, so a list needs no further read for it.
UPDATED = "last_update_time"
# How many sessions a list reads at a time.
READS = 16
# How many events are read first where only those after a time are wanted.
TAIL = 64
T = TypeVar("T")
R = TypeVar("R")


class StatewardSessionService(Connected, BaseSessionService):
    """Keeps each session as a thread of Stateward: its events in a log, its state in a slot.

    An append sends the event and the session's new state, and is durable when it returns. Of two writers from one
    revision of a session exactly one appends, and the other gets StaleSessionError. State with the prefix `app:` or
    `user:` is in a thread of its own for each app and each user, where every key is a slot: writers of different
    sessions never overwrite each other's keys. An event is saved together with all the state that it changes, or not
    at all.

    `client` is an AsyncClient that you keep; without it the service makes one from `target`, `namespace` and the
    further options of `stateward.AsyncClient`, and `close` closes it. Use a namespace in which only this service makes
    threads.
    """

    def __init__(
        self,
        *,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        **options: Any,
    ) -> None:
        super().__init__(client, target, namespace, options)
        # Parallel agents of one invocation share a session object. They append one after the other.
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Makes a session, and returns it with the state of its app and its user. Raises AlreadyExistsError."""
        session_id = (session_id or "").strip() or uuid.new_uuid()
        # As ADK does with events: what is no JSON becomes JSON.
        scopes = _split(EventActions(state_delta=state or {}).model_dump(mode="json")["state_delta"])
        now = time.get_time()
        create = ThreadOptions(labels={APP_LABEL: app_name, USER_LABEL: user_id})
        thread = self._thread(app_name, user_id, session_id)
        first = PreparedEdits(
            thread._ref, [SlotSet(STATE, scopes.session)], 0, {"create": create, "metrics": {UPDATED: now}}
        )
        try:
            (made, *_) = await self._save([first, *self._shared(app_name, user_id, scopes, None)])
        except VersionMismatch:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.") from None
        app, user = await asyncio.gather(self._read_app(app_name), self._read_user(app_name, user_id))
        session = Session(
            app_name=app_name,
            user_id=user_id,
            id=session_id,
            state={**scopes.session, **app, **user},
            last_update_time=now,
        )
        session._storage_update_marker = _marker(made)
        return session

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Returns a session; None if there is none. Reads only the events that `config` asks for."""
        thread = self._thread(app_name, user_id, session_id)
        (state, events), app, user = await asyncio.gather(
            _read_events(thread, config or GetSessionConfig()),
            self._read_app(app_name),
            self._read_user(app_name, user_id),
        )
        return _session(app_name, user_id, session_id.strip(), state, {**app, **user}, events)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Lists the sessions of a user, or of all users of an app, the most recently changed last.

        They have their states, and no events. An index leads to them: other sessions are not read.
        """
        labels = {APP_LABEL: app_name} if user_id is None else {APP_LABEL: app_name, USER_LABEL: user_id}
        infos = [info async for info in self._client.threads(labels=labels, page_size=1000)]
        users = sorted({info.labels[USER_LABEL] for info in infos})
        app = await self._read_app(app_name) if infos else {}
        read = await _gather(lambda user: self._read_user(app_name, user), users)
        shared = {user: {**app, **state} for user, state in zip(users, read, strict=True)}
        states = await _gather(lambda info: self._client.thread(info.name).hydrate(slots=[STATE]), infos)
        found = []
        for info, state in zip(infos, states, strict=True):
            user = info.labels[USER_LABEL]
            found.append(_session(app_name, user, _session_id(info.name), state, shared[user], []))
        sessions = [session for session in found if session is not None]  # the others were deleted meanwhile
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Removes a session with all its events and its key. The state of its app and its user stays."""
        await self._thread(app_name, user_id, session_id).delete(missing_ok=True)

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the state of a user, without the prefix `user:`."""
        return _unprefixed(await self._read_user(app_name, user_id), Scope.USER_PREFIX)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends an event to a session, here and in Stateward.

        Raises StaleSessionError if somebody else appended an event since `session` was read, and SessionNotFoundError
        if the session was deleted; `session` is unchanged then. After any other error the same event may be appended
        again, and is stored once. A cancelled call goes on to its end, and puts the event into `session`.
        """
        if event.partial:
            return event
        lock = self._locks.setdefault(id(session), asyncio.Lock())
        return await asyncio.shield(self._append(session, event, lock))

    async def _append(self, session: Session, event: Event, lock: asyncio.Lock) -> Event:
        async with lock:
            if any(each.id == event.id and each == event for each in session.events):
                return event
            self._apply_temp_state(session, event)
            event = self._trim_temp_delta_state(event)
            made = await self._store(session, event)
            session._storage_update_marker, session.last_update_time = _marker(made), event.timestamp
            return self._commit_event_to_session(session, event)

    async def _store(self, session: Session, event: Event) -> Checkpoint:
        thread = self._thread(session.app_name, session.user_id, session.id)
        base = await _base(thread, session)
        data = event.model_dump_json(exclude_none=True).encode()
        scopes = _split(json.loads(data)["actions"]["state_delta"] if event.actions.state_delta else {})
        changes: list[Change] = [EntriesAppended(EVENTS, (RawValue(JSON, data),))]
        if scopes.session:
            changes.append(SlotSet(STATE, {**await _stored_state(thread, session, base), **scopes.session}))
        # The same event after the same revision has the same request id, so it is stored once.
        request_id = sha256(f"{base.version}:{base.digest.hex()}:".encode() + data).hexdigest()
        first = PreparedEdits(
            thread._ref, changes, base, {"metrics": {UPDATED: event.timestamp}, "request_id": request_id}
        )
        shared = self._shared(session.app_name, session.user_id, scopes, request_id)
        try:
            return (await self._save([first, *shared]))[0]
        except ThreadNotFound:
            raise _gone(session) from None
        except VersionMismatch:
            if not (await thread.hydrate(slots=[])).version:
                raise _gone(session) from None
            raise _stale(session) from None

    def _shared(self, app_name: str, user_id: str, scopes: _Scopes, request_id: str | None) -> list[PreparedEdits]:
        """What changes of the state of an app and a user. These are merges, so they meet no conflict."""
        places = ((self._app(app_name), scopes.app), (self._user(app_name, user_id), scopes.user))
        return [
            PreparedEdits(thread._ref, [SlotSet(*item) for item in delta.items()], None, {"request_id": request_id})
            for thread, delta in places
            if delta
        ]

    async def _save(self, prepared: Sequence[PreparedEdits]) -> list[Checkpoint]:
        return await self._client._session.run(apply_all(prepared))

    async def _read_app(self, app_name: str) -> dict[str, Any]:
        return _prefixed(await self._app(app_name).hydrate(), Scope.APP_PREFIX)

    async def _read_user(self, app_name: str, user_id: str) -> dict[str, Any]:
        return _prefixed(await self._user(app_name, user_id).hydrate(), Scope.USER_PREFIX)

    def _app(self, app_name: str) -> AsyncThread:
        return self._client.thread(_name("apps", app_name))

    def _user(self, app_name: str, user_id: str) -> AsyncThread:
        return self._client.thread(_name("users", app_name, user_id))

    def _thread(self, app_name: str, user_id: str, session_id: str) -> AsyncThread:
        return self._client.thread(_name("sessions", app_name, user_id, session_id.strip()))


class _Scopes(NamedTuple):
    """A change of state by the place that keeps it, without prefixes."""

    app: dict[str, Any]
    user: dict[str, Any]
    session: dict[str, Any]


def _split(delta: Mapping[str, Any]) -> _Scopes:
    """Takes a change of state apart. What begins with `temp:` is kept nowhere."""
    prefixes = (Scope.APP_PREFIX, Scope.USER_PREFIX, Scope.TEMP_PREFIX)
    session = {key: value for key, value in delta.items() if not key.startswith(prefixes)}
    return _Scopes(_unprefixed(delta, prefixes[0]), _unprefixed(delta, prefixes[1]), session)


def _unprefixed(state: Mapping[str, Any], prefix: str) -> dict[str, Any]:
    return {key.removeprefix(prefix): value for key, value in state.items() if key.startswith(prefix)}


def _prefixed(state: State, prefix: str) -> dict[str, Any]:
    return {prefix + key: value for key, value in state.slots.items()}


async def _read_events(thread: AsyncThread, config: GetSessionConfig) -> tuple[State, list[Event]]:
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


def _session(
    app_name: str, user_id: str, session_id: str, state: State, shared: Mapping[str, Any], events: list[Event]
) -> Session | None:
    if state.checkpoint is None:
        return None
    session = Session(
        app_name=app_name,
        user_id=user_id,
        id=session_id,
        state={**state.slots[STATE], **shared},
        events=events,
        last_update_time=state.checkpoint.metrics[UPDATED],
    )
    session._storage_update_marker = _marker(state.checkpoint)
    return session


def _marker(made: Checkpoint) -> str:
    """What ADK keeps with a session object and its copies, to tell whether it is still the stored one."""
    return f"{made.version}:{made.digest.hex()}"


async def _base(thread: AsyncThread, session: Session) -> Checkpoint:
    """Returns the version that a session object was read from.

    A session object that no service made has no marker. It counts as the newest one if it ends with the same event.
    """
    if session._storage_update_marker is not None:
        version, _, digest = session._storage_update_marker.partition(":")
        return Checkpoint.from_proto(checkpoint_pb2.Checkpoint(version=int(version), digest=bytes.fromhex(digest)))
    state = await thread.hydrate(slots=[], logs={EVENTS: 1})
    if state.checkpoint is None:
        raise _gone(session)
    if [each.id for each in _events(state)] != [each.id for each in session.events[-1:]]:
        raise _stale(session)
    return state.checkpoint


async def _stored_state(thread: AsyncThread, session: Session, base: Checkpoint) -> dict[str, Any]:
    """Returns the session's own state as it is stored; what a program put into `session.state` besides is not."""
    try:
        state = await thread.hydrate(base.version, slots=[STATE])
    except ThreadNotFound:
        raise _gone(session) from None
    except (VersionNotFound, VersionPruned):
        raise _stale(session) from None
    found: dict[str, Any] = state.slots[STATE]
    return found


def _stale(session: Session) -> StaleSessionError:
    return StaleSessionError(f"Session {session.id} has got other events since it was read; get it again.")


def _gone(session: Session) -> SessionNotFoundError:
    return SessionNotFoundError(f"Session {session.id} not found.")


async def _gather(read: Callable[[T], Awaitable[R]], items: Iterable[T]) -> list[R]:
    """Reads many things, a few at a time."""
    turns = asyncio.Semaphore(READS)

    async def read_in_turn(item: T) -> R:
        async with turns:
            return await read(item)

    return list(await asyncio.gather(*map(read_in_turn, items)))


def _name(kind: str, *parts: str) -> str:
    """The name of a thread. A slash in a part is escaped, so different parts have different names."""
    return "/".join(("adk", kind, *(part.replace("%", "%25").replace("/", "%2F") for part in parts)))


def _session_id(name: str) -> str:
    return name.rpartition("/")[2].replace("%2F", "/").replace("%25", "%")
