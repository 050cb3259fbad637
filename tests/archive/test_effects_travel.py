"""The danger: a tool is called a second time on the next machine, because its effect, lease or signal did not come
along."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.daemon.process import Fleet, eventually, write_steps
from tests.daemon.wire import Wire, refused
from tests.service.test_effects_lost_claims import LARGE, SMALL, Claimant

from stateward._operations.unfolding import unfold
from stateward.testing import Daemon
from stateward.v1.checkpoint_pb2 import WORK_STATUS_WAITING, VersionRef
from stateward.v1.checkpoint_service_pb2 import HydrateRequest, ListCheckpointsRequest, SaveRequest
from stateward.v1.diff_pb2 import Diff
from stateward.v1.effect_pb2 import EFFECT_STATE_DONE, EFFECT_STATE_IN_PROGRESS, EFFECT_STATE_NEW, Effect
from stateward.v1.lease_service_pb2 import AcquireLeaseRequest
from stateward.v1.signal_service_pb2 import ListSignalsRequest, SendSignalRequest
from stateward.v1.thread_service_pb2 import AttachRequest, GetThreadRequest, WaitDurableRequest
from stateward.v1.write_pb2 import Receipt, WriteOptions

PLACE = {"namespace": "default", "thread": "job"}


class Station:
    """A daemon with an agent beside it."""

    def __init__(self, daemon: Daemon, name: str = "agent") -> None:
        self.daemon = daemon
        self.wire = Wire(daemon.target)
        self.agent = Claimant(self.wire, "default", name, "job")

    def take(self) -> None:
        self.wire.threads.Attach(AttachRequest(**PLACE, mode="ATTACH_MODE_TAKE_OVER"))

    def archive_all(self) -> None:
        sequence = self.wire.threads.GetThread(GetThreadRequest(**PLACE)).thread.sequence
        wait = WaitDurableRequest(**PLACE, receipt=Receipt(sequence=sequence), durability="DURABILITY_ARCHIVED")
        self.wire.threads.WaitDurable(wait)


@pytest.fixture
def pair(machines: Fleet) -> tuple[Station, Station]:
    return Station(machines.machine("first")), Station(machines.machine("second"), "other")


def test_old_and_new_effects_are_known_elsewhere(machines: Fleet, pair: tuple[Station, Station]) -> None:
    """What lies in a pack that nobody has fetched yet, what is in HEAD, and what there never was."""
    first, second = pair
    first.agent.put(Effect(key="old", value=LARGE), Effect(key="older", anchor="c", value=SMALL))
    claim = first.agent.begin("old claim")
    write_steps(machines.client(first.daemon), "job", 150, size=1600)
    first.agent.put(Effect(key="new", value=SMALL))
    first.archive_all()
    first.daemon.kill()
    second.take()
    assert second.agent.begin("new").effect.effect.value == SMALL
    assert second.agent.begin("old").effect.effect.value == LARGE
    assert second.agent.begin("old claim").state == EFFECT_STATE_IN_PROGRESS
    assert second.agent.begin("old claim").effect.claim_token == claim.claim_token
    fresh = second.agent.begin("never")
    assert fresh.state == EFFECT_STATE_NEW
    assert fresh.claim_token > claim.claim_token
    assert {each.effect.key for each in second.agent.list().effects} == {
        "old", "older", "old claim", "new", "never",
    }  # fmt: skip
    assert second.wire.findings() == []


def test_a_version_is_read_elsewhere_with_its_effects(machines: Fleet, pair: tuple[Station, Station]) -> None:
    """Also those in packs that nobody has fetched yet, as soon as the other machine reads or lists the version."""
    first, second = pair
    first.wire.save(SaveRequest(**PLACE, options=WriteOptions(expected_version=0), diff=Diff(), checkpoint_id="c"))
    first.agent.put(Effect(key="old", anchor="c", value=LARGE), Effect(key="other", anchor="d", value=SMALL))
    write_steps(machines.client(first.daemon), "job", 150, size=1600)
    first.agent.put(Effect(key="new", anchor="c", value=SMALL))
    first.archive_all()
    first.daemon.kill()
    asked = HydrateRequest(**PLACE, include_effects=True, version=VersionRef(checkpoint_id="c"))
    answer = second.wire.checkpoints.Hydrate(asked)
    found = {each.effect.key: each.effect.value for each in answer.effects}
    assert found == {"new": SMALL, "old": LARGE}
    third = Wire(machines.machine("third").target)
    listed = ListCheckpointsRequest(**PLACE, include_states=True, include_effects=True, page_size=200)
    shown = list(unfold(third.checkpoints.ListCheckpoints(listed)))
    assert [len(each.state.logs["messages"].entries) for each in shown[:-1] if each.state] == list(range(150, 0, -1))
    assert [each.effect.key for each in shown[-1].effects or ()] == [each.effect.key for each in answer.effects]


def test_an_effect_of_a_fenced_machine_is_not_done(pair: tuple[Station, Station]) -> None:
    """A claim is answered when it is archived: a machine that does not know that it was overtaken gets none."""
    first, second = pair
    first.wire.save(SaveRequest(**PLACE, options=WriteOptions(expected_version=0), diff=Diff()))
    first.archive_all()
    second.take()
    claim = second.agent.begin()
    assert claim.state == EFFECT_STATE_NEW
    assert refused(first.wire.effects.BeginEffect, first.agent.ask()).reason == "FENCED"
    second.agent.complete(claim.claim_token, EFFECT_STATE_DONE, value=SMALL)
    assert second.agent.begin().effect.effect.value == SMALL


def test_a_claim_is_renewed_while_the_bucket_is_away(
    machines: Fleet, pair: tuple[Station, Station], tmp_path: Path
) -> None:
    """A renewal needs no bucket: else the claim would end under a tool that is at work."""
    first, _ = pair
    claim = first.agent.begin(term={"seconds": 1})
    away = machines.bucket.rename(tmp_path / "away")
    another = first.wire.effects.BeginEffect(first.agent.ask("another"), timeout=2)
    assert another.receipt.durability < another.required_durability
    assert first.agent.renew(claim.claim_token).effect == claim.effect
    away.rename(machines.bucket)
    first.agent.complete(claim.claim_token, EFFECT_STATE_DONE, value=SMALL)


def test_tokens_only_grow_across_machines(pair: tuple[Station, Station]) -> None:
    """The lease travels with HEAD: it is held there as well, and a token of the former owner's is old."""
    first, second = pair
    ask = AcquireLeaseRequest(**PLACE, holder=first.agent.holder, options=WriteOptions(request_id="a"))
    held = first.wire.leases.AcquireLease(ask)
    first.archive_all()
    first.daemon.kill()
    second.take()
    theirs = AcquireLeaseRequest(**PLACE, holder=second.agent.holder, options=WriteOptions(request_id="b"))
    assert refused(second.wire.leases.AcquireLease, theirs).reason == "LEASE_HELD"
    theirs.take_over = True
    taken = second.wire.leases.AcquireLease(theirs)
    assert taken.lease.token > held.lease.token
    save = SaveRequest(**PLACE, options=WriteOptions(expected_version=0, lease_token=held.lease.token), diff=Diff())
    assert refused(second.wire.checkpoints.Save, save).reason == "LEASE_HELD"
    save.options.lease_token = taken.lease.token
    assert second.wire.save(save).version == 1


def test_signals_wait_on_the_next_machine(machines: Fleet, pair: tuple[Station, Station], tmp_path: Path) -> None:
    """Sent through a machine that never had the thread, used on a third one with an empty disk."""
    first, second = pair
    asking = SaveRequest(
        **PLACE, options=WriteOptions(expected_version=0), diff=Diff(), status=WORK_STATUS_WAITING, wait_id="w1"
    )
    first.wire.save(asking)
    first.archive_all()
    eventually(lambda: first.wire.threads.GetThread(GetThreadRequest(**PLACE)).thread.owner_id == "first")
    answer = SendSignalRequest(
        **PLACE, name="approve", wait_id="w1", sender="bob",
        options=WriteOptions(request_id="r", durability="DURABILITY_ARCHIVED")
    )
    eventually(lambda: second.wire.signals.SendSignal(answer).receipt.durability == 2)
    second.daemon.kill()
    third = Station(machines.machine("third"))
    third.take()
    (waiting,) = third.wire.signals.ListSignals(ListSignalsRequest(**PLACE)).signals
    assert (waiting.name, waiting.sender) == ("approve", "bob")
    third.wire.save(
        SaveRequest(**PLACE, options=WriteOptions(expected_version=1), diff=Diff(), ack_signals=[waiting.signal_id])
    )
    assert list(third.wire.signals.ListSignals(ListSignalsRequest(**PLACE)).signals) == []
    assert third.wire.findings() == []
