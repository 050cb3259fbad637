"""The danger: the answer to a claim is lost, and that to its retry waits for the archive. Meanwhile the claim dies, and
two agents call the tool."""

from __future__ import annotations

import pytest
from tests.daemon.driven import NAMESPACE, Driven
from tests.daemon.town import Town

from stateward.v1.effect_pb2 import EFFECT_STATE_IN_PROGRESS, EFFECT_STATE_NEW, EFFECT_STATE_UNCERTAIN
from stateward.v1.effect_service_pb2 import BeginEffectRequest, BeginEffectResponse
from stateward.v1.lease_pb2 import Holder
from stateward.v1.thread_pb2 import ThreadOptions
from stateward.v1.write_pb2 import WriteOptions

TERM_S, WAIT_S = 10, 30.0


@pytest.fixture
def machine(driven: Town) -> Driven:
    return driven.machine("first")


def begin(machine: Driven, who: str, *, waits_s: float = 0.0) -> BeginEffectResponse:
    """Asks for the effect ``pay``, always with the same request id. The answer may wait for the archive so long."""
    request = BeginEffectRequest(
        namespace=NAMESPACE, thread="job", key="pay", holder=Holder(name=who, incarnation="1"),
        options=WriteOptions(request_id=who, create=ThreadOptions()),
        term={"seconds": TERM_S},
    )  # fmt: skip
    machine.archive.own(NAMESPACE, "job")
    return machine.write(machine.store.effects.begin(request, waits_s))


@pytest.mark.parametrize("late_s", [1, TERM_S - 1, TERM_S + 1])
def test_a_retry_waits_as_long_as_the_first_call(driven: Town, machine: Driven, late_s: int) -> None:
    """The claim lives for a term after the longest wait, however much of the first term was left."""
    first = begin(machine, "agent")
    driven.time.sleep(late_s)
    again = begin(machine, "agent", waits_s=WAIT_S)
    assert (again.state, again.claim_token) == (EFFECT_STATE_NEW, first.claim_token)
    driven.time.sleep(WAIT_S + TERM_S - 1)
    assert begin(machine, "other").state == EFFECT_STATE_IN_PROGRESS
    driven.time.sleep(2)
    assert begin(machine, "other").state == EFFECT_STATE_UNCERTAIN


def test_a_retry_begins_the_term_anew(driven: Town, machine: Driven) -> None:
    """Nobody took the claim: its holder has it for a whole term, also if the first one is over."""
    begin(machine, "agent")
    driven.time.sleep(TERM_S + 1)
    begin(machine, "agent")
    driven.time.sleep(TERM_S - 1)
    assert begin(machine, "other").state == EFFECT_STATE_IN_PROGRESS
