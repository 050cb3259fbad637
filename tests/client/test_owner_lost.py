"""The danger: a machine is lost, and the first save of the next one fails though it need only wait for the lease."""

import time

import pytest

from stateward._operations.retry import UntilFree
from stateward._operations.steps import Call, Pause, at_once, with_retries
from stateward.errors import NotOwner
from stateward.models import Access
from stateward.v1 import checkpoint_service_pb2 as checkpoints

SAVE = Call("Save", checkpoints.SaveRequest(namespace="n", thread="t"))


def one(call):
    return (yield call)


def held(free_in_s=None):
    return NotOwner("held", metadata={} if free_in_s is None else {"free_in_s": str(free_in_s)})


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def waits(answers, patience_s=30.0):
    """How long the client waits in all while the owner is said to be idle like that; None at the end = it gave up."""
    clock = Clock()
    free = UntilFree(lambda: patience_s, clock)
    for answer in answers:
        delay_s = free.delay_after(held(answer(clock.now)))
        if delay_s is None:
            return clock.now, None
        clock.now += delay_s
    return clock.now, delay_s


def test_a_lease_that_runs_out_is_waited_for():
    """The save is made again until the lease is over: as often as the daemon says that the owner stays idle."""
    begun, last = waits([lambda now: max(10 - now, 0.0)] * 11)
    assert (begun, last) == (10.05, 0.05)


@pytest.mark.parametrize(
    ("answer", "patience_s", "until"),
    [
        (lambda _: 10.0, 30.0, 3.0),  # it archives all the time: it is alive
        (lambda now: 10 - now, 5.0, 0.0),  # in vain
        (lambda _: None, 30.0, 0.0),  # an orphan
        (lambda now: 10 - now, 0.0, 0.0),  # who wants no retries gets none
    ],
)
def test_what_is_not_waited_for(answer, patience_s, until):
    """An owner that is alive, a lease that is longer than the patience, an orphan."""
    assert waits([answer] * 40, patience_s) == (until, None)


def test_who_does_not_wait():
    """Only what says so: a taker of handoffs passes over what is held, and so does a migration."""
    for operation, patience_s in ((one(SAVE), 0.0), (at_once(one(SAVE)), 60.0)):
        steps = with_retries(operation, lambda: 60.0, lambda patience_s=patience_s: patience_s)
        assert next(steps).method == "Save"
        with pytest.raises(NotOwner):
            steps.throw(held(1.0))
    steps = with_retries(one(SAVE), lambda: 0.0, lambda: 60.0)
    next(steps)
    assert isinstance(steps.throw(held(1.0)), Pause)
    assert steps.send(None) is SAVE


def test_the_first_save_after_a_lost_machine(own_pair, open_client):
    """It waits for the lease, which began when the thread was read, and then succeeds."""
    first, second = (open_client(each.target).thread("t") for each in (own_pair.first, own_pair.second))
    first.append("l", 1, durability="archived")
    own_pair.first.kill()
    begun = time.monotonic()
    state = second.hydrate()
    state.logs["l"].append(2)
    assert second.save(state).version == 2
    assert 0.5 < time.monotonic() - begun < 60
    assert second.info().access is Access.OWNED
