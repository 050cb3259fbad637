"""The danger: effects are deleted twice, because another sidecar had the thread between a plan and its commit."""

from __future__ import annotations

import pytest
from google.protobuf.empty_pb2 import Empty
from tests.archive.test_effects_gone_travel import fill, left, prune
from tests.daemon.driven import CALLER, NAMESPACE, Driven
from tests.daemon.town import Town
from tests.daemon.unthreaded import run

from stateward.v1.effect_service_pb2 import DeleteEffectsRequest


def delete(machine: Driven) -> None:
    asked = DeleteEffectsRequest(namespace=NAMESPACE, thread="job", anchor="c1", all=Empty())
    asked.options.request_id = machine.disk.owner_id
    run(machine.effects.delete_effects(asked, CALLER))


@pytest.mark.parametrize("planned", ["prune", "deletion"])
def test_a_plan_does_not_outlast_ownership(driven: Town, planned: str) -> None:
    """The thread was given up, the other sidecar did the same to it, and it came back: a new plan is made."""
    first, second = driven.machine("first"), driven.machine("second")
    fill(first, 4)
    acts = {"prune": lambda machine: prune(machine, 1), "deletion": delete}
    planner = {"prune": first.store.pruner, "deletion": first.store.effect_deleter}[planned]
    real = planner._plan

    def plan(*arguments: object) -> object:
        made = real(*arguments)  # type: ignore[arg-type]
        planner._plan = real  # type: ignore[method-assign, assignment]
        first.archive.detach(NAMESPACE, "job")
        second.archive.own(NAMESPACE, "job")
        acts[next(other for other in acts if other != planned)](second)
        second.archive.detach(NAMESPACE, "job")
        first.archive.own(NAMESPACE, "job")
        return made

    planner._plan = plan  # type: ignore[method-assign, assignment]
    acts[planned](first)
    assert left(first) == sorted(f"c{number} {key}" for number in range(2, 5) for key in "ab")
    assert first.findings() == []
