"""Data of every kind, ways to damage them, and a look at everything that can be read of them.

The data are made by a real daemon. Damaged copies are opened by the same store in this process: hundreds of them, each
as a restart would see it, without hundreds of processes. tests/faults/test_damage_on_the_wire.py does a few over gRPC.
"""

from __future__ import annotations

import random
import shutil
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
from tests.daemon.store import findings, opened, save_request, settle
from tests.daemon.wire import Wire, appends, sets, text

from stateward._operations.threads import spans_of
from stateward.testing import run_daemon
from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.admin_service_pb2 import GetStatsRequest, VerifyFinding
from stateward.v1.checkpoint_pb2 import VersionRef
from stateward.v1.diff_pb2 import Append, Diff, Edit
from stateward.v1.effect_pb2 import Effect
from stateward.v1.effect_service_pb2 import ListEffectsRequest, PutEffectsRequest
from stateward.v1.signal_service_pb2 import SendSignalRequest
from stateward.v1.state_pb2 import Value
from stateward.v1.thread_pb2 import Retention
from stateward.v1.write_pb2 import WriteOptions
from stateward_sidecar.errors import KeyUnavailable, StatewardError
from stateward_sidecar.storage import layout
from stateward_sidecar.store.items.signals import list_signals
from stateward_sidecar.store.store import Store

MAP_BYTES = 256 << 20
SPACE, OTHER = "space", "other space"
NAMES = ("alpha", "beta", "large")
HEALTHY, GONE = "healthy", "gone"
# What a damaged row may cost its own thread.
DAMAGE = ("CORRUPT", "KEY_UNAVAILABLE")
Rows = dict[bytes, bytes]


@dataclass
class Made:
    """A data directory at rest, and the saves that made it."""

    directory: Path
    key: bytes
    saves: dict[tuple[str, str], list[c.SaveRequest]]
    numbers: dict[int, str] = field(default_factory=dict)  # thread number → name
    older: dict[bytes, list[bytes]] = field(default_factory=dict)  # what rows held before, and rows that went


def make(directory: Path) -> Made:
    """Threads with branches, tags, labels, checkpoint ids, request ids, TTL, retention, pruned versions, snapshots,
    edits in pieces; one deleted; one in another namespace."""
    saves: dict[tuple[str, str], list[c.SaveRequest]] = {}
    steps: list[Rows] = []
    with run_daemon(directory, sweep_interval=0) as daemon:
        wire = Wire(daemon.target)
        for name in (GONE, "alpha", "beta"):
            saves[SPACE, name] = _fill(wire, name, lambda: steps.append(read_rows(directory)))
        saves[SPACE, "large"] = _fill_large(wire)
        saves[OTHER, HEALTHY] = [
            c.SaveRequest(
                namespace=OTHER, thread=HEALTHY, options=WriteOptions(request_id="h", expected_version=0),
                diff=appends("well"),
            )
        ]
        wire.save(saves[OTHER, HEALTHY][0])
        wire.threads.DeleteThread(t.DeleteThreadRequest(namespace=SPACE, thread=GONE))
        del saves[SPACE, GONE]
        assert wire.findings() == []
        wire.close()
        assert daemon.stop() == 0
        key = bytes.fromhex(Path(f"{directory}.key").read_text().strip())
    made = Made(directory, key, saves)
    rows = read_rows(directory)
    for step in steps:
        for row, value in step.items():
            if value != rows.get(row) and value not in made.older.setdefault(row, []):
                made.older[row].append(value)
    for space, name in saves:
        with opened(made.directory, key=key, settles=False) as store, store.context.engine.read() as txn:
            made.numbers[store.threads.get(txn, space, name).number] = name
    return made


def _fill(wire: Wire, name: str, after: Callable[[], None]) -> list[c.SaveRequest]:
    rnd = random.Random(name)
    saves = []
    at = {"namespace": SPACE, "thread": name}
    for version in range(8):
        save = c.SaveRequest(
            **at,
            options=WriteOptions(
                request_id=f"{name}-{version}", expected_version=version,
                create={"ttl": {"seconds": 10**6}, "retention": Retention(keep_last=100), "labels": {"of": "all"}},
            ),
            diff=appends(f"{name} {version} {rnd.randbytes(2500).hex()}"), checkpoint_id=f"step-{version}",
            labels={"agent": name}, step=version,
            metadata=text(f"about {name}"),
        )  # fmt: skip
        if version == 7:
            save.branch, save.options.expected_version = "side", 0
            save.parent.version = 4
            del save.diff.edits[:]
            save.diff.MergeFrom(sets("goal", f"{name} on the side"))
        wire.save(save)
        saves.append(save)
        if version in (2, 5):
            wire.threads.SetTag(
                t.SetTagRequest(**at, tag=f"tag-{version}", options=WriteOptions(request_id=f"tag-{version}"))
            )
        after()
    for number, value in enumerate((b"first", b"second")):
        rule = Effect.CONFLICT_RULE_REPLACE
        effects = [Effect(anchor=f"step-{n}", key="paid", value=Value(data=value), on_conflict=rule) for n in (0, 5, 6)]
        wire.effects.PutEffects(
            PutEffectsRequest(**at, effects=effects, options=WriteOptions(request_id=f"effects-{number}"))
        )
        wire.signals.SendSignal(
            SendSignalRequest(
                **at, name=f"hint {number}", sender=name, options=WriteOptions(request_id=f"hint-{number}")
            )
        )
        after()
    wire.threads.SetTag(t.SetTagRequest(**at, tag="tag-2", version=VersionRef(version=6)))
    wire.threads.PruneThread(t.PruneThreadRequest(**at, versions=spans_of([1, 2])))
    after()
    wire.threads.PruneThread(t.PruneThreadRequest(**at, versions=spans_of([3])))
    after()
    wire.threads.UpdateThread(t.UpdateThreadRequest(**at, update={"agent": name}, update_mask={"paths": ["agent"]}))
    return saves


def _fill_large(wire: Wire) -> list[c.SaveRequest]:
    rnd = random.Random("large")
    saves = []
    before = wire.admin.GetStats(GetStatsRequest()).snapshots
    for version in range(3):
        entry = Value(data=rnd.randbytes(1_200_000 if version == 1 else 100))
        save = c.SaveRequest(
            namespace=SPACE, thread="large",
            options=WriteOptions(request_id=f"large-{version}", expected_version=version),
            diff=Diff(edits=[Edit(append=Append(log="large", entries=[entry]))]),
        )  # fmt: skip
        wire.save(save)
        saves.append(save)
        while version == 1 and wire.admin.GetStats(GetStatsRequest()).snapshots == before:
            pass  # it is made in the background
    return saves


def read_rows(directory: Path) -> Rows:
    """Every row of a store, also of one that is open elsewhere."""
    with lmdb.open(str(directory), map_size=MAP_BYTES, readonly=True) as env, env.begin() as txn:
        return dict(txn.cursor())


def change_rows(directory: Path, changes: dict[bytes, bytes | None]) -> None:
    """Puts rows, or deletes them (None)."""
    with lmdb.open(str(directory), map_size=MAP_BYTES) as env, env.begin(write=True) as txn:
        for key, value in changes.items():
            if value is None:
                txn.delete(key)
            else:
                txn.put(key, value)


def copy(made: Made, to: Path, changes: dict[bytes, bytes | None] | None = None) -> Path:
    """A copy of the data with some rows changed."""
    shutil.rmtree(to, ignore_errors=True)
    to.mkdir()
    for name in ("data.mdb", "keys"):
        shutil.copy(made.directory / name, to / name)
    if changes:
        change_rows(to, changes)
    return to


Seen = dict[tuple[str, str], Any]


@dataclass(frozen=True)
class Failed:
    """A read that was refused."""

    reason: str
    thread: str
    version: str


def look(store: Store, made: Made, closely: Collection[str] = ()) -> Seen:
    """Everything that can be asked of the data: what came, or how it was refused. Nothing is written.

    With names of threads, the others are read once, by their histories, lists and newest states, and not by every name
    of every version: each look costs, and the tests look many hundred times.
    """
    seen: Seen = {}

    def ask(name: str, what: str, verb: Callable[[], Any]) -> None:
        try:
            # A history runs its own reads, and one read inside another would wait for ever.
            seen[name, what] = verb() if what.startswith("history") else store.read(verb)
        except StatewardError as error:
            seen[name, what] = Failed(error.reason, error.metadata.get("thread", ""), error.metadata.get("version", ""))

    for space, name in made.saves:
        at = {"namespace": space, "thread": name}
        ask(name, "thread", lambda at=at: _thread(store, at))
        refs = [VersionRef(version=version) for version in range(1, 10)]
        refs += [VersionRef(checkpoint_id=f"step-{number}") for number in range(8)]
        refs += [VersionRef(tag=tag) for tag in ("tag-2", "tag-5")]
        is_close = not closely or name in closely
        if not is_close:
            refs = [VersionRef(tag="tag-2"), *refs[6:9]]
        for ref in refs:
            what = str(ref).strip()
            for branch in ("", "side") if ref.checkpoint_id else ("",):
                request = c.HydrateRequest(**at, branch=branch, version=ref, max_bytes=64 << 20)
                ask(name, f"state {what} {branch}", lambda request=request: store.reader.hydrate(request))
                ask(name, f"about {what} {branch}", lambda request=request: store.reader.get(request))  # type: ignore[arg-type]
        for branch in ("", "side"):
            history = c.ReadHistoryRequest(**at, branch=branch)
            steps = partial(store.reader.history, history, store.read)
            ask(name, f"history {branch}", lambda steps=steps: [step() for step in steps()])
        if is_close:
            difference = c.DiffCheckpointsRequest(**at, max_bytes=64 << 20, base=VersionRef(version=0))
            ask(name, "difference", lambda difference=difference: store.reader.diff(difference))
        listing = c.ListCheckpointsRequest(**at)
        ask(name, "versions", lambda listing=listing: store.lister.checkpoints(listing))
        effects = ListEffectsRequest(**at)
        ask(name, "effects", lambda effects=effects: store.effect_list.read(effects))
        ask(name, "signals", lambda at=at: _signals(store, at))
        if space == SPACE:
            ask(name, "watch", lambda at=at: _watch(store, t.WatchRequest(**at, after_sequence=0)))
    return seen


def look_at_all(store: Store) -> dict[str, list[str]]:
    """What is shown of all threads together: one line for each thing a list or watch has, beginning with its thread.

    A namespace whose key is damaged shows nothing.
    """

    def lines(verb: Callable[[], Any]) -> list[str]:
        try:
            return sorted(f"{item.thread}: {item.sequence}" for item in store.read(verb))
        except KeyUnavailable:
            return []

    labelled = c.ListCheckpointsRequest(namespace=SPACE, thread="-", labels={"agent": "beta"})
    every = c.ListCheckpointsRequest(namespace=SPACE, thread="-")
    of_all = t.ListThreadsRequest(namespace=SPACE, labels={"of": "all"})
    watched = t.WatchRequest(namespace=SPACE, thread="-", after_cursor="n.0")
    return {
        "threads": lines(lambda: store.lister.threads(t.ListThreadsRequest(namespace=SPACE)).threads),
        "versions": lines(lambda: store.lister.checkpoints(every).checkpoints),
        "labels of threads": lines(lambda: store.lister.threads(of_all).threads),
        "labels": lines(lambda: store.lister.checkpoints(labelled).checkpoints),
        "watch": lines(lambda: _watch(store, watched)),
        "other": lines(lambda: store.lister.threads(t.ListThreadsRequest(namespace=OTHER)).threads),
    }


def hidden(before: dict[str, list[str]], after: dict[str, list[str]], damaged: set[str]) -> list[str]:
    """What lists and watches no longer show of threads that are not damaged."""
    lost = ((what, line) for what, lines in before.items() for line in lines if line not in after[what])
    return [f"{what} lost {line}" for what, line in lost if line.split(":")[0] not in damaged]


def retry_all(store: Store, made: Made, closely: Collection[str] = ()) -> Seen:
    """Sends every save again: each must be answered as before, or refused. The last step: it may write.

    With names of threads, the others get their first and their last one.
    """
    seen: Seen = {}
    for (_, name), saves in made.saves.items():
        for number, request in enumerate(saves):
            if closely and name not in closely and 0 < number < len(saves) - 1:
                continue
            try:
                answer = save_request(store, request)
                seen[name, f"retry {number}"] = answer.version, answer.receipt.digest, answer.receipt.replayed
            except StatewardError as error:
                found = Failed(error.reason, error.metadata.get("thread", ""), error.metadata.get("version", ""))
                seen[name, f"retry {number}"] = found
    return seen


def wrong(before: Seen, after: Seen, damaged: set[str]) -> list[str]:
    """What must not be: another answer than before, a refusal without name, a refusal of another thread."""
    found = []
    for place, value in after.items():
        name, what = place
        if value == before[place]:
            continue
        if name not in damaged:
            found.append(f"{name} {what}: another thread is affected: {_short(value)}")
        elif not isinstance(value, Failed):
            found.append(f"{name} {what}: wrong data: {_short(value)} instead of {_short(before[place])}")
        elif value.reason not in DAMAGE:
            found.append(f"{name} {what}: {value.reason} instead of {_short(before[place])}")
        elif value.thread != name:
            found.append(f"{name} {what}: {value.reason} names thread {value.thread!r}")
    return found


def victims(made: Made, key: bytes, value: bytes) -> set[str]:
    """Names of the threads that a damaged row may cost: at most the one it belongs to."""
    numbers = {b"T": key[1:5], b"N": value[1:5], b"W": value[:4], b"L": key[-12:-8], b"G": key[-4:]}
    number = int.from_bytes(numbers.get(key[:1], b""), "big")
    if key[:1] in (b"U", b"S"):
        number = layout.unpack_updated(key)[1]
    # What is not of a living thread is of the deleted one.
    return {made.numbers.get(number, GONE)}


def kind(key: bytes) -> str:
    """Table and tag of a row: "N", "TJ", "Mformat"."""
    if key[:1] == b"T":
        return f"T{chr(key[5])}"
    return key.decode() if key[:1] == b"M" else chr(key[0])


def _thread(store: Store, at: dict[str, str]) -> Any:
    from stateward_sidecar.store.journal.views import describe_thread

    with store.context.engine.read() as txn:
        return describe_thread(store.threads.get(txn, at["namespace"], at["thread"]), None)


def _signals(store: Store, at: dict[str, str]) -> Any:
    with store.context.engine.read() as txn:
        return list_signals(store.threads.get(txn, at["namespace"], at["thread"]).signals, 0, 1 << 30)[0]


def _watch(store: Store, request: t.WatchRequest) -> list[t.JournalEvent]:
    watch = store.watcher.open(request)
    found: list[t.JournalEvent] = []
    while True:
        before = watch.cursor
        events = store.watcher.read(watch)
        for event in events:
            if event.HasField("checkpoint"):
                event.checkpoint.stored_bytes = 0  # of a pruned version, it says what is left
        found += events
        if watch.is_over or (not events and watch.cursor == before):
            return found


def _short(value: Any) -> str:
    return repr(value)[:120]


@dataclass(frozen=True)
class Judged:
    """What a change of stored bytes did."""

    faults: list[str]  # what must never be
    is_felt: bool  # some answer differs
    findings: list[VerifyFinding]


class Judge:
    """Opens damaged copies and compares all that can be read with what it was."""

    def __init__(self, made: Made, scratch: Path) -> None:
        self.made = made
        self.rows = read_rows(made.directory)
        self.scratch = scratch
        with opened(copy(made, scratch), key=made.key, settles=False) as store:
            self._before, self._all = look(store, made), look_at_all(store)
            assert findings(store) == []
            self._retried = retry_all(store, made)
        assert all(isinstance(value, Failed) or value[2] for value in self._retried.values())

    def judge(self, damaged: set[str], changes: dict[bytes, bytes | None]) -> Judged:
        """Changes rows of threads that may be lost by it."""
        return self.judge_directory(damaged, copy(self.made, self.scratch, changes))

    def judge_directory(self, damaged: set[str], directory: Path) -> Judged:
        """The same, for a directory that was changed otherwise."""
        with opened(directory, key=self.made.key, settles=False) as store:
            settle(store)  # the start puts some index rows again
            after, found, everything = look(store, self.made, damaged), findings(store), look_at_all(store)
            retried = retry_all(store, self.made, damaged)
        faults = wrong(self._before, after, damaged) + hidden(self._all, everything, damaged)
        faults += wrong(self._retried, retried, damaged)
        is_felt = everything != self._all
        for before, seen in ((self._before, after), (self._retried, retried)):
            is_felt |= any(value != before[place] for place, value in seen.items())
        return Judged(faults, is_felt, found)
