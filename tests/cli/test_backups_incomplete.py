"""The danger: a backup that is taken for one, and lacks what an agent needs to go on: then a tool is paid twice."""

import gzip
import hashlib
import json
import os

import pytest
from tests.archive_faults.test_clock_jumps import set_clock
from tests.cli.conftest import run
from tests.cli.everything import HOLDER, fill, lists, read
from tests.daemon.process import started_with
from tests.daemon.wire import Wire, appends, refused

from stateward.v1 import checkpoint_service_pb2 as c
from stateward.v1 import effect_service_pb2 as e
from stateward.v1 import lease_service_pb2 as l
from stateward.v1 import record_service_pb2 as r
from stateward.v1 import signal_service_pb2 as s
from stateward.v1 import thread_service_pb2 as t
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE, EFFECT_STATE_NEW, EFFECT_STATE_UNCERTAIN
from stateward.v1.write_pb2 import WriteOptions

# The restore happens so long after the export: longer than the TTL of the thread and of the record that have one.
AGE_S = 30 * 86400
THREADS = ("rich", "no version", "lock", "store", "empty", "copy", "one")


@pytest.fixture(scope="module")
def stores(tmp_path_factory):
    """An original with every kind of thing, its export, and a daemon into which it was imported a month later."""
    from stateward.testing import run_daemon

    with run_daemon() as first:  # of its own: a worker may make this fixture twice
        yield from _stores(first, tmp_path_factory.mktemp("backup"))


def _stores(first, directory):
    from stateward.testing import run_daemon

    path, clock, wire = directory / "all.jsonl", set_clock(directory / "clock", AGE_S), Wire(first.target)
    fill(wire, "space")
    answer = run("--target", first.target, "-n", "space", "export", "--all", "--versions", "-o", path)
    assert answer.code == 0, answer.err
    assert "holds 7 threads, 16 versions, 301 records, 13 effects, 2 signals, 7 blobs, " in answer.error
    with started_with({"ARCHIVE_FAULTS_CLOCK": str(clock)}), run_daemon() as other:
        answer = run("--target", other.target, "-n", "space", "import", path)
        assert (answer.code, answer.err) == (0, "")
        assert "7 threads, 16 versions, 301 records, 13 effects, 2 signals, 7 blobs saved" in answer.out
        yield wire, Wire(other.target), path, other


@pytest.mark.parametrize("name", THREADS)
def test_everything_readable_is_equal(stores, name):
    """A restored thread answers every question of the API as the original does, but for what is named as different."""
    original, restored, *_ = stores
    before, after = read(original, "space", name, is_restored=False), read(restored, "space", name, is_restored=True)
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert after[key] == value, key


def test_lists_and_rows_are_equal(stores):
    """Lists across threads show the same, and Verify finds nothing in what was restored."""
    original, restored, *_ = stores
    assert lists(original, "space") == lists(restored, "space")
    assert restored.findings("space") == []


def record(wire, namespace, key):
    """A record of the rich thread."""
    return wire.records.GetRecords(r.GetRecordsRequest(namespace=namespace, thread="rich", keys=[key])).records[0]


def test_every_ttl_counts_from_the_restore(stores):
    """A thread and a record that would have expired since the export live for their whole TTL."""
    original, restored, *_ = stores
    for old, new in (
        (original.thread("space", "rich"), restored.thread("space", "rich")),
        (record(original, "space", "a/2"), record(restored, "space", "a/2")),
    ):
        assert new.ttl == old.ttl
        assert AGE_S <= new.expire_time.seconds - old.expire_time.seconds < AGE_S + 3600


def test_results_keep_their_age(stores):
    """An agent that wants no result older than a week does not get one of a month ago from a backup."""
    _, restored, path, other = stores
    assert run("--target", other.target, "-n", "aged", "import", path).code == 0
    at = {"namespace": "aged", "thread": "rich", "anchor": "a", "key": "done", "name": "tool", "holder": HOLDER}
    for days, state in ((31, EFFECT_STATE_DONE), (7, EFFECT_STATE_NEW)):
        begin = e.BeginEffectRequest(**at, options=WriteOptions(request_id=str(days)))
        begin.max_age.seconds = days * 86400
        assert restored.effects.BeginEffect(begin).state == state


def begin(wire, key, request_id, incarnation="2"):
    """Begins an effect of the rich thread, as an agent that goes on does."""
    holder = type(HOLDER)(name=HOLDER.name, incarnation=incarnation)
    at = {"namespace": "space", "thread": "rich", "anchor": "a", "name": "tool"}
    return wire.effects.BeginEffect(
        e.BeginEffectRequest(**at, key=key, holder=holder, options=WriteOptions(request_id=request_id))
    )


def test_no_tool_is_called_twice(stores):
    """A result is found again; a claim that was open is UNCERTAIN, also for its own request id, with the same key."""
    original, restored, *_ = stores
    done = begin(restored, "done", "x")
    assert (done.state, done.effect.effect.value.data) == (EFFECT_STATE_DONE, b"receipt")
    known = begin(original, "open", "effect open", HOLDER.incarnation)  # the first answer, once more
    again = begin(restored, "open", "effect open", HOLDER.incarnation)
    assert again.state == EFFECT_STATE_UNCERTAIN
    assert again.idempotency_key == known.idempotency_key
    assert again.claim_token > known.claim_token
    lost = e.CompleteEffectRequest(namespace="space", thread="rich", anchor="a", key="open", state=EFFECT_STATE_DONE)
    lost.claim_token = known.claim_token
    lost.value.data = b"late"
    assert refused(restored.effects.CompleteEffect, lost).reason == "CLAIM_LOST"


def test_retries_are_answered_as_the_first_time(stores):
    """Request ids and checkpoint ids of what is kept are known in the restored store."""
    original, restored, *_ = stores
    answer = s.SendSignalRequest(
        namespace="space", thread="rich", name="answer", wait_id="q", options=WriteOptions(request_id="answer")
    )
    sent = restored.signals.SendSignal(answer)
    assert sent.receipt.replayed
    assert sent.signal.signal_id == original.signals.SendSignal(answer).signal.signal_id
    second = s.SendSignalRequest(
        namespace="space", thread="rich", name="answer", wait_id="q", options=WriteOptions(request_id="other")
    )
    assert refused(restored.signals.SendSignal, second).reason == "STALE_ANSWER"
    save = c.SaveRequest(
        namespace="space", thread="kept", options=WriteOptions(request_id="r", expected_version=0), diff=appends("x")
    )
    save.checkpoint_id = "c"
    plain = c.SaveRequest(namespace="space", thread="kept", diff=appends("y"), options=WriteOptions(request_id="plain"))
    original.save(save)
    original.save(plain)
    count = c.SaveRequest(namespace="space", thread="kept", options=WriteOptions(request_id="count"))
    edit = count.diff.edits.add().add_number
    edit.slot, edit.delta = "hits", 7
    copied = save_and_copy(stores, count)
    assert restored.save(save).receipt.replayed
    assert restored.save(plain).receipt.replayed
    assert dict(restored.save(count).numbers) == dict(copied.numbers) == {"hits": 7}
    save.options.request_id = "another"
    assert restored.save(save).receipt.replayed
    assert restored.thread("space", "kept").version == copied.version == 3


def save_and_copy(stores, save):
    """Saves into the original and restores that thread alone."""
    original, _, path, other = stores
    saved = original.save(save)
    one = path.with_name("one.jsonl")
    assert run("--target", original.target, "-n", "space", "export", save.thread, "--versions", "-o", one).code == 0
    assert run("--target", other.target, "-n", "space", "import", one).code == 0
    return saved


def test_tokens_never_repeat(stores):
    """A lease of the original is worth nothing, and the next token is higher than all it gave out, copy after copy."""
    original, restored, path, other = stores
    old = original.described("space", "lock").lease.token
    assert old > 0
    assert not restored.described("space", "lock").HasField("lease")
    stale = c.SaveRequest(
        namespace="space", thread="lock", options=WriteOptions(expected_version=0, lease_token=old), diff=appends("x")
    )
    assert refused(restored.checkpoints.Save, stale).reason == "LEASE_HELD"
    again = path.with_name("again.jsonl")
    assert run("--target", other.target, "-n", "space", "export", "lock", "--versions", "-o", again).code == 0
    assert run("--target", other.target, "-n", "second", "import", again).code == 0
    tokens = [
        restored.leases.AcquireLease(
            l.AcquireLeaseRequest(namespace=space, thread="lock", holder=HOLDER, options=WriteOptions(request_id=space))
        ).lease.token
        for space in ("space", "second")
    ]
    assert old < tokens[0] < tokens[1]


def test_agent_goes_on(stores):
    """Saves on every branch go on from the restored heads, and the journal can be followed from its beginning."""
    _, restored, path, other = stores  # in a namespace of its own: others compare what they find in "space"
    assert run("--target", other.target, "-n", "goes on", "import", path).code == 0
    for branch in restored.described("goes on", "copy").branches:
        save = c.SaveRequest(
            namespace="goes on", thread="copy", branch=branch.name,
            options=WriteOptions(expected_version=branch.version, expected_digest=branch.version_digest),
            diff=appends("on"),
        )  # fmt: skip
        restored.save(save)
    watch = restored.threads.Watch(t.WatchRequest(namespace="goes on", thread="copy", after_sequence=0))
    assert next(watch).cursor
    assert {event.thread for event in next(watch).events} == {"copy"}
    watch.cancel()
    assert restored.findings("goes on", "copy") == []


def test_same_import_again_writes_nothing(stores):
    """Threads that the import made are passed over, also once they have gone on; --no-resume refuses them."""
    _, restored, path, other = stores
    before = {name: restored.thread("space", name) for name in ("rich", "empty")}
    answer = run("--target", other.target, "-n", "space", "import", path)
    assert (answer.code, answer.err) == (0, "")
    assert "0 versions saved" in answer.out
    assert {name: restored.thread("space", name) for name in before} == before
    answer = run("--target", other.target, "-n", "space", "import", path, "--no-resume")
    assert answer.code == 1
    assert answer.err.count("already exists") == len(THREADS)


def damaged(lines, how):
    """A file whose thread "rich" is damaged, and the words that the error has."""
    at = next(i for i, line in enumerate(lines) if '"attempts":1' in line)
    match how:
        case "line lost":
            return lines[:at] + lines[at + 1 :], "the file is damaged"
        case "line changed":
            changed = lines[at].replace('"attempts":1', '"attempts":2')
            return [*lines[:at], changed, *lines[at + 1 :]], "the file is damaged"
        case "lines swapped":
            return [*lines[:at], lines[at + 1], lines[at], *lines[at + 2 :]], "the file is damaged"
        case "no JSON":
            return [*lines[:at], lines[at][:-9], *lines[at + 1 :]], "is not JSON"
        case "cut off":
            return lines[:at], "the file is truncated"
        case "beginning lost":
            return lines[1:], "the first records"
        case "other blob":
            index = next(i for i, line in enumerate(lines) if '"kind":"data"' in line and len(line) > 1000)
            record = json.loads(lines[index])
            record["base64"] = "AAAA" + record["base64"][4:]
            changed = [*lines[:index], json.dumps(record), *lines[index + 1 :]]
            return [line for line in changed if '"kind":"end"' not in line] + [
                no_sum(lines)
            ], "have another size or SHA-256"
        case "too few":
            return [*lines[:at], *lines[at + 1 : -1], no_sum(lines)], "were received"
    raise AssertionError(how)


def no_sum(lines):
    """The end of a thread without the sum that finds damage, so that the daemon has to."""
    record = json.loads(next(line for line in lines if '"kind":"end"' in line))
    del record["sha256"]
    return json.dumps(record)


DAMAGES = (
    "line lost", "line changed", "lines swapped", "no JSON", "cut off", "beginning lost", "other blob", "too few",
)  # fmt: skip


@pytest.mark.parametrize("how", DAMAGES)
def test_damaged_thread_is_left_out(stores, how):
    """A thread whose records are not those that were exported is refused by name, and nothing of it is there."""
    _, restored, path, other = stores
    lines = [line for line in path.read_text().splitlines() if json.loads(line).get("thread") == "rich"]
    changed, told = damaged(lines, how)
    broken = path.with_name("broken.jsonl")
    broken.write_text("\n".join(changed) + "\n")
    answer = run("--target", other.target, "-n", "damaged", "import", broken)
    assert answer.code == 1
    assert told in answer.err
    assert len(restored.threads.ListThreads(t.ListThreadsRequest(namespace="damaged")).threads) == 0
    assert restored.findings() == []


def test_cut_off_between_threads_is_told(stores):
    """A file that ends after a whole thread, and before its own end, gives what it has and says what is missing."""
    _, restored, path, other = stores
    lines = path.read_text().splitlines()
    first = json.loads(lines[0])["thread"]
    part = path.with_name("part.jsonl")
    part.write_text("\n".join(line for line in lines if json.loads(line).get("thread") == first) + "\n")
    answer = run("--target", other.target, "-n", "part", "import", part)
    assert answer.code == 1
    assert "is truncated: threads at its end are missing" in answer.err
    assert restored.thread("part", first).thread == first


def test_threads_that_are_missing_in_the_middle_are_told(stores):
    """A file that lacks a whole thread gives the others, and is not taken for the whole."""
    _, restored, path, other = stores
    holed = path.with_name("holed.jsonl")
    lines = path.read_text().splitlines(keepends=True)
    holed.write_text("".join(line for line in lines if json.loads(line).get("thread") != "lock"))
    answer = run("--target", other.target, "-n", "holed", "import", holed)
    assert answer.code == 1
    assert f"has only {len(THREADS) - 1} of the {len(THREADS)} threads that were exported" in answer.err
    assert len(restored.threads.ListThreads(t.ListThreadsRequest(namespace="holed")).threads) == len(THREADS) - 1


def test_threads_that_find_no_room_are_named(stores, tmp_path):
    """If the store is full, each thread that was not restored is named."""
    from stateward.testing import run_daemon

    original, *_ = stores
    path = tmp_path / "large.jsonl"
    for name in ("one", "two", "three"):
        for at in range(3):
            data = os.urandom(1_900_000).hex()
            options = WriteOptions(request_id=str(at))
            original.save(c.SaveRequest(namespace="large", thread=name, diff=appends(data), options=options))
    assert run("--target", original.target, "-n", "large", "export", "--all", "--versions", "-o", path).code == 0
    with run_daemon(map_size="16MiB") as small:
        answer = run("--target", small.target, "-n", "large", "import", path)
        there = Wire(small.target).threads.ListThreads(t.ListThreadsRequest(namespace="large")).threads
        left = {each.thread for each in there}
    assert answer.code == 1
    assert left < {"one", "two", "three"}
    for name in {"one", "two", "three"} - left:
        assert f"thread {name!r} is not restored" in answer.err


def test_long_term_memory_outlives_its_ttl_in_a_backup(stores):
    """All items of a LangGraph store with a TTL come back from a backup that is older than the TTL."""
    from stateward.langgraph import StatewardStore

    original, _, path, other = stores
    memory = path.with_name("memory.jsonl")
    options = {"namespace": "memory", "ttl": {"default_ttl": 60}}
    with StatewardStore(original.target, **options) as store:
        for at in range(10):
            store.put(("users", "ana"), f"k{at}", {"likes": at})
    assert run("--target", original.target, "-n", "memory", "export", "--all", "--versions", "-o", memory).code == 0
    assert run("--target", other.target, "-n", "memory", "import", memory).code == 0
    with StatewardStore(other.target, **options) as store:
        assert len(store.search(("users", "ana"), limit=100)) == 10


def test_cut_off_packed_file_gives_its_whole_threads(stores):
    """A packed export that is cut off costs the threads at the cut, and not those before it."""
    _, restored, path, other = stores
    lines = path.read_text().splitlines()
    first = json.loads(lines[0])["thread"]
    whole = [line for line in lines if json.loads(line).get("thread") == first]
    packed, cut = path.with_name("packed.jsonl.gz"), path.with_name("cut.jsonl.gz")
    rich = [line for line in lines if json.loads(line).get("thread") == "rich"][:-1]
    packed.write_bytes(gzip.compress("\n".join([*whole, *rich, os.urandom(200_000).hex()]).encode()))
    cut.write_bytes(packed.read_bytes()[:-50_000])
    answer = run("--target", other.target, "-n", "packed", "import", cut)
    assert answer.code == 1
    assert "the end of thread 'rich' is missing: the file is truncated" in answer.err
    assert "is truncated: threads at its end are missing" in answer.err
    assert restored.thread("packed", first).thread == first


def test_format_of_a_newer_program_is_one_problem(stores, tmp_path):
    """A whole file of a newer format is refused once, and not line by line."""
    *_, other = stores
    newer = tmp_path / "newer.jsonl"
    newer.write_text('{"stateward_version": 9, "thread": "t", "kind": "thread"}\n' * 3)
    answer = run("--target", other.target, "import", newer)
    assert (answer.code, len(answer.err.splitlines())) == (1, 1)
    assert "has format 9" in answer.err


def test_thread_that_is_removed_during_an_export(stores, monkeypatch, tmp_path):
    """An export of a namespace goes on where a thread of its list is removed; one of that name is an error."""
    from stateward import Client
    from stateward.cli.commands import export

    *_, other = stores
    with Client(other.target, namespace="passing") as client:
        client.thread("stays").append("l", 1)
        monkeypatch.setattr(export, "_choose", lambda *_: (["gone", "stays"], None))
        answer = run("--target", other.target, "-n", "passing", "export", "--all", "--versions", "-o", tmp_path / "x")
        assert answer.code == 0
        assert "'gone' was removed meanwhile" in answer.err
        assert run("--target", other.target, "-n", "passing", "export", "gone", "--versions").code == 1


def goes_on(wire, space):
    """An agent works on the rich thread, in every way that it can."""
    at = {"namespace": space, "thread": "rich"}
    head = wire.thread(**at)
    (signal, *_) = wire.signals.ListSignals(s.ListSignalsRequest(**at)).signals
    save = c.SaveRequest(
        **at, options=WriteOptions(expected_version=head.version), diff=appends("later"), ack_signals=[signal.signal_id]
    )
    later = wire.save(save)
    parent = {"version": later.version}
    options = WriteOptions(request_id="branch later")
    wire.save(c.SaveRequest(**at, branch="later", parent=parent, diff=appends("branch"), options=options))
    wire.threads.SetTag(t.SetTagRequest(**at, tag="later", version={"version": later.version}))
    wire.records.PutRecords(
        r.PutRecordsRequest(**at, writes=[{"key": "a/1", "delete": {}}, {"key": "z", "value": {"data": b"z"}}],
                            options=WriteOptions(request_id="records later"))
    )  # fmt: skip
    begun = e.BeginEffectRequest(
        **at, anchor="a", key="later", holder=HOLDER, options=WriteOptions(request_id="begin later")
    )
    wire.effects.BeginEffect(begun)
    wire.signals.SendSignal(s.SendSignalRequest(**at, name="later", options=WriteOptions(request_id="send later")))


def is_pruned(wire, space):
    """Old versions go."""
    goes_on(wire, space)
    wire.threads.PruneThread(t.PruneThreadRequest(namespace=space, thread="rich", keep_latest_per_branch=1))


def is_made_anew(wire, space):
    """The name goes to another thread, which has a record and an effect of other content under the old keys."""
    at = {"namespace": space, "thread": "rich"}
    wire.threads.DeleteThread(t.DeleteThreadRequest(**at))
    wire.save(c.SaveRequest(**at, options=WriteOptions(expected_version=0), diff=appends("another")))
    goes = [{"key": "a/3", "value": {"data": b"another"}}]
    wire.records.PutRecords(r.PutRecordsRequest(**at, writes=goes, options=WriteOptions(request_id="other records")))
    begun = e.BeginEffectRequest(
        **at, anchor="a", key="done", holder=HOLDER, options=WriteOptions(request_id="begin another")
    )
    wire.effects.BeginEffect(begun)


def of_one_moment(found):
    """What a backup has of one moment: all but effects and records, which it reads later."""
    thread, described = type(found["thread"])(), type(found["described"])()
    thread.CopyFrom(found["thread"])
    described.CopyFrom(found["described"])
    for name in ("effects", "records", "record_bytes"):
        thread.ClearField(name)
        described.thread.ClearField(name)
    same = {key: value for key, value in found.items() if key[0] not in ("effects", "records")}
    return same | {"thread": thread, "described": described}


@pytest.mark.parametrize("happens", [goes_on, is_pruned, is_made_anew], ids=lambda each: each.__name__)
def test_threads_that_change_during_the_export(stores, monkeypatch, tmp_path, happens):
    """A restored thread is the original of one moment, before or after; effects and records are of that or a later
    one, each as a whole. Threads beside it are as they were."""
    from stateward.cli.commands import export

    original, restored, source, other = stores
    space, path = happens.__name__, tmp_path / "all.jsonl"
    assert run("--target", original.target, "-n", space, "import", source).code == 0
    before = read(original, space, "rich", is_restored=True)
    lines, done = export._backup_lines, []

    def interrupted(client, name):
        for line in lines(client, name):
            yield line
            if name == "rich" and not done:
                done.append(happens(original, space))

    monkeypatch.setattr(export, "_backup_lines", interrupted)
    answer = run("--target", original.target, "-n", space, "export", "--all", "--versions", "-o", path)
    assert (answer.code, done) == (0, [None]), answer.err
    after = read(original, space, "rich", is_restored=False)
    answer = run("--target", other.target, "-n", space, "import", path)
    assert (answer.code, answer.err) == (0, "")
    found = read(restored, space, "rich", is_restored=True)
    choices = [of_one_moment(each) for each in (before, after)]
    assert of_one_moment(found) in choices
    is_after = of_one_moment(found) == choices[1]
    for kind in ("effects", "records"):
        of_kind = [{key: value for key, value in each.items() if key[0] == kind} for each in (before, after, found)]
        assert of_kind[2] in (of_kind[1:2] if is_after or happens is is_made_anew else of_kind[:2])
        assert of_kind[0] != of_kind[1], "nothing was changed"
    for name in set(THREADS) - {"rich"}:
        was = read(original, space, name, is_restored=True)
        assert read(restored, space, name, is_restored=True) == was


def test_stream_without_end_leaves_nothing(stores):
    """A client that dies in the middle of an import leaves no thread, no rows and no key."""
    from stateward.v1 import backup_service_pb2 as backup

    original, restored, *_ = stores
    answers = original.backups.ExportThread(backup.ExportThreadRequest(namespace="space", thread="rich"))
    parts = [part for answer in answers for part in answer.parts][:-1]
    begin_part = backup.ImportBegin(namespace="space", thread="half", options=WriteOptions(request_id="half"))
    messages = [backup.ImportThreadRequest(begin=begin_part, parts=parts)]
    assert refused(restored.backups.ImportThread, iter(messages)).field == "parts.end"
    assert restored.findings() == []
    assert refused(restored.threads.GetThread, t.GetThreadRequest(namespace="space", thread="half")).reason == (
        "THREAD_NOT_FOUND"
    )


def test_sum_is_that_of_the_lines(stores):
    """The end of a thread says the SHA-256 of its lines, so that anybody can check a file."""
    lines = stores[2].read_bytes().splitlines(keepends=True)
    mine = [line for line in lines if b'"thread":"empty"' in line]
    assert json.loads(mine[-1])["sha256"] == hashlib.sha256(b"".join(mine[:-1])).hexdigest()


def test_keep_all_leaves_expiry_out(stores):
    """With --keep-all nothing that is restored expires."""
    _, restored, path, other = stores
    assert run("--target", other.target, "-n", "keep", "import", path, "--keep-all").code == 0
    thread = restored.thread("keep", "rich")
    assert not thread.HasField("ttl")
    assert not thread.HasField("retention")
    assert thread.agent == "agent"
    kept = record(restored, "keep", "a/2")
    assert not kept.HasField("ttl")
    assert not kept.HasField("expire_time")
