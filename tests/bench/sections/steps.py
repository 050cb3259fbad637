"""The cost of a step early and late in one thread, both in turn."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import grpc.aio
from tests.bench.field import Field
from tests.bench.payload import Payload
from tests.bench.peers.stateward import OPTIONS, Stub, append_request
from tests.bench.report import Section
from tests.bench.rounds import p50_ms, p99_ms, take_turns
from tests.bench.sections import Effort

from stateward.v1 import checkpoint_service_pb2 as pb
from stateward.v1.checkpoint_service_pb2_grpc import CheckpointServiceStub

EARLY, LATE, MEASURED = 10, 10_000, 200
IN_FLIGHT = 32


def measure(field: Field, payload: Payload, effort: Effort) -> Iterator[Section]:
    """Steps 10 to 210 of a new thread beside steps 10,000 to 10,200 of a long one; each step is a version."""
    late = LATE // 20 if effort.quick else LATE
    rounds = min(effort.rounds, MEASURED) if effort.quick else MEASURED
    stub, appended = Stub(field.daemon.target), payload.appended()
    for name, steps in {"early": EARLY, "late": late}.items():
        asyncio.run(_walk(field.daemon.target, name, [next(appended) for _ in range(steps)]))
        stub.version[name] = steps
    prepare = {name: lambda name=name: stub.step(name, next(appended)) for name in ("early", "late")}
    times = take_turns(prepare, rounds)
    stub.close()
    section = Section("steps", "save by step of one thread")
    for name, first in {"early": EARLY, "late": late}.items():
        ratio = p50_ms(times[name]) / p50_ms(times["early"])
        label = f"stateward, {rounds} steps from step {first:,}"
        section.add(label, p50_ms=p50_ms(times[name]), p99_ms=p99_ms(times[name]), x_step_10=ratio)
    yield section


async def _walk(target: str, thread: str, messages: list[bytes]) -> None:
    """Brings a thread to a step: appends on top of whatever is the head, many in flight, so that this is quick."""
    async with grpc.aio.insecure_channel(target, options=OPTIONS) as channel:
        save, left = CheckpointServiceStub(channel).Save, iter(messages)

        async def work() -> None:
            for message in left:
                request: pb.SaveRequest = append_request(thread, 0, [message])
                request.options.ClearField("expected_version")
                await save(request)

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
