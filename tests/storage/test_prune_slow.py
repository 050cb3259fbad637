"""The danger: a prune reads the whole thread, holds up saves while it clears away, or loses what was saved beside
it."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import Any

import pytest
from tests.daemon.clocks import MovedClock
from tests.daemon.store import findings, get, hydrate, opened, rest, save, save_many, write
from tests.messages import to_write

from stateward._operations.threads import numbers_of, spans_of
from stateward.v1.checkpoint_service_pb2 import SaveRequest
from stateward.v1.diff_pb2 import Diff
from stateward.v1.thread_pb2 import Retention
from stateward.v1.thread_service_pb2 import PruneThreadRequest, PruneThreadResponse, SetTagRequest
from stateward_sidecar.codec.snapshot import to_snapshot
from stateward_sidecar.errors import DiskFull, ShuttingDown, VersionPruned
from stateward_sidecar.storage import layout
from stateward_sidecar.store.clean import clear, lineage
from stateward_sidecar.store.clean.clear import Clearer
from stateward_sidecar.store.clean.pruneplan import Plan
from stateward_sidecar.store.journal import replay
from stateward_sidecar.store.store import Store
from stateward_sidecar.store.thread.ranges import Ranges
from stateward_sidecar.store.thread.thread import rows
from stateward_sidecar.store.versions import snapshots

LINE = 300
BLOCKS = [random.Random(number).randbytes(2000) for number in range(3)]


def entry(data: bytes, **fields: Any) -> SaveRequest:
    """A save that appends one entry."""
    request = to_write(SaveRequest, diff=Diff(), **fields)
    request.diff.edits.add().append.log = "m"
    request.diff.edits[0].append.entries.add(media_type="a/b", data=data)
    return request


def line(store: Store, count: int, size: int = 20) -> None:
    """Appends so many versions to main."""
    save_many(store, (entry(os.urandom(size)) for _ in range(count)))


def snapshot(store: Store, version: int) -> tuple[bytes, bytes]:
    """Digest and content of a version's snapshot."""
    with store.context.engine.read() as txn:
        digest = replay.read_version(txn, get(store), version).header.digest
        return digest, to_snapshot(replay.state_at(txn, get(store), version, store.context.cache))


def cut(store: Store, **fields: Any) -> PruneThreadResponse:
    """Prunes by request."""
    return store.pruner.prune(to_write(PruneThreadRequest, namespace="default", thread="t", **fields))


def states(store: Store) -> dict[int, bytes]:
    """Every retained version, read from the disk."""
    thread = get(store)
    store.threads.forget(thread)
    return {
        version: hydrate(store, version=version).state.SerializeToString(deterministic=True)
        for version in thread.pruned.missing(thread.head.last_version)
    }


def left_over(store: Store) -> int:
    """Pruned versions that still have rows of their own."""
    with store.context.engine.read() as txn:
        return len(list(rows(txn, b"P")))


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Counts the journal entries that are read."""
    count = [0]
    for module in (replay, clear, lineage):
        original = module.unpack

        def counted(*arguments: Any, original: Any = original) -> Any:
            count[0] += 1
            return original(*arguments)

        monkeypatch.setattr(module, "unpack", counted)
    return count


def test_a_prune_reads_what_it_prunes(tmp_path: Path, reads: list[int]) -> None:
    """After the first one in a process, pruning ten versions reads some dozens of entries, however many stay."""
    with opened(tmp_path) as store:
        line(store, LINE)
        store.snapshots.store(get(store), LINE - 20, *snapshot(store, LINE - 20), get(store).branches["main"])
        cut(store, keep_latest_per_branch=LINE - 10)
        store.context.cache.drop_thread(get(store).number)
        before = reads[0]
        assert len(list(numbers_of(cut(store, keep_latest_per_branch=LINE - 20).pruned))) == 10
        assert reads[0] - before < LINE / 3
        assert findings(store) == []


def test_an_age_rule_reads_nothing_while_nothing_ages(tmp_path: Path, reads: list[int]) -> None:
    """Sweeps look at a thread again when its next version is old enough, and then remove it."""
    clock = MovedClock()
    with opened(tmp_path, clock) as store:
        rule = Retention(keep_for={"seconds": 1800})
        first = entry(b"first")
        first.options.create.retention.CopyFrom(rule)
        save_many(store, [first])
        line(store, LINE)
        store.sweeper.sweep()
        before = reads[0]
        for _ in range(5):
            store.sweeper.sweep()
        assert reads[0] == before
        clock.ahead_s = 1801
        store.sweeper.sweep()
        assert get(store).head.retained_versions == 1
        assert findings(store) == []


def test_a_version_saved_beside_a_sweep_is_not_overlooked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Saved right after the rule was applied: the next sweeps prune for it, though nothing more is written."""
    with opened(tmp_path) as store:
        rule = Retention(keep_last=2)
        first = entry(b"x")
        first.options.create.retention.CopyFrom(rule)
        save_many(store, [first])
        line(store, 4)
        retain = store.pruner.retain

        def retain_then_save(namespace: str, name: str) -> int:
            pruned = retain(namespace, name)
            monkeypatch.setattr(store.pruner, "retain", retain)
            line(store, 1)
            return pruned

        monkeypatch.setattr(store.pruner, "retain", retain_then_save)
        store.sweeper.sweep()
        assert get(store).head.retained_versions == 3
        store.sweeper.sweep()
        assert get(store).head.retained_versions == 2


def test_each_step_holds_the_writer_briefly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many versions go, no write clears more than fit into a step."""
    monkeypatch.setattr(clear, "STEP_S", 0.0)
    stripped: list[list[int]] = [[]]
    strip, step = clear._strip_if_whole, Clearer._step

    def counted(work: Any, version: int, sequence: int) -> None:
        stripped[-1].append(version)
        strip(work, version, sequence)

    def begun(*arguments: Any) -> Any:
        stripped.append([])
        return step(*arguments)

    with opened(tmp_path) as store:
        line(store, 30)
        monkeypatch.setattr(clear, "_strip_if_whole", counted)
        monkeypatch.setattr(Clearer, "_step", begun)
        monkeypatch.setattr(clear.time, "perf_counter", iter(range(10**6)).__next__)
        monkeypatch.setattr(clear, "STEP_S", 3)
        cut(store, keep_latest_per_branch=10)
        assert sum(map(len, stripped)) == 20
        assert max(map(len, stripped)) <= 4
        assert left_over(store) == 0
        monkeypatch.undo()
        assert findings(store) == []


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_a_crash_between_steps_harms_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, steps: int) -> None:
    """What was pruned stays pruned, what stays is readable and whole, and the next start clears away the rest."""
    monkeypatch.setattr(clear, "STEP_S", 0.0)
    monkeypatch.setattr(snapshots, "WEIGHT_BY_SIZE", 1)
    with opened(tmp_path) as store:
        for _ in range(4):
            line(store, 8, 4000)
            hydrate(store)
            store.snapshots.consider(get(store), "main")
            rest(store)
        assert len(get(store).snapshots) > 2
        expected = states(store)
        step, left = Clearer._step, [steps]

        def dying(*arguments: Any) -> Any:
            left[0] -= 1
            if left[0] < 0:
                raise ShuttingDown("dead")
            return step(*arguments)

        with monkeypatch.context() as dead:
            dead.setattr(Clearer, "_step", dying)
            cut(store, keep_latest_per_branch=5)
        assert left_over(store) == 1
        kept = {version: expected[version] for version in range(28, 33)}
        assert states(store) == kept
        assert findings(store) == []
        with pytest.raises(VersionPruned):
            hydrate(store, version=3)
        number, before = get(store).number, get(store).head.stored_bytes
    with opened(tmp_path) as store:
        rest(store)
        assert left_over(store) == 0
        assert states(store) == kept
        assert findings(store) == []
        assert get(store).head.stored_bytes < before * 2 / 3
        assert number == get(store).number
        assert min(get(store).snapshots) > 8  # dictionaries of what is gone are gone


@pytest.mark.parametrize("row", [b"\x01\xff\xff", b"\x01\x0a\x0c\x08\x01\x10" + b"\xff" * 8 + b"\x7f", b""])
def test_a_damaged_note_of_what_to_clear_costs_room_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, row: bytes
) -> None:
    """One that cannot be read, or that names every number there is, is neither followed for ever nor in the way."""
    with opened(tmp_path) as store:
        line(store, 20)
        expected = states(store)
        with monkeypatch.context() as dying:
            dying.setattr(store.pruner._clearer, "clear", lambda *_: None)
            cut(store, keep_latest_per_branch=10)
        write(store, lambda txn, batch: txn.put(layout.uncleared_key(get(store).number), row))
        write(store, lambda txn, batch: txn.put(b"P", row) and txn.put(b"Hx", row))
        store.sweeper.sweep()
        cut(store, keep_latest_per_branch=5)
        assert states(store) == {version: expected[version] for version in range(16, 21)}
        assert findings(store) == []


def test_what_came_after_the_plan_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tag, or a branch from a version that was about to go, makes the writer ask for a new plan."""
    with opened(tmp_path) as store:
        line(store, 20)
        expected, holds, rounds = states(store), Plan.holds, list[bool]()

        def asked(plan: Plan, *arguments: Any) -> bool:
            rounds.append(holds(plan, *arguments))
            return rounds[-1]

        commit, actions = store.pruner._commit_request, [tag_3, branch_from_5, lambda _: line(store, 2)]

        def meanwhile(*arguments: Any) -> Any:
            if actions:
                actions.pop(0)(store)
            return commit(*arguments)

        monkeypatch.setattr(Plan, "holds", asked)
        monkeypatch.setattr(store.pruner, "_commit_request", meanwhile)
        answer = cut(store, keep_latest_per_branch=4)
        assert rounds == [False, False, True]
        assert list(numbers_of(answer.pruned)) == [1, 2, 4, *range(6, 17)]
        now = states(store)
        assert {version: now[version] for version in expected if version in now} == {
            version: state for version, state in expected.items() if version in now
        }
        assert findings(store) == []


def tag_3(store: Store) -> None:
    request = SetTagRequest(namespace="default", thread="t", tag="kept", version={"version": 3})
    write(store, store.settings.set_tag(request))


def branch_from_5(store: Store) -> None:
    save_many(store, [entry(b"branch", branch="b", parent={"version": 5})])


def test_a_retry_of_a_prune_answers_as_the_first(tmp_path: Path) -> None:
    """The same request id removes nothing more."""
    with opened(tmp_path) as store:
        line(store, 20)
        first = cut(store, keep_latest_per_branch=15, request_id="r")
        line(store, 3)
        again = cut(store, keep_latest_per_branch=15, request_id="r")
        assert again.pruned == first.pruned
        assert again.receipt.sequence == first.receipt.sequence
        assert get(store).head.retained_versions == 18


def reference(store: Store, keep_last: int, older_than: int) -> list[int]:
    """What a rule lets go, looked up version by version."""
    thread, counts, doomed = get(store), dict[str, int](), list[int]()
    kept = {branch.version for branch in thread.branches.values()} | set(thread.tags.values())
    kept |= {branch.base_version for branch in thread.branches.values()}
    with store.context.engine.read() as txn:
        for version in reversed(list(thread.pruned.missing(thread.head.last_version))):
            found = replay.read_version(txn, thread, version)
            branch = replay.open_metadata(thread.identity, found).checkpoint.branch or "main"
            counts[branch] = counts.get(branch, 0) + 1
            is_new = counts[branch] <= keep_last or (older_than and found.header.create_time_us >= older_than)
            if not is_new and version not in kept:
                doomed.append(version)
    return doomed[::-1]


def test_ranges_have_in_common_what_both_have() -> None:
    """As sets of numbers do, whatever their pairs."""
    dice = random.Random(1)
    for _ in range(300):
        one, two = ({dice.randrange(40) for _ in range(dice.randrange(30))} for _ in range(2))
        both = [Ranges((number, number) for number in some) for some in (one, two)]
        assert set(both[0].common(both[1])) == one & two
        assert set(both[0].missing(39)) == set(range(1, 40)) - one
        assert set(both[0].after(20)) == {number for number in one if number > 20}
        assert set(both[0].until(20)) == {number for number in one if number <= 20}
        assert [both[0][at] for at in range(len(both[0]))] == sorted(one)
        with pytest.raises(IndexError):
            both[0][len(one)]


def test_a_rule_looks_at_scattered_versions_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """A version is found by its index without a look at all ranges, of which there may be thousands."""
    scattered = Ranges((2 * number, 2 * number) for number in range(1, 101))
    assert scattered[0] == 2
    monkeypatch.setattr(Ranges, "pairs", lambda _: pytest.fail("all ranges were looked at"))
    assert [scattered[at] for at in (0, 50, 99)] == [2, 102, 200]


@pytest.mark.parametrize("seed", range(6))
def test_what_stays_reads_as_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Histories with branches, parents, tags and dictionaries, pruned again and again by count, age and number."""
    dice, clock, used = random.Random(seed), MovedClock(), set[int]()
    monkeypatch.setattr(snapshots, "WEIGHT_MIN_BYTES", 1500)
    monkeypatch.setattr(snapshots, "WEIGHT_BY_SIZE", 1)
    with opened(tmp_path, clock) as store:
        save_many(store, [entry(b"0")])
        for round_number in range(6):
            for _ in range(dice.randrange(3, 9)):
                grow(store, dice)
                clock.ahead_s += dice.choice((0, 10))
            expected = states(store)
            used |= dictionaries(store)
            doomed = shrink(store, dice, clock)
            now = states(store)
            assert sorted(now) == sorted(set(expected) - set(doomed)), (seed, round_number)
            assert now == {version: expected[version] for version in now}, (seed, round_number)
            assert findings(store) == [], (seed, round_number)
            thread = get(store)
            assert all(branch.snapshot_version not in thread.pruned for branch in thread.branches.values())
            assert left_over(store) == 0
        assert len(used) > 2


def dictionaries(store: Store) -> set[int]:
    """Snapshots that retained versions are compressed with."""
    thread = get(store)
    with store.context.engine.read() as txn:
        retained = thread.pruned.missing(thread.head.last_version)
        return {replay.read_version(txn, thread, version).header.dictionary_version for version in retained} - {0}


def words(dice: random.Random) -> bytes:
    """Data that is much like what was there before: worth a dictionary."""
    return dice.choice(BLOCKS) + dice.randbytes(300)


def grow(store: Store, dice: random.Random) -> None:
    """One to five versions on a branch, from its head or from any version; sometimes a snapshot or a tag."""
    thread, branch = get(store), dice.choice(["main", "main", "a", "b"])
    retained = list(thread.pruned.missing(thread.head.last_version))
    request = entry(words(dice), branch=branch)
    if branch not in thread.branches or dice.random() < 0.2:
        request.parent.version = dice.choice(retained)
    save_many(store, [request, *(entry(words(dice), branch=branch) for _ in range(dice.randrange(5)))])
    if dice.random() < 0.7:
        hydrate(store, version=get(store).branches[branch].version)
        store.snapshots.consider(get(store), branch)
        rest(store)
    if dice.random() < 0.3:
        tag = SetTagRequest(namespace="default", thread="t", tag=dice.choice("xy"))
        tag.version.version = dice.choice(retained)
        write(store, store.settings.set_tag(tag))


def shrink(store: Store, dice: random.Random, clock: MovedClock) -> list[int]:
    """Prunes somehow. Returns what went, which is what a plain look at each version says."""
    kind = dice.choice(["count", "age", "named"])
    if kind == "count":
        keep = dice.randrange(1, 6)
        doomed = reference(store, keep, 0)
        answer = cut(store, keep_latest_per_branch=keep)
    elif kind == "age":
        doomed = reference(store, 0, clock.now_us() - 25_000_000)
        answer = cut(store, older_than={"seconds": 25})
    else:
        free = reference(store, 0, 0)
        thread = get(store)
        free = [version for version in free if version not in {each.version for each in thread.branches.values()}]
        doomed = sorted(dice.sample(free, min(len(free), 5)))
        answer = cut(store, versions=spans_of(doomed)) if doomed else PruneThreadResponse()
    assert list(numbers_of(answer.pruned)) == doomed
    return doomed


def test_a_full_store_can_be_pruned(tmp_path: Path) -> None:
    """Pruning goes on where saves are refused, and makes room for them."""
    with opened(tmp_path, map_bytes=12 << 20) as store:
        with pytest.raises(DiskFull):
            fill(store)
        cut(store, keep_latest_per_branch=1)
        save(store, "again")
        assert findings(store) == []


def fill(store: Store) -> None:
    """Saves until nothing fits any more."""
    while True:
        request = SaveRequest(diff=Diff())
        edit = request.diff.edits.add().set_slot
        edit.slot, edit.value.data = "s", os.urandom(200_000)
        save_many(store, [request])
