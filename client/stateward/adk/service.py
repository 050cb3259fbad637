"""The session service: what ADK calls, and how writes of it are saved."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from hashlib import sha256
from typing import Any
from weakref import WeakValueDictionary

from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.events.event import Event
from google.adk.platform import time, uuid
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig, ListSessionsResponse
from google.adk.sessions.session import Session
from google.adk.sessions.state import State as Scope
from google.genai.types import Content

from stateward._answering import Answered, find_answers
from stateward._async.client import AsyncClient
from stateward._async.thread import AsyncThread
from stateward._connected import Connected
from stateward._keeping import keep, kept
from stateward._naming import is_orphans, name_for
from stateward._operations.applying import PreparedEdits, apply_all
from stateward._operations.saving import SaveOptions
from stateward._settling import settle
from stateward.adk._events import encode_event
from stateward.adk._sessions import (
    EVENTS,
    PLACE,
    STATE,
    UPDATED,
    Scopes,
    find_base,
    find_stored,
    gather,
    gone,
    make_session,
    marker_of,
    name_of,
    parts_of,
    prefixed,
    read_events,
    read_stored_state,
    slot_of,
    split,
    stale,
    unprefixed,
)
from stateward.adk._telling import USER, answer_of, calls_asked, status_after
from stateward.changes import Append, Change, SetSlot
from stateward.durations import Duration
from stateward.errors import ThreadNotFound, UidMismatch, VersionMismatch
from stateward.models import Checkpoint, Status, ThreadInfo
from stateward.options import Retention

APP_LABEL, USER_LABEL = "adk_app", "adk_user"


class StatewardSessionService(Connected, BaseSessionService):
    """Keeps each session as a thread of Stateward: its events in a log, its state in a slot.

    An append sends the event and the session's new state, and is durable when it returns. Of two writers from one
    revision of a session exactly one appends, and the other gets StaleSessionError. State with the prefix `app:` or
    `user:` is in a thread of its own for each app and each user, where every key is a slot: writers of different
    sessions never overwrite each other's keys. An event is saved together with all the state that it changes, or not
    at all.

    `list_sessions` reads the state of each session, as ADK's own services do. With `list_states=False` it reads none,
    and a list of thousands of sessions takes a few calls.

    `ttl` says how long after its last event a session is deleted, None = never. `retention` says which versions of a
    session are kept, None = all; the newest one has all events. Both are used when the session is made, and never for
    the state of an app or a user.

    `client` is an AsyncClient that you keep; without it the service makes one from `target`, `namespace` and the
    further options of `stateward.AsyncClient`, and `close` closes it. Use a namespace in which only this service makes
    threads.
    """

    def __init__(
        self,
        *,
        list_states: bool = True,
        ttl: Duration | None = None,
        retention: Retention | None = None,
        client: AsyncClient | None = None,
        target: str | None = None,
        namespace: str = "default",
        **options: Any,
    ) -> None:
        super().__init__(client, target, namespace, options, ttl=ttl, retention=retention)
        self._list_states = list_states
        # Parallel agents of one invocation share a session object. They append one after the other.
        self._locks: WeakValueDictionary[int, asyncio.Lock] = WeakValueDictionary()
        self._given: dict[str, Answered] = {}  # by thread: the answers that a run was given

    async def create_session(
        self,
        *,
        app_name: str,
        user_id: str,
        state: dict[str, Any] | None = None,
        session_id: str | None = None,
    ) -> Session:
        """Makes a session, and returns it with the state of its app and its user. Raises AlreadyExistsError.

        Every call of this service that writes comes to its end if it is cancelled: when CancelledError comes, the write
        is done, or never will be.
        """
        return await settle(self._create(app_name, user_id, state, (session_id or "").strip() or uuid.new_uuid()))

    async def _create(self, app_name: str, user_id: str, state: dict[str, Any] | None, session_id: str) -> Session:
        scopes = split(state or {}, "state")
        now = time.get_time()
        labels = {APP_LABEL: name_for(app_name), USER_LABEL: name_for(user_id)}
        create = replace(self._made_with, labels=labels)
        thread = self._thread(app_name, user_id, session_id)
        changes: list[Change] = [SetSlot(STATE, keep(scopes.session, "state"))]
        if parts_of(thread.name) is None:
            changes.append(SetSlot(PLACE, keep([app_name, user_id, session_id], PLACE)))
        first = PreparedEdits(thread._ref, changes, 0, {"create": create, "metrics": {UPDATED: now}})
        try:
            (made, *_) = await self._save([first, *self._shared(app_name, user_id, scopes, None)])
        except VersionMismatch:
            raise AlreadyExistsError(f"Session with id {session_id} already exists.") from None
        app, user = await asyncio.gather(self._read_app(app_name), self._read_user(app_name, user_id))
        return make_session(app_name, user_id, session_id, made, {**scopes.session, **app, **user}, [])

    async def get_session(
        self, *, app_name: str, user_id: str, session_id: str, config: GetSessionConfig | None = None
    ) -> Session | None:
        """Returns a session; None if there is none. Reads only the events that `config` asks for."""
        thread = self._thread(app_name, user_id, session_id)
        (state, events), app, user = await asyncio.gather(
            read_events(thread, config or GetSessionConfig()),
            self._read_app(app_name),
            self._read_user(app_name, user_id),
        )
        if state.checkpoint is None:
            return None
        merged = {**kept(state.slots[STATE]), **app, **user}
        return make_session(app_name, user_id, session_id.strip(), state.checkpoint, merged, events)

    async def list_sessions(self, *, app_name: str, user_id: str | None = None) -> ListSessionsResponse:
        """Lists the sessions of a user, or of all users of an app, the most recently changed last.

        They have their states, and no events. An index leads to them: other sessions are not read.
        """
        labels = {APP_LABEL: name_for(app_name)} | ({} if user_id is None else {USER_LABEL: name_for(user_id)})
        infos = self._client.threads(labels=labels, page_size=1000)
        listed = [info async for info in infos if not is_orphans(info.name)]
        found = zip(listed, await gather(self._place_of, listed), strict=True)
        heads, places = list[ThreadInfo](), list[tuple[str, str]]()
        for info, place in found:
            if place is not None:  # else it was deleted meanwhile
                heads.append(info)
                places.append(place)
        if self._list_states and heads:
            read = await gather(lambda info: self._client.thread(info.name).hydrate(slots=[STATE]), heads)
            users = sorted({user for user, _ in places})
            states = await gather(lambda user: self._read_user(app_name, user), users)
            app, by_user = await self._read_app(app_name), dict(zip(users, states, strict=True))
            sessions = [
                make_session(
                    app_name, user, name, state.checkpoint, {**kept(state.slots[STATE]), **app, **by_user[user]}, []
                )
                for (user, name), state in zip(places, read, strict=True)
                if state.checkpoint is not None  # the others were deleted meanwhile
            ]
        else:
            sessions = [make_session(app_name, *place, info, {}, []) for place, info in zip(places, heads, strict=True)]
        sessions.sort(key=lambda session: (session.last_update_time, session.user_id, session.id))
        return ListSessionsResponse(sessions=sessions)

    async def delete_session(self, *, app_name: str, user_id: str, session_id: str) -> None:
        """Removes a session with all its events and its key. The state of its app and its user stays."""
        await settle(self._thread(app_name, user_id, session_id).delete(missing_ok=True))

    async def get_user_state(self, *, app_name: str, user_id: str) -> dict[str, Any]:
        """Returns the state of a user, without the prefix `user:`."""
        return unprefixed(await self._read_user(app_name, user_id), Scope.USER_PREFIX)

    async def append_event(self, session: Session, event: Event) -> Event:
        """Appends an event to a session, here and in Stateward.

        Raises StaleSessionError if somebody else appended an event since `session` was read, and SessionNotFoundError
        if the session was deleted; `session` is unchanged then. After any other error the same event may be appended
        again, and is stored once. A cancelled call comes to its end first, and puts the event into `session`. Raises
        TypeError or ValueError for a value that is no JSON, with its place.
        """
        if event.partial:
            return event
        lock = self._locks.setdefault(id(session), asyncio.Lock())
        return await settle(self._append(session, event, lock))

    async def _append(self, session: Session, event: Event, lock: asyncio.Lock) -> Event:
        async with lock:
            if any(each.id == event.id and each == event for each in session.events):
                return event
            self._apply_temp_state(session, event)
            event = self._trim_temp_delta_state(event)
            made = await self._store(session, event)
            session._storage_update_marker, session.last_update_time = marker_of(made), event.timestamp
            return self._commit_event_to_session(session, event)

    async def answers(self, *, app_name: str, user_id: str, session_id: str) -> Content | None:
        """Returns the user's message with what somebody has answered to the calls that wait; None = answers are
        missing, or nothing waits.

            message = await service.answers(app_name="trips", user_id="ana", session_id="1")
            if message is not None:
                async for event in runner.run_async(user_id="ana", session_id="1", new_message=message):
                    ...

        A confirmation is confirmed, or not; any other call gets the answer as its result. The agent's next event
        acknowledges the answer. If the run fails before, this returns it again.
        """
        thread = self._thread(app_name, user_id, session_id)
        found = await settle(find_answers(thread))
        session = await self.get_session(app_name=app_name, user_id=user_id, session_id=session_id)
        if found is None or session is None:
            return None
        calls = calls_asked([each for each in session.events if not _answers(each, found)])
        parts = [
            answer_of(call, found.decisions[name_for(name)])
            for name, call in calls.items()
            if name_for(name) in found.decisions
        ]
        self._given[thread.name] = found
        return Content(role="user", parts=parts)

    def _tell(self, thread: str, session: Session, event: Event) -> tuple[SaveOptions, list[Change]]:
        """What an event tells, and what it changes besides. The message with a person's answers leaves the question
        open, because the agent may die before it has used them; its next event acknowledges them."""
        given, told = self._given.get(thread), SaveOptions()
        told = {**told, **status_after([*session.events, event])}
        if given is None or (event.author == USER and not _answers(event, given)):
            return told, []
        if event.author == USER:
            asked = given.state.question
            return {"status": Status.WAITING, "wait_id": given.signal.wait_id, "question": asked}, []
        return {**told, "ack": [given.signal]}, given.edits

    async def _store(self, session: Session, event: Event) -> Checkpoint:
        thread = self._thread(session.app_name, session.user_id, session.id)
        base = await find_base(thread, session)
        encoded = encode_event(event)
        scopes = split(event.actions.state_delta, "event.actions.state_delta")  # not as in the event
        changes: list[Change] = [Append(EVENTS, (encoded,))]
        if scopes.session:
            try:
                stored = await read_stored_state(thread, session, base)
            except StaleSessionError:
                # An append whose answer was lost may have stored the event, and a prune removed what it started from.
                if (made := await find_stored(thread, base, encoded)) is not None:
                    return made
                raise
            state = {**stored, **scopes.session}
            changes.append(SetSlot(STATE, keep(state, "state")))
        # The same event after the same revision has the same request id, so it is stored once.
        request_id = sha256(f"{base.version}:{base.digest.hex()}:".encode() + encoded.data).hexdigest()
        options: SaveOptions = {"metrics": {UPDATED: event.timestamp}, "request_id": request_id}
        told, more = self._tell(thread.name, session, event)
        first = PreparedEdits(thread._ref, [*changes, *more], base, {**options, **told})
        shared = self._shared(session.app_name, session.user_id, scopes, request_id)
        try:
            made = (await self._save([first, *shared]))[0]
            if told.get("ack"):
                self._given.pop(thread.name, None)
            return made
        except (ThreadNotFound, UidMismatch):
            raise gone(session) from None
        except VersionMismatch:
            if not (await thread.hydrate(slots=[])).version:
                raise gone(session) from None
            raise stale(session) from None

    def _shared(self, app_name: str, user_id: str, scopes: Scopes, request_id: str | None) -> list[PreparedEdits]:
        """What changes of the state of an app and a user. These are merges, so they meet no conflict."""
        places = ((self._app(app_name), scopes.app), (self._user(app_name, user_id), scopes.user))
        return [
            PreparedEdits(thread._ref, [_set_key(*item) for item in delta.items()], None, {"request_id": request_id})
            for thread, delta in places
            if delta
        ]

    async def _place_of(self, info: ThreadInfo) -> tuple[str, str] | None:
        """Returns user and id of a session; None = it was deleted meanwhile."""
        parts = parts_of(info.name)
        if parts is None:
            parts = kept((await self._client.thread(info.name).hydrate(slots=[PLACE])).slots.get(PLACE))
        return None if parts is None else (parts[1], parts[2])

    async def _save(self, prepared: Sequence[PreparedEdits]) -> list[Checkpoint]:
        return await self._client._session.run(apply_all(prepared))

    async def _read_app(self, app_name: str) -> dict[str, Any]:
        return prefixed(await self._app(app_name).hydrate(), Scope.APP_PREFIX)

    async def _read_user(self, app_name: str, user_id: str) -> dict[str, Any]:
        return prefixed(await self._user(app_name, user_id).hydrate(), Scope.USER_PREFIX)

    def _app(self, app_name: str) -> AsyncThread:
        return self._client.thread(name_of("apps", app_name))

    def _user(self, app_name: str, user_id: str) -> AsyncThread:
        return self._client.thread(name_of("users", app_name, user_id))

    def _thread(self, app_name: str, user_id: str, session_id: str) -> AsyncThread:
        return self._client.thread(name_of("sessions", app_name, user_id, session_id.strip()))


def _answers(event: Event, given: Answered) -> bool:
    """Whether an event is the user's message with these answers."""
    found = (name_for(each.id) for each in event.get_function_responses() if each.id)
    return event.author == USER and not given.decisions.keys().isdisjoint(found)


def _set_key(key: str, value: Any) -> SetSlot:
    slot, value = slot_of(key, value)
    return SetSlot(slot, keep(value, f"state[{key!r}]"))
