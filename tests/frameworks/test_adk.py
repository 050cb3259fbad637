"""The danger: an ADK agent loses an event, stores it twice, or sees another state than with ADK's own service in
memory."""

from __future__ import annotations

import asyncio
import copy
import math
import random
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stateward._operations.steps import Call
from stateward.errors import ServerUnavailable
from stateward.testing import Daemon, run_daemon

pytest.importorskip("google.adk", reason="the extra adk is not installed")
from google.adk.errors import StaleSessionError
from google.adk.errors.already_exists_error import AlreadyExistsError
from google.adk.errors.session_not_found_error import SessionNotFoundError
from google.adk.events.event import Event
from google.adk.events.event_actions import EventActions
from google.adk.platform import time as clock
from google.adk.sessions import InMemorySessionService, Session
from google.adk.sessions.base_session_service import BaseSessionService, GetSessionConfig
from google.genai import types
from tests.frameworks.adk_agent import PLACE, ask, runner_of, shown
from tests.frameworks.adk_writer import event_of
from tests.frameworks.forks import Forks, forks

from stateward.adk import StatewardSessionService

KEYS = ("app:a", "app:b", "user:a", "user:c/d", "temp:a", "a", "b", "ä%")
VALUES = (None, 1, "two ä", [3, {"four": 5.5}], {"six": None}, True)


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with run_daemon(tmp_path_factory.mktemp("adk") / "data") as daemon:
        yield daemon


@pytest.fixture(scope="module")
def agents() -> Iterator[Forks]:
    with forks("adk_agent", "adk_writer") as waiting:
        yield waiting


def event(text: str, delta: dict[str, Any] | None = None, **fields: Any) -> Event:
    """An event of the user."""
    actions = EventActions(state_delta=delta or {})
    return Event(
        invocation_id="i",
        author="user",
        content=types.Content(role="user", parts=[types.Part(text=text)]),
        actions=actions,
        **fields,
    )


def watched(service: StatewardSessionService) -> list[Any]:
    """The calls that a service makes from now on, with their answers."""
    session, calls = service._client._session, list[Any]()
    perform = session.perform

    async def perform_watched(step: Any) -> Any:
        answer = await perform(step)
        if isinstance(step, Call):
            calls.append((step.method, step.request.ByteSize(), answer.ByteSize()))
        return answer

    session.perform = perform_watched  # type: ignore[method-assign]
    return calls


class Player:
    """Does the same to a service as another one does to another service."""

    def __init__(self, service: BaseSessionService, seed: int) -> None:
        self.service, self.chance = service, random.Random(seed)
        self.held: dict[tuple[str, str, str], Session] = {}

    def delta(self) -> dict[str, Any]:
        """A change of state."""
        return {self.chance.choice(KEYS): self.chance.choice(VALUES) for _ in range(self.chance.randrange(4))}

    async def step(self, made: Event) -> Any:
        """One random call. Returns what it answered."""
        app, user, name = (
            self.chance.choice("AB"),
            self.chance.choice(["ana", "b/c"]),
            self.chance.choice(["1", " 2 ", "3/%"]),
        )
        kind, delta, place = self.chance.random(), self.delta(), {"app_name": app, "user_id": user}
        made.actions.state_delta = copy.deepcopy(delta)
        key = (app, user, name)
        try:
            if kind < 0.15:
                self.held[key] = await self.service.create_session(**place, state=delta, session_id=name)
                return self.held[key].model_dump()
            if kind < 0.6 and key in self.held:
                answer = await self.service.append_event(self.held[key], made)
                return answer.model_dump(), self.held[key].model_dump()
            if kind < 0.8:
                most = self.chance.choice([None, 0, 1, 3])
                after = self.chance.choice([None, clock.get_time() - self.chance.randrange(40)])
                config = self.chance.choice([None, GetSessionConfig(num_recent_events=most, after_timestamp=after)])
                session = await self.service.get_session(**place, session_id=name, config=config)
                return None if session is None else session.model_dump()
            if kind < 0.9:
                listed = await self.service.list_sessions(app_name=app, user_id=self.chance.choice([None, user]))
                return listed.model_dump()
            if kind < 0.95:
                return await self.service.get_user_state(**place)
            self.held.pop(key, None)
            return await self.service.delete_session(**place, session_id=name)
        except (AlreadyExistsError, SessionNotFoundError) as error:
            return type(error)


@pytest.mark.parametrize("seed", range(3))
async def test_it_does_what_the_service_in_memory_does(daemon: Daemon, seed: int) -> None:
    """Any order of calls, with all scopes of state, partial reads, deletions, and names with special characters."""
    now = 1000.0
    clock.set_time_provider(lambda: now)
    async with StatewardSessionService(target=daemon.target, namespace=f"same-{seed}") as service:
        ours, theirs = Player(service, seed), Player(InMemorySessionService(), seed)
        for step in range(150):
            now += 1
            made = event(f"event {step}")
            assert await ours.step(made.model_copy(deep=True)) == await theirs.step(made), step
        assert len(theirs.held) > 4
    clock.reset_time_provider()


async def test_a_session_that_somebody_changed_is_stale(daemon: Daemon) -> None:
    """Nothing is merged or lost: the late append changes neither the store nor its own session object."""
    place = {"app_name": "stale", "user_id": "ana", "session_id": "1"}
    async with StatewardSessionService(target=daemon.target) as service:
        await service.create_session(**place)
        one, two = await service.get_session(**place), await service.get_session(**place)
        assert one is not None
        assert two is not None
        await service.append_event(one, event("first"))
        for delta in ({}, {"a": 1}, {"app:a": 1, "user:a": 1}):
            with pytest.raises(StaleSessionError, match="get it again"):
                await service.append_event(two, event("late", delta))
        assert (two.events, two.state) == ([], {})
        again = await service.get_session(**place)
        assert again == one
        await service.append_event(copy.deepcopy(one), event("second"))  # ADK copies sessions
        await service.delete_session(**place)
        with pytest.raises(SessionNotFoundError):
            await service.append_event(one, event("gone"))
        await service.create_session(**place)
        for number in range(2):  # as many versions as the deleted session had
            held = await service.get_session(**place)
            assert held is not None
            if number == 0:
                await service.append_event(held, event("new"))
        with pytest.raises(StaleSessionError):
            await service.append_event(one, event("into another session", {"a": 1}))
        with pytest.raises(AlreadyExistsError):
            await service.create_session(**place)


async def test_a_session_object_from_elsewhere_counts_by_its_last_event(daemon: Daemon) -> None:
    """One that was sent as JSON has no marker: it is the newest one, or stale."""
    place = {"app_name": "json", "user_id": "ana", "session_id": "1"}
    async with StatewardSessionService(target=daemon.target) as service:
        made = await service.create_session(**place)
        bare = Session.model_validate_json(made.model_dump_json())
        await service.append_event(bare, event("first"))
        bare._storage_update_marker = "2026-01-01T00:00:00"  # of another service
        await service.append_event(Session.model_validate_json(bare.model_dump_json()), event("second"))
        with pytest.raises(StaleSessionError):
            await service.append_event(Session.model_validate_json(bare.model_dump_json()), event("late"))
        with pytest.raises(SessionNotFoundError):
            await service.append_event(Session(id="2", app_name="json", user_id="ana"), event("nowhere"))


async def test_parallel_agents_append_to_one_session_object(daemon: Daemon) -> None:
    """They wait for each other, also for one whose caller went away; its event is stored and in the session."""
    place = {"app_name": "parallel", "user_id": "ana", "session_id": "1"}
    async with StatewardSessionService(target=daemon.target) as service:
        session = await service.create_session(**place)
        tasks = [asyncio.create_task(service.append_event(session, event(str(n), {"n": n}))) for n in range(8)]
        await asyncio.sleep(0)
        tasks[0].cancel()
        results = await asyncio.gather(*tasks, return_exceptions=True)
        assert [type(each) for each in results] == [asyncio.CancelledError, *[Event] * 7]
        stored = await service.get_session(**place)
        assert stored == session
        assert len(session.events) == 8


async def test_an_event_is_stored_once(daemon: Daemon) -> None:
    """When its answer was lost and the caller appends it again, and when it is appended again later."""
    place = {"app_name": "once", "user_id": "ana", "session_id": "1"}
    async with StatewardSessionService(target=daemon.target) as service:
        session = await service.create_session(**place)
        client = service._client._session
        perform = client.perform
        for delta in ({}, {"a": 1}, {"a": 2, "app:a": 1, "user:a": 1}):
            made = event("once", delta)

            async def lose(step: Any) -> Any:
                answer = await perform(step)
                if isinstance(step, Call) and step.method in {"Save", "BatchSave"}:
                    raise RuntimeError("lost")
                return answer

            client.perform = lose  # type: ignore[method-assign]
            with pytest.raises(RuntimeError, match="lost"):
                await service.append_event(session, made)
            client.perform = perform  # type: ignore[method-assign]
            await service.append_event(session, made)
            await service.append_event(session, made.model_copy(deep=True))
        stored = await service.get_session(**place)
        assert stored == session
        assert len(session.events) == 3
        assert (session.state["a"], session.state["app:a"]) == (2, 1)


async def test_an_event_is_stored_once_beside_a_prune(daemon: Daemon, monkeypatch: pytest.MonkeyPatch) -> None:
    """The answer to an append is lost, and the version that it started from is pruned before the event comes again.
    After that event another one is refused as stale."""
    async with StatewardSessionService(target=daemon.target, namespace="pruned") as service:
        session = await service.create_session(app_name="a", user_id="u", session_id="s")
        behind = session.model_copy(deep=True)
        save = service._save

        async def lose(prepared: Any) -> Any:
            await save(prepared)
            raise ServerUnavailable("the answer is lost", code="UNAVAILABLE")

        event = Event(author="u", actions=EventActions(state_delta={"k": 1}))
        monkeypatch.setattr(service, "_save", lose)
        with pytest.raises(ServerUnavailable):
            await service.append_event(session, event)
        monkeypatch.undo()
        await service._client.thread("adk/sessions/a/u/s").prune(keep_latest_per_branch=1)
        await service.append_event(session, event)
        await service.append_event(session, Event(author="u", actions=EventActions(state_delta={"l": 2})))
        found = await service.get_session(app_name="a", user_id="u", session_id="s")
        assert found is not None
        assert found.state == {"k": 1, "l": 2}
        assert len(found.events) == 2
        with pytest.raises(StaleSessionError):
            await service.append_event(behind, Event(author="u", actions=EventActions(state_delta={"k": 3})))


async def test_only_the_change_is_sent_and_only_the_tail_is_read(daemon: Daemon) -> None:
    """Of a long session; and a list by user reads that user's sessions, without their events."""
    place = {"app_name": "long", "user_id": "ana"}
    async with StatewardSessionService(target=daemon.target) as service:
        session = await service.create_session(**place, session_id="1")
        for start in range(300):
            await service.append_event(session, event("x" * 1000, timestamp=float(start)))
        await service.create_session(app_name="long", user_id="bob", session_id="2", state={"big": "y" * 100_000})
        calls = watched(service)
        await service.append_event(session, event("x" * 1000, {"user:seen": 1, "app:seen": 1}, timestamp=300.0))
        assert [(method, sent < 3000) for method, sent, _ in calls] == [("BatchSave", True)]
        for config, count in (
            (GetSessionConfig(num_recent_events=2), 2),
            (GetSessionConfig(after_timestamp=296.0), 5),
            (GetSessionConfig(after_timestamp=200.0, num_recent_events=3), 3),
            (GetSessionConfig(num_recent_events=0), 0),
        ):
            calls.clear()
            found = await service.get_session(**place, session_id="1", config=config)
            assert found is not None
            assert found.events == session.events[len(session.events) - count :]
            assert sum(read for _, _, read in calls) < 1500 * (count if config.after_timestamp is None else 64) + 2000
        found = await service.get_session(**place, session_id="1", config=GetSessionConfig(after_timestamp=150.0))
        assert found is not None
        assert found.events == session.events[150:]
        calls.clear()
        listed = await service.list_sessions(**place)
        assert [each.id for each in listed.sessions] == ["1"]
        assert len(calls) == 4  # the list, the app, the user, the session
        assert sum(read for _, _, read in calls) < 4000
        await service.create_session(**place, session_id="3")
    async with StatewardSessionService(target=daemon.target, list_states=False) as service:
        calls = watched(service)
        listed = await service.list_sessions(**place)
        assert [(each.id, each.state) for each in listed.sessions] == [("1", {}), ("3", {})]
        assert [method for method, _, _ in calls] == ["ListThreads"]
        await service.append_event(listed.sessions[1], event("to a listed session"))


async def test_a_fork_of_a_session_is_a_session(daemon: Daemon) -> None:
    """It has what the other one had, is listed, and each goes on by itself."""
    place = {"app_name": "fork", "user_id": "ana"}
    async with StatewardSessionService(target=daemon.target) as service:
        session = await service.create_session(**place, session_id="1", state={"a": 1})
        await service.append_event(session, event("before"))
        await service._client.thread("adk/sessions/fork/ana/1").fork("adk/sessions/fork/ana/2")
        await service.append_event(session, event("in the first"))
        forked = await service.get_session(**place, session_id="2")
        assert forked is not None
        await service.append_event(forked, event("in the second", {"a": 2}))
        listed = await service.list_sessions(**place)
        assert [(each.id, each.state["a"]) for each in listed.sessions] == [("1", 1), ("2", 2)]
        assert forked.events[0] == session.events[0]
        assert len(forked.events) == len(session.events) == 2


async def test_bytes_and_large_parts_come_back(daemon: Daemon) -> None:
    """A picture of two megabytes in an event, and values that JSON does not know in the state."""
    place = {"app_name": "bytes", "user_id": "ana", "session_id": "1"}
    part = types.Part(inline_data=types.Blob(data=random.Random(1).randbytes(2 << 20), mime_type="image/png"))
    async with StatewardSessionService(target=daemon.target) as service:
        session = await service.create_session(**place, state={"pair": (1, 2), "user:pair": (3, 4)})
        made = event("", {"model": types.Part(text="x")})
        made.content = types.Content(role="user", parts=[part])
        await service.append_event(session, made)
        found = await service.get_session(**place)
        assert found is not None
        assert found.events[0].content == made.content
        assert found.state["pair"] == [1, 2]
        assert found.state["model"]["text"] == "x"


@pytest.mark.timeout(290)
def test_two_processes_on_one_session_lose_nothing(daemon: Daemon, agents: Forks) -> None:
    """Each event is there once, in the order of its writer, and the state of app, user and session is the last one."""

    async def begin() -> None:
        async with StatewardSessionService(target=daemon.target) as service:
            await service.create_session(app_name="trips", user_id="ana", session_id="shared")

    async def read() -> Session | None:
        async with StatewardSessionService(target=daemon.target) as service:
            return await service.get_session(app_name="trips", user_id="ana", session_id="shared")

    asyncio.run(begin())
    writers = agents.run_together(*(["adk_writer", daemon.target, name, "30"] for name in ("one", "two")))
    assert [writer.returncode for writer in writers] == [0, 0], writers
    assert sum(int(writer.stdout) for writer in writers) > 0  # they met
    session = asyncio.run(read())
    assert session is not None
    texts = [each.content.parts[0].text for each in session.events]  # type: ignore[union-attr,index]
    for name in ("one", "two"):
        assert [text for text in texts if str(text).startswith(name)] == [f"{name}-{n}" for n in range(1, 31)]
        assert [session.state[key] for key in (name, f"app:{name}", f"user:{name}")] == [30, 30, 30]
    assert len(texts) == 60


@pytest.mark.parametrize("seed", range(2))
async def test_a_kill_of_the_daemon_parts_no_event_from_its_state(tmp_path: Path, seed: int) -> None:
    """Killed while a process appends: the last event, and the state of app, user and session, are from one append."""
    place = {"app_name": "trips", "user_id": "ana", "session_id": "shared"}
    with run_daemon(tmp_path / "data") as daemon:
        async with StatewardSessionService(target=daemon.target, retry_timeout=0.2) as service:
            session = await service.create_session(**place)

            async def write() -> int:
                acknowledged = 0
                try:
                    while True:
                        await service.append_event(session, event_of("one", acknowledged + 1))
                        acknowledged += 1
                except ServerUnavailable:
                    return acknowledged

            writing = asyncio.create_task(write())
            await asyncio.sleep(0.2 + random.Random(seed).random() * 0.1)
            await asyncio.to_thread(daemon.kill)
            acknowledged = await writing
        await asyncio.to_thread(daemon.start)
        async with StatewardSessionService(target=daemon.target) as service:
            stored = await service.get_session(**place)
        assert stored is not None
        count = len(stored.events)
        assert count in {acknowledged, acknowledged + 1}
        assert acknowledged > 0
        assert {stored.state[key] for key in ("one", "app:one", "user:one")} == {count}


@pytest.mark.slow
@pytest.mark.parametrize(("nth", "when"), [(2, "after"), (4, "before"), (4, "after")])
async def test_the_runner_continues_after_a_kill_of_the_agent(
    daemon: Daemon, agents: Forks, nth: int, when: str
) -> None:
    """Kill -9 before or after a save: what was said is there once, whole events only, and the next turn goes on."""
    name = f"killed-{nth}-{when}"
    killed = await asyncio.to_thread(agents.run, "adk_agent", daemon.target, name, str(nth), when)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    theirs = InMemorySessionService()
    await theirs.create_session(**PLACE, session_id=name)
    await ask(theirs, name, "What does Rome cost?")
    whole = shown(await theirs.get_session(**PLACE, session_id=name))
    async with StatewardSessionService(target=daemon.target) as service:
        left = shown(await service.get_session(**PLACE, session_id=name))
        saved = nth - 1 if when == "after" else nth - 2  # the first save makes the session
        assert left["events"] == whole["events"][:saved]
        assert ("asked" in left["state"]) == (saved > 2)
        await ask(service, name, "What does Rome cost?")
        done = shown(await service.get_session(**PLACE, session_id=name))
        assert done["events"][saved:][0] == ("user", ["What does Rome cost?"])
        assert done["events"][:saved] == left["events"]
        assert len(done["events"]) == saved + 4


async def test_the_runner_gives_the_model_the_same_after_a_kill(daemon: Daemon) -> None:
    """Kill -9 of the daemon between two turns, and another service object: as with the service in memory."""
    theirs = InMemorySessionService()
    await theirs.create_session(**PLACE, session_id="run")
    for text in ("What does Rome cost?", "Again, please."):
        await ask(theirs, "run", text)
    async with StatewardSessionService(target=daemon.target, namespace="run") as service:
        await service.create_session(**PLACE, session_id="run")
        await ask(service, "run", "What does Rome cost?")
    await asyncio.to_thread(daemon.kill)
    await asyncio.to_thread(daemon.start)
    async with StatewardSessionService(target=daemon.target, namespace="run") as service:
        await ask(service, "run", "Again, please.")
        ours = shown(await service.get_session(**PLACE, session_id="run"))
    assert ours == shown(await theirs.get_session(**PLACE, session_id="run"))
    assert ours["state"]["app:trips"] == 2
    assert "temp:secret" not in ours["state"]


def test_the_blocking_runner_works(daemon: Daemon) -> None:
    """It runs each turn in an event loop of its own."""
    service = StatewardSessionService(target=daemon.target, namespace="blocking")
    asyncio.run(service.create_session(**PLACE, session_id="run"))
    for _ in range(2):
        message = types.UserContent("What does Rome cost?")
        events = list(runner_of(service).run(user_id="ana", session_id="run", new_message=message))
        assert events[-1].content is not None
    found = shown(asyncio.run(service.get_session(**PLACE, session_id="run")))
    asyncio.run(service.close())
    assert len(found["events"]) == 8


async def test_nothing_of_a_session_is_readable_at_rest(tmp_path: Path) -> None:
    """Neither names, nor events, nor any scope of state. A deleted session's key is destroyed."""
    with run_daemon(tmp_path / "data") as daemon:
        async with StatewardSessionService(target=daemon.target) as service:
            place = {"app_name": "app-secret", "user_id": "user-secret", "session_id": "session-secret"}
            session = await service.create_session(**place, state={"app:a": "state-secret"})
            await service.append_event(session, event("event-secret", {"user:a": "state-secret", "b": "state-secret"}))
        daemon.stop()
        stored = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
        assert b"secret" not in stored


async def test_a_client_of_one_s_own_stays_open(daemon: Daemon) -> None:
    """And a client together with options for one is refused."""
    async with daemon.async_client() as client:
        async with StatewardSessionService(client=client) as service:
            await service.create_session(app_name="own", user_id="ana", session_id="a/b")
        thread = client.thread("adk/sessions/own/ana/a%2Fb")
        assert (await thread.info()).labels == {"adk_app": "own", "adk_user": "ana"}
        with pytest.raises(TypeError, match="either a client"):
            StatewardSessionService(client=client, target=daemon.target)


async def test_the_lowest_price_so_far_is_kept(daemon: Daemon) -> None:
    """NaN and infinities come back, in the state and in the event, from another service too."""
    place: Any = {"app_name": "prices", "user_id": "ana", "session_id": "numbers"}
    async with StatewardSessionService(target=daemon.target) as service:
        session = await service.create_session(**place, state={"at_start": math.inf})
        delta = {"best": -math.inf, "user:mean": math.nan, "app:all": [math.nan]}
        await service.append_event(session, event("hello", delta))
    async with StatewardSessionService(target=daemon.target) as service:
        found = await service.get_session(**place)
        assert found is not None
        assert repr(sorted(found.state.items())) == repr(sorted(session.state.items()))
        assert repr(found.events[0].actions.state_delta) == repr(delta)
        assert {each.state["best"] for each in (await service.list_sessions(app_name="prices")).sessions} == {-math.inf}


async def test_bytes_in_the_state_have_one_form(daemon: Daemon) -> None:
    """The text that ADK's own services make of them, whether a session began with them or an event brought them."""
    place: Any = {"app_name": "bytes-in-two-ways", "user_id": "ana", "session_id": "one"}
    async with StatewardSessionService(target=daemon.target) as service:
        session = await service.create_session(**place, state={"created": b"token", "app:created": b"token"})
        await service.append_event(session, event("hello", {"appended": b"token", "user:appended": b"token"}))
        found = await service.get_session(**place)
    assert found is not None
    assert set(found.state.values()) == {"token"}
