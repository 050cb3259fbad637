"""The danger: a history that is read while versions are pruned ends early, or its changes lead to wrong states."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import grpc
import pytest

from stateward import Client
from stateward._io.blocking.driving import drive
from stateward._io.stubs import explain
from stateward._operations.steps import Pause, ThreadRef
from stateward._operations.streams import END, HistoryReader, Open, Reading
from stateward.changes import Append, SetSlot
from stateward.errors import UidMismatch, Unavailable, VersionMismatch, VersionNotFound, VersionPruned
from stateward.events import HistoryEntry
from stateward.testing import Daemon, run_daemon
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub


@pytest.fixture(scope="module")
def daemon() -> Iterator[Daemon]:
    with run_daemon(sweep_interval="0") as started:
        yield started


class Cut:
    """A history that is read message by message. `cut` breaks its stream."""

    def __init__(self, daemon: Daemon, thread: str, **options: Any) -> None:
        chosen = {"oldest": None, "at": None, "newest_first": False, "projection": None, "effects": False}
        reader = HistoryReader(ThreadRef("default", thread, "main"), **{**chosen, **options})
        self.reading: Reading[HistoryEntry] = Reading(reader, lambda: 30.0)
        self.is_cut = False
        self._client = daemon.client()
        self._stub = CheckpointServiceStub(self._client._session.connected().over_grpc().channel.opened)
        self._call: Any = None

    def cut(self) -> None:
        self.is_cut = True

    def next(self) -> HistoryEntry | None:
        """Returns the next entry, or None at the end."""
        while not self.reading.ready:
            if not drive(self.reading.next_message(), self._perform):
                return None
        return self.reading.ready.popleft()

    def _perform(self, step: Any) -> Any:

        if isinstance(step, Open):
            self._call = self._stub.ReadHistory(step.request, timeout=30)
            return None
        if isinstance(step, Pause):
            return None
        if self.is_cut:
            self.is_cut = False
            self._call.cancel()
            raise Unavailable("the connection broke")
        try:
            return next(self._call, END)
        except grpc.RpcError as failure:
            raise explain(failure, self._client._session.settings) from failure


def fill(client: Client, name: str, versions: int) -> None:
    thread = client.thread(name)
    state = thread.hydrate()
    for number in range(1, versions + 1):
        state.slots["x"] = number
        state.logs["l"].append(number)
        thread.save(state)


def fold(known: tuple[Any, list[Any]], entry: HistoryEntry) -> tuple[Any, list[Any]]:
    """Returns slot and log at an entry, made from those at the entry before."""
    if entry.begins:
        assert entry.state is not None
        return entry.state.slots["x"], list(entry.state.logs["l"])
    slot, log = known
    for change in entry.changes:
        match change:
            case SetSlot():
                slot = change.value
            case Append():
                log = [*log, *change.entries]
    return slot, log


@pytest.mark.parametrize("seed", range(25))
def test_every_entry_leads_to_its_state_whatever_is_pruned_meanwhile(daemon: Daemon, seed: int) -> None:
    """A history that is cut and pruned at random shows each version with its state, and all that stay, up to the
    end."""
    chance = random.Random(seed)
    name, versions = f"folded-{seed}", chance.randint(5, 30)
    with daemon.client() as client:
        fill(client, name, versions)
        left, seen = set(range(1, versions)), list[int]()
        known: tuple[Any, list[Any]] = None, []
        history = Cut(daemon, name)
        while (entry := history.next()) is not None:
            seen.append(entry.checkpoint.version)
            known = fold(known, entry)
            assert known == (entry.checkpoint.version, list(range(1, entry.checkpoint.version + 1)))
            if chance.random() < 0.3:
                history.cut()
                first = chance.randint(1, versions)
                gone = {each for each in range(first, first + chance.randint(1, 8)) if each in left}
                if gone:
                    client.thread(name).prune(versions=gone)
                    left -= gone
        # Like a history that is begun now, it goes back to the nearest ancestor that was pruned.
        line = list(range(max(set(range(versions)) - left), versions))[1:]
        assert seen == sorted(set(seen))
        assert set(seen) >= {*line, versions}


@pytest.mark.parametrize("gone", [{38}, {37}, {38, 39}, {1, 2}, {20, 38}, {36, 37, 38}])
def test_newest_first_goes_on_where_it_was(daemon: Daemon, gone: set[int]) -> None:
    """A history that is read newest first goes on at the parent of the last version, whether that is there or not."""
    name = f"back-{'-'.join(map(str, sorted(gone)))}"
    with daemon.client() as client:
        fill(client, name, 40)
        history, seen = Cut(daemon, name, newest_first=True), []
        while (entry := history.next()) is not None:
            seen.append(entry.checkpoint.version)
            assert entry.begins == (len(seen) == 1)
            if len(seen) == 3:
                history.cut()
                client.thread(name).prune(versions=gone)
    wanted = [version for version in range(40, 0, -1) if version >= 38 or version > max(gone - {38, 39}, default=0)]
    assert seen == wanted


@pytest.mark.parametrize("newest_first", [True, False])
def test_a_history_of_a_checkpoint_goes_on_where_it_was(daemon: Daemon, newest_first: bool) -> None:
    """The digest of the version at which a history ends is that of no other version of it."""
    name = f"known-{newest_first}"
    with daemon.client() as client:
        fill(client, name, 12)
        history, seen = Cut(daemon, name, newest_first=newest_first, at=client.thread(name).checkpoints.get(11)), []
        while (entry := history.next()) is not None:
            seen.append(entry.checkpoint.version)
            if len(seen) in (3, 6):
                history.cut()
    assert seen == (list(range(11, 0, -1)) if newest_first else list(range(1, 12)))


def test_a_named_beginning_that_is_gone_is_an_error(daemon: Daemon) -> None:
    """A history from a version on that the caller named does not skip what was pruned: it raises VersionPruned."""
    with daemon.client() as client:
        fill(client, "named", 20)
        history = Cut(daemon, "named", oldest=2)
        assert [history.next().checkpoint.version for _ in range(3)] == [2, 3, 4]  # type: ignore[union-attr]
        history.cut()
        client.thread("named").prune(versions=range(1, 10))
        with pytest.raises(VersionPruned):
            history.next()
        assert history.next() is None


def test_another_thread_of_that_name_is_not_continued(daemon: Daemon) -> None:
    """A history does not go on in a thread that was made under the same name meanwhile."""
    with daemon.client() as client:
        for newest_first in (False, True):
            fill(client, "reborn", 9)
            history = Cut(daemon, "reborn", newest_first=newest_first)
            history.next(), history.next()
            history.cut()
            client.thread("reborn").delete()
            fill(client, "reborn", 9)
            with pytest.raises(UidMismatch, match="deleted"):
                history.next()
            client.thread("reborn").delete()


def test_a_head_that_moved_to_another_line_is_an_error(daemon: Daemon) -> None:
    """A history does not go on in a line that the versions which were returned are not part of."""
    with daemon.client() as client:
        fill(client, "moved", 6)
        history = Cut(daemon, "moved")
        assert [history.next().checkpoint.version for _ in range(4)] == [1, 2, 3, 4]  # type: ignore[union-attr]
        history.cut()
        thread = client.thread("moved")
        thread.branches.move("main", 2)
        state = thread.hydrate()
        state.slots["x"] = "another"
        thread.save(state)
        with pytest.raises(VersionMismatch, match="moved"):
            history.next()


def test_a_daemon_that_restarts_and_prunes_ends_no_history() -> None:
    """A stream of the client that breaks with its daemon ends at the newest version, although the last one it showed
    was pruned."""
    with run_daemon(sweep_interval="0") as own, own.client(blob_threshold=1 << 30) as client:
        thread = client.thread("t")
        state = thread.hydrate()
        for number in range(40):
            state.slots["x"] = random.Random(number).randbytes(400_000)
            thread.save(state)
        seen = []
        with thread.history() as history:
            for entry in history:
                seen.append(entry.checkpoint.version)
                if len(seen) == 3:
                    own.kill()
                    own.start()
                    with own.client() as other:
                        other.thread("t").prune(versions=range(1, 30))
        assert seen[:3] == [1, 2, 3]
        assert seen[-11:] == list(range(30, 41))


def test_a_copy_of_what_was_pruned_is_named(daemon: Daemon) -> None:
    """Also where no version is left: who names a version learns that it was pruned, and not that it never was."""
    with daemon.client() as client:
        thread = client.thread("emptied")
        side = thread.branch("side")
        side.save(side.hydrate())
        thread.prune(versions=[1], move_heads=True)
        with pytest.raises(VersionPruned):
            thread.fork("copy", at=1)
        for options in ({}, {"all_versions": True}):
            with pytest.raises(VersionNotFound, match="has no version to copy"):
                thread.fork("copy", **options)  # type: ignore[arg-type]
